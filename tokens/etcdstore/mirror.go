package etcdstore

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A mirror is a copy in memory of all rows in a folder. It follows etcd with a watch, and lists again whenever the watch
// ends, for example because etcd has compacted the revisions that the mirror has missed.
type mirror[T any] struct {
	store  *Store
	folder string
	decode func(key string, value []byte, version string) (T, error)
	group  func(T) string // the group of a row, for inGroup; nil has none
	hints  tokens.Hints

	mu     sync.Mutex
	synced bool  // the rows were listed once
	seen   int64 // the highest revision that list has returned before
	rows   map[string]mirrored[T]
	groups map[string]map[string]struct{} // keys by group
	keys   []string                       // sorted; nil after a change of the set
}

type mirrored[T any] struct {
	value T
	err   error // the row is damaged
}

func newMirror[T any](s *Store, folder string, decode func(string, []byte, string) (T, error), group func(T) string) *mirror[T] {
	return &mirror[T]{store: s, folder: folder, decode: decode, group: group, rows: map[string]mirrored[T]{}, groups: map[string]map[string]struct{}{}}
}

// Pauses between attempts to list and watch.
const minPause, maxPause = 50 * time.Millisecond, 2 * time.Second

// follow keeps the mirror up to date until ctx ends.
func (m *mirror[T]) follow(ctx context.Context) {
	pause, failing := minPause, false
	for ctx.Err() == nil {
		synced, err := m.listAndWatch(ctx, func() {
			if failing {
				m.store.log.Info("following etcd again", "folder", m.folder)
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
			m.store.log.Warn("cannot follow etcd, caches are stale; retrying", "folder", m.folder, "error", err)
			failing = true
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, maxPause)
	}
}

// errOlder means that list has returned newer rows from etcd meanwhile.
var errOlder = errors.New("the list is older than one before")

// errWatchEnded means that etcd ended a watch without an error.
var errWatchEnded = errors.New("the watch ended")

// listAndWatch calls listed once it has listed all rows, and then follows changes until the watch ends.
func (m *mirror[T]) listAndWatch(ctx context.Context, listed func()) (synced bool, err error) {
	rows := map[string]mirrored[T]{}
	revision, err := m.store.kv.all(ctx, m.folder, func(key string, row *mvccpb.KeyValue) error {
		rows[key] = m.decoded(key, row)
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
	for response := range m.store.kv.client.Watch(ctx, m.store.kv.prefix+m.folder, clientv3.WithPrefix(), clientv3.WithRev(revision+1), clientv3.WithFragment()) {
		if err := response.Err(); err != nil {
			return true, err
		}
		m.apply(response.Events)
	}
	return true, errWatchEnded
}

func (m *mirror[T]) decoded(key string, row *mvccpb.KeyValue) mirrored[T] {
	value, err := m.decode(key, row.Value, versionOf(row.ModRevision))
	if err != nil {
		err = m.store.kv.damaged(m.folder+key, err)
	}
	return mirrored[T]{value, err}
}

// replace replaces all rows, unless a caller of list has seen newer ones.
func (m *mirror[T]) replace(rows map[string]mirrored[T], revision int64) bool {
	m.mu.Lock()
	if revision < m.seen {
		m.mu.Unlock()
		return false
	}
	m.synced, m.rows, m.keys, m.groups = true, rows, nil, map[string]map[string]struct{}{}
	for key, row := range rows {
		m.join(key, row)
	}
	m.mu.Unlock()
	m.hints.Send()
	return true
}

func (m *mirror[T]) apply(events []*clientv3.Event) {
	if len(events) == 0 {
		return
	}
	m.mu.Lock()
	for _, e := range events {
		key := string(e.Kv.Key[len(m.store.kv.prefix)+len(m.folder):])
		before, existed := m.rows[key]
		if existed {
			m.leave(key, before)
		}
		if e.Type == mvccpb.DELETE {
			delete(m.rows, key)
			m.keys = nil
			continue
		}
		row := m.decoded(key, e.Kv)
		m.rows[key] = row
		m.join(key, row)
		if !existed {
			m.keys = nil
		}
	}
	m.mu.Unlock()
	m.hints.Send()
}

func (m *mirror[T]) groupOf(row mirrored[T]) string {
	if m.group == nil || row.err != nil {
		return ""
	}
	return m.group(row.value)
}

func (m *mirror[T]) join(key string, row mirrored[T]) {
	if g := m.groupOf(row); g != "" {
		if m.groups[g] == nil {
			m.groups[g] = map[string]struct{}{}
		}
		m.groups[g][key] = struct{}{}
	}
}

func (m *mirror[T]) leave(key string, row mirrored[T]) {
	if g := m.groupOf(row); g != "" {
		if delete(m.groups[g], key); len(m.groups[g]) == 0 {
			delete(m.groups, g)
		}
	}
}

// find returns a row from memory. Synced is false before the first list: then the caller has to read etcd.
func (m *mirror[T]) find(key string) (value T, found, synced bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	row, found := m.rows[key]
	return row.value, found, m.synced, row.err
}

func (m *mirror[T]) isSynced() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.synced
}

// list visits all rows, sorted by key. Before the mirror has listed them, list reads them from etcd.
func (m *mirror[T]) list(ctx context.Context, visit func(key string, value T)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !m.isSynced() {
		revision, err := m.store.kv.all(ctx, m.folder, func(key string, row *mvccpb.KeyValue) error {
			d := m.decoded(key, row)
			if d.err == nil {
				visit(key, d.value)
			}
			return d.err
		})
		m.mu.Lock()
		defer m.mu.Unlock()
		m.seen = max(m.seen, revision)
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.keys == nil {
		m.keys = slices.Sorted(maps.Keys(m.rows))
	}
	for _, key := range m.keys {
		row := m.rows[key]
		if row.err != nil {
			return row.err
		}
		visit(key, row.value)
	}
	return nil
}

// inGroup returns the rows of a group from memory, sorted by key. Synced is as in find.
func (m *mirror[T]) inGroup(group string) (values []T, synced bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(m.groups[group])) {
		values = append(values, m.rows[key].value)
	}
	return values, m.synced
}
