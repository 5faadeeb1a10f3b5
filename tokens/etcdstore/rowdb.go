package etcdstore

import (
	"context"

	"github.com/kubejoin/kubejoin/tokens/rowstore"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// rowDB is the [rowstore.DB] in etcd. The version of a row is the revision of its last change. Its caches are the mirrors.
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
func (d rowDB) Scan(ctx context.Context, from, to string, visit func(rowstore.Row) error) error {
	_, err := d.s.kv.scan(ctx, 0, from, to, visit)
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

// MaxChanges implements [rowstore.DB].
func (d rowDB) MaxChanges() int { return maxOperations }

// Damaged implements [rowstore.DB].
func (d rowDB) Damaged(key string, err error) error { return d.s.kv.damaged(key, err) }

// Watch implements [rowstore.DB].
func (d rowDB) Watch(ctx context.Context, folder string) <-chan struct{} {
	return d.s.mirrorOf(folder).hints.Watch(ctx)
}

// Cached implements [rowstore.DB].
func (d rowDB) Cached() rowstore.Reader { return cache(d) }

// A cache reads the mirrors, and etcd before they have listed it.
type cache struct{ s *Store }

// Get implements [rowstore.Reader].
func (c cache) Get(ctx context.Context, keys ...string) ([]rowstore.Row, error) {
	if rows, synced := c.s.mirrorOf(keys[0]).get(keys); synced { // all keys of a call are of one folder
		return rows, ctx.Err()
	}
	return rowDB(c).Get(ctx, keys...)
}

// Scan implements [rowstore.Reader].
func (c cache) Scan(ctx context.Context, from, to string, visit func(rowstore.Row) error) error {
	m := c.s.mirrorOf(from)
	rows, synced := m.between(from, to)
	if !synced {
		revision, err := c.s.kv.scan(ctx, 0, from, to, visit)
		m.sawRevision(revision)
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return rows.Visit(visit)
}
