package etcdstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubejoin/kubejoin/tokens/rowstore"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// rowDB is the [rowstore.DB] in etcd. The version of a row is the revision of its last change. Cached reads use the mirrors.
type rowDB struct{ s *Store }

var _ rowstore.DB = rowDB{}

// Get implements [rowstore.Reader].
func (d rowDB) Get(ctx context.Context, keys ...string) ([]rowstore.Row, error) {
	if len(keys) == 1 { // the client retries such a read at another member
		row, err := d.s.kv.get(ctx, keys[0])
		return []rowstore.Row{row}, err
	}
	rows, _, err := d.s.kv.getAll(ctx, 0, keys)
	return rows, err
}

// Scan implements [rowstore.Reader].
func (d rowDB) Scan(ctx context.Context, keys rowstore.Range, visit func(rowstore.Row) error) error {
	_, err := d.s.kv.scan(ctx, 0, keys, visit)
	return err
}

// Count implements [rowstore.Reader].
func (d rowDB) Count(ctx context.Context, folder string) (int, error) {
	n, _, err := d.s.kv.count(ctx, 0, folder)
	return n, err
}

// View implements [rowstore.DB].
func (d rowDB) View(_ context.Context, _ func(string, error), do func(rowstore.Reader) error) error {
	err := do(&moment{kv: d.s.kv})
	if errors.Is(err, rpctypes.ErrCompacted) {
		return fmt.Errorf("etcd compacted the revision that the command reads: repeat it when less is written, or with a longer --auto-compaction-retention of etcd: %w", err)
	}
	return err
}

// A moment is a Reader whose reads all have the revision of the first read.
type moment struct {
	kv       kv
	revision int64 // 0 before the first read
}

// Get implements [rowstore.Reader].
func (m *moment) Get(ctx context.Context, keys ...string) (rows []rowstore.Row, err error) {
	rows, m.revision, err = m.kv.getAll(ctx, m.revision, keys)
	return rows, err
}

// Scan implements [rowstore.Reader].
func (m *moment) Scan(ctx context.Context, keys rowstore.Range, visit func(rowstore.Row) error) (err error) {
	m.revision, err = m.kv.scan(ctx, m.revision, keys, visit)
	return err
}

// Count implements [rowstore.Reader].
func (m *moment) Count(ctx context.Context, folder string) (n int, err error) {
	n, m.revision, err = m.kv.count(ctx, m.revision, folder)
	return n, err
}

// Append implements [rowstore.DB].
func (d rowDB) Append(ctx context.Context, changes []rowstore.Change) error {
	_, err := d.Commit(ctx, nil, changes)
	return err
}

// Commit implements [rowstore.DB].
func (d rowDB) Commit(ctx context.Context, conditions []rowstore.Condition, changes []rowstore.Change) (version string, err error) {
	kv := d.s.kv
	var cmps []clientv3.Cmp
	for _, c := range conditions {
		cmps = append(cmps, kv.holds(c))
	}
	var ops []clientv3.Op
	for _, c := range changes {
		if c.Value == nil {
			ops = append(ops, kv.delete(c.Key))
		} else {
			ops = append(ops, kv.put(c.Key, c.Value))
		}
	}
	return d.s.write(ctx, cmps, ops)
}

// MaxChanges implements [rowstore.DB]. etcd limits conditions, too, and write adds one condition.
func (d rowDB) MaxChanges() int { return maxOperations - 1 }

// Damaged implements [rowstore.DB].
func (d rowDB) Damaged(key string, err error) error { return d.s.kv.damaged(key, err) }

// Watch implements [rowstore.DB].
func (d rowDB) Watch(ctx context.Context, folder string) <-chan struct{} {
	return d.s.mirrorOf(folder).hints.Watch(ctx)
}

// Cached implements [rowstore.DB].
func (d rowDB) Cached() rowstore.Reader { return cache(d) }

// A cache reads the mirrors. It reads etcd until a mirror has made its first list.
type cache struct{ s *Store }

// Get implements [rowstore.Reader].
func (c cache) Get(ctx context.Context, keys ...string) ([]rowstore.Row, error) {
	m := c.s.mirrorOf(keys[0]) // all keys of a call are in one folder
	if rows, synced := m.get(keys); synced {
		return rows, ctx.Err()
	}
	rows, revision, err := c.s.kv.getAll(ctx, 0, keys)
	if err == nil && m.sawRevision(revision) {
		rows, _ = m.get(keys)
	}
	return rows, err
}

// Scan implements [rowstore.Reader].
func (c cache) Scan(ctx context.Context, keys rowstore.Range, visit func(rowstore.Row) error) error {
	m := c.s.mirrorOf(keys.From)
	if m.store == nil { // the issuance record, which may be large, has no mirror
		return rowDB(c).Scan(ctx, keys, visit)
	}
	rows, synced := m.in(keys)
	if !synced {
		var read rowstore.Sorted
		revision, err := c.s.kv.scan(ctx, 0, keys, func(row rowstore.Row) error { read = append(read, row); return nil })
		if err != nil {
			return err
		}
		if !m.sawRevision(revision) {
			return read.Visit(visit)
		}
		rows, _ = m.in(keys)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return rows.Visit(visit)
}

// Count implements [rowstore.Reader].
func (c cache) Count(ctx context.Context, folder string) (int, error) {
	return rowDB(c).Count(ctx, folder)
}
