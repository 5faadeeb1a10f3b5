package boltstore

import (
	"context"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/tokens/rowstore"
	"go.etcd.io/bbolt"
)

// Retention of the issuance record. The store deletes entries that are due when it appends new ones.
const (
	// KeepEnded is how long the entry of a certificate is kept after the certificate has ended, by default.
	KeepEnded = 90 * 24 * time.Hour
	// MaxSize is how many bytes of the file can be in use, enough for 1.2 million certificates. If more are in use, or the
	// disk is full, the store drops entries before they are due: see [Store.Dropped].
	MaxSize = 4 << 30
)

// sweptForOne is the maximum number of due entries that the store deletes for each new entry. It is more than one, so that
// the record shrinks. It is small, because a client waits for its certificate meanwhile.
const sweptForOne = 4

// A sweeper deletes entries of the issuance record.
type sweeper struct {
	now       func() time.Time
	retention time.Duration
	maxSize   int64

	mu      sync.Mutex // guards the next two fields
	dropped int
	last    time.Time // when the last entry was dropped
}

// Dropped returns how many entries the store has dropped before they were due since it was opened, and when
// it dropped the last one. It drops entries if the disk is full or the file reaches [MaxSize]: refusals and
// failures first, then the certificates that end first.
func (s *Store) Dropped() (entries int, last time.Time) {
	s.sweeper.mu.Lock()
	defer s.sweeper.mu.Unlock()
	return s.sweeper.dropped, s.sweeper.last
}

// addDropped counts dropped entries, once the transaction is committed.
func (s *sweeper) addDropped(out sweepResult) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if out.dropped > 0 {
		s.dropped, s.last = s.dropped+out.dropped, s.now()
	}
}

// A sweepResult is the result of sweep: how many entries it deleted before they were due, and the bytes of all entries that
// it deleted.
type sweepResult struct {
	dropped int
	bytes   int64
}

// counted is a transaction whose Count gets the number of refusals and failures from a counter.
type counted struct{ transaction }

// Count implements [rowstore.Reader].
func (c counted) Count(ctx context.Context, folder string) (int, error) {
	if folder != unissuedFolder {
		return c.transaction.Count(ctx, folder)
	}
	return int(c.tx.Bucket(unissuedBucket).Sequence()), nil
}

// sweep deletes at most the given number of due entries. If these have fewer than atLeast bytes, it deletes more entries,
// due or not.
func (s *sweeper) sweep(tx *bbolt.Tx, most int, atLeast int64) (out sweepResult, err error) {
	skip := func(string, error) {} // a damaged row of an index must not stop the store
	t, taken := transaction{tx: tx, report: skip}, 0
	err = rowstore.Victims(context.Background(), counted{t}, rowstore.SweepOptions{Now: s.now(), Retention: s.retention, Early: atLeast > 0}, func(v rowstore.Victim) (bool, error) {
		due := v.Due || v.Beyond
		if (!due || taken >= most) && out.bytes >= atLeast {
			return false, nil
		}
		taken++
		if !due {
			out.dropped++
		}
		var changes []rowstore.Change
		for _, key := range v.Keys {
			bucket, k := t.bucketOf(key)
			out.bytes += int64(len(bucket.Get(k)))
			changes = append(changes, rowstore.Change{Key: key})
		}
		return true, t.set(0, changes)
	})
	return out, err
}
