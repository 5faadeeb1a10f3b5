package boltstore

import (
	"bytes"
	"context"

	"github.com/kubejoin/kubejoin/tokens"
	"go.etcd.io/bbolt"
)

// Revocations stores revocations in the file of a [Store], as rows. Package signer/revocation/rowlist encodes and
// decodes them. If their encoding changes, schemaVersion must change too.
type Revocations struct {
	store *Store
	hints tokens.Hints // has no listeners
}

// Revocations returns the revocations in the file. They can be used until the store is closed.
func (s *Store) Revocations() *Revocations { return &s.revocations }

// Get returns the value of a key, or nil if there is none.
func (r *Revocations) Get(ctx context.Context, key string) (value []byte, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	err = r.store.read(func(tx *bbolt.Tx) error {
		value = bytes.Clone(tx.Bucket(revocationsBucket).Get([]byte(key)))
		return nil
	})
	return value, err
}

// Find is the same as Get.
func (r *Revocations) Find(ctx context.Context, key string) ([]byte, error) { return r.Get(ctx, key) }

// VisitCached is the same as Visit.
func (r *Revocations) VisitCached(ctx context.Context, visit func(key string, value []byte) error) error {
	return r.Visit(ctx, visit)
}

// Visit calls visit with each row, sorted by key. visit must not keep the value.
func (r *Revocations) Visit(ctx context.Context, visit func(key string, value []byte) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return r.store.read(func(tx *bbolt.Tx) error {
		return tx.Bucket(revocationsBucket).ForEach(func(k, v []byte) error { return visit(string(k), v) })
	})
}

// Update replaces the value of a key by what change returns, in one transaction. A nil value means that there is no
// row. It writes nothing if change returns the same value or fails. It may call change twice.
func (r *Revocations) Update(ctx context.Context, key string, change func(value []byte) ([]byte, error)) error {
	before, err := r.Get(ctx, key)
	if err != nil {
		return err
	}
	// Without this, each issued certificate would wait for the disk, although its node is not revoked.
	if after, err := change(before); err != nil || same(before, after) {
		return err
	}
	return r.store.write(&r.hints, func(tx *bbolt.Tx) error {
		rows := tx.Bucket(revocationsBucket)
		before := bytes.Clone(rows.Get([]byte(key)))
		after, err := change(before)
		switch {
		case err != nil, same(before, after):
			return err
		case after == nil:
			return rows.Delete([]byte(key))
		}
		return rows.Put([]byte(key), after)
	})
}

func same(before, after []byte) bool {
	return (before == nil) == (after == nil) && bytes.Equal(before, after)
}
