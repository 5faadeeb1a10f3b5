package etcdstore

import (
	"bytes"
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Revocations stores revocations in etcd, as rows. Package signer/revocation/rowlist encodes and decodes them.
type Revocations struct {
	store  *Store
	mirror *mirror[[]byte]
}

// Revocations returns the revocations in etcd. They can be used until the store is closed.
func (s *Store) Revocations() *Revocations { return &s.revocations }

// Get returns the value of a key, or nil if there is none.
func (r *Revocations) Get(ctx context.Context, key string) (value []byte, err error) {
	value, _, err = r.store.kv.get(ctx, revocationsFolder+key)
	return value, err
}

// Find is like Get, but may lag behind writes. It is very cheap. The caller must not change the value.
func (r *Revocations) Find(ctx context.Context, key string) ([]byte, error) {
	value, _, synced, err := r.mirror.find(key)
	if !synced {
		return r.Get(ctx, key)
	}
	return value, err
}

// Visit calls visit with each row, sorted by key.
func (r *Revocations) Visit(ctx context.Context, visit func(key string, value []byte) error) error {
	_, err := r.store.kv.all(ctx, revocationsFolder, func(key string, row *mvccpb.KeyValue) error { return visit(key, row.Value) })
	return err
}

// VisitCached is like Visit, but may lag behind writes.
func (r *Revocations) VisitCached(ctx context.Context, visit func(key string, value []byte) error) error {
	type row struct {
		key   string
		value []byte
	}
	var all []row
	if err := r.mirror.list(ctx, func(key string, value []byte) { all = append(all, row{key, value}) }); err != nil {
		return err
	}
	for _, row := range all {
		if err := visit(row.key, row.value); err != nil {
			return err
		}
	}
	return nil
}

// Update replaces the value of a key by what change returns, by compare-and-swap. A nil value means that there is no
// row. It writes nothing if change returns the same value or fails. It may call change several times.
func (r *Revocations) Update(ctx context.Context, key string, change func(value []byte) ([]byte, error)) error {
	kv, key := r.store.kv, revocationsFolder+key
	for {
		before, version, err := kv.get(ctx, key)
		if err != nil {
			return err
		}
		after, err := change(bytes.Clone(before))
		if err != nil || (before == nil) == (after == nil) && bytes.Equal(before, after) {
			return err
		}
		condition, op := kv.absent(key), kv.put(key, after)
		if before != nil {
			condition = kv.unchanged(key, version)
		}
		if after == nil {
			op = kv.delete(key)
		}
		written, err := r.store.write(ctx, []clientv3.Cmp{condition}, []clientv3.Op{op})
		if err != nil {
			return fmt.Errorf("revocation: %w", err)
		}
		if written != "" {
			return nil
		}
		if err := r.store.refused(ctx, nil); err != nil {
			return err
		}
	}
}

// Watch sends hints about changes, like [tokens.Store.Watch].
func (r *Revocations) Watch(ctx context.Context) <-chan struct{} { return r.mirror.hints.Watch(ctx) }
