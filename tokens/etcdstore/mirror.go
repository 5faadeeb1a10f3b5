package etcdstore

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A mirror is a copy in memory of all rows whose key is at least from and less than to. It follows etcd with a watch, and
// lists again whenever the watch ends, for example because etcd has compacted the revisions that the mirror has missed.
type mirror struct {
	store    *Store
	from, to string
	hints    tokens.Hints

	mu     sync.Mutex
	synced bool  // the rows were listed at least once
	seen   int64 // the highest revision that sawRevision got before the first list
	rows   rowstore.Sorted
}

// newMirrors returns the mirrors of all rows except the issuance record, which has no cache. Claims and their index share
// one mirror, so that they agree after a hint.
func newMirrors(s *Store) []*mirror {
	return []*mirror{
		{store: s, from: "ca-rotation/", to: clientv3.GetPrefixRangeEnd("ca-rotation/")},
		{store: s, from: "claims/", to: clientv3.GetPrefixRangeEnd("holders/")},
		{store: s, from: "revocations/", to: clientv3.GetPrefixRangeEnd("revocations/")},
		{store: s, from: "tokens/", to: clientv3.GetPrefixRangeEnd("tokens/")},
	}
}

// mirrorOf returns the mirror of a key. For a key of the issuance record, it returns an empty mirror that is never synced
// and sends no hints.
func (s *Store) mirrorOf(key string) *mirror {
	for _, m := range s.mirrors {
		if m.from <= key && key < m.to {
			return m
		}
	}
	return &mirror{}
}

// Pauses between attempts to list and watch.
const minPause, maxPause = 50 * time.Millisecond, 2 * time.Second

// follow keeps the mirror up to date until ctx ends.
func (m *mirror) follow(ctx context.Context) {
	pause, failing := minPause, false
	for ctx.Err() == nil {
		synced, err := m.listAndWatch(ctx, func() {
			if failing {
				m.store.log.Info("following etcd again", "folder", m.from)
			}
			failing = false
		})
		if ctx.Err() != nil {
			return
		}
		if synced {
			pause = minPause
		}
		if !failing && !synced {
			m.store.log.Warn("cannot follow etcd, caches are stale; retrying", "folder", m.from, "error", err)
			failing = true
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, maxPause)
	}
}

// errOlder means that a caller has already read newer rows from etcd than the mirror has listed.
var errOlder = errors.New("the list is older than one before")

// errWatchEnded means that etcd ended a watch without an error.
var errWatchEnded = errors.New("the watch ended")

// listAndWatch calls listed once it has listed all rows, and then follows changes until the watch ends.
func (m *mirror) listAndWatch(ctx context.Context, listed func()) (synced bool, err error) {
	var rows rowstore.Sorted
	revision, err := m.store.kv.scan(ctx, 0, rowstore.Range{From: m.from, To: m.to}, func(row rowstore.Row) error {
		rows = append(rows, row)
		return nil
	})
	if err != nil {
		return false, err
	}
	if !m.replace(rows, revision) {
		return true, errOlder
	}
	listed()
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	kv := m.store.kv
	for response := range kv.client.Watch(ctx, kv.prefix+m.from, clientv3.WithRange(kv.prefix+m.to), clientv3.WithRev(revision+1), clientv3.WithFragment()) {
		if err := response.Err(); err != nil {
			return true, err
		}
		m.apply(response.Events)
	}
	return true, errWatchEnded
}

// replace replaces all rows. It does nothing and returns false if a caller has seen newer rows.
func (m *mirror) replace(rows rowstore.Sorted, revision int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if revision < m.seen {
		return false
	}
	m.synced, m.rows = true, rows
	m.hints.Send()
	return true
}

func (m *mirror) apply(events []*clientv3.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range events {
		row := m.store.kv.rowOf(e.Kv)
		if e.Type == mvccpb.DELETE {
			row.Version = ""
		}
		m.rows.Set(row)
	}
	if len(events) > 0 {
		m.hints.Send()
	}
}

// get returns rows. synced is false before the first list: then the caller must read etcd.
func (m *mirror) get(keys []string) (rows []rowstore.Row, synced bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rows.Get(keys...), m.synced
}

// in returns a copy of the rows of a range. synced has the same meaning as in get.
func (m *mirror) in(keys rowstore.Range) (rows rowstore.Sorted, synced bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rows.In(keys), m.synced
}

// sawRevision makes the mirror refuse a first list of an earlier revision. It reports whether the mirror has already
// listed, perhaps an earlier revision. If so, the caller must read the mirror, so that it does not see a newer state than
// later calls.
func (m *mirror) sawRevision(revision int64) (synced bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seen = max(m.seen, revision)
	return m.synced
}
