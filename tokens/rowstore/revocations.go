package rowstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/kubejoin/kubejoin/tokens"
)

// Revocations are the rows of revocations. Package signer/revocation/rowlist encodes and decodes them.
type Revocations struct{ db DB }

// Revocations returns the revocations in the database.
func (s *Store) Revocations() *Revocations { return &Revocations{s.db} }

// Get returns the value of a key, or nil if the key does not exist. The caller must not change the value.
func (r *Revocations) Get(ctx context.Context, key string) ([]byte, error) {
	row, err := get(ctx, r.db, revocationsFolder+key)
	return row.Value, err
}

// Find is like Get, but may lag behind writes. It is very cheap.
func (r *Revocations) Find(ctx context.Context, key string) ([]byte, error) {
	row, err := get(ctx, r.db.Cached(), revocationsFolder+key)
	return row.Value, err
}

// Visit calls visit with each row, sorted by key. visit must not keep the value.
func (r *Revocations) Visit(ctx context.Context, visit func(key string, value []byte) error) error {
	return scan(ctx, r.db, revocationsFolder, func(key string, row Row) error { return visit(key, row.Value) })
}

// VisitCached is like Visit, but may lag behind writes.
func (r *Revocations) VisitCached(ctx context.Context, visit func(key string, value []byte) error) error {
	return scan(ctx, r.db.Cached(), revocationsFolder, func(key string, row Row) error { return visit(key, row.Value) })
}

// Update replaces the value of a key by what change returns, by compare-and-swap. A nil value means that there is no
// row. It writes nothing if change returns the same value or fails. It may call change several times.
func (r *Revocations) Update(ctx context.Context, key string, change func(value []byte) ([]byte, error)) error {
	key = revocationsFolder + key
	for {
		row, err := get(ctx, r.db, key)
		if err != nil {
			return err
		}
		after, err := change(row.Value)
		if err != nil || (row.Value == nil) == (after == nil) && bytes.Equal(row.Value, after) {
			return err
		}
		_, err = r.db.Commit(ctx, []Condition{{key, row.Version}}, []Change{{key, after}})
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, tokens.ErrConflict):
			return fmt.Errorf("revocation: %w", err)
		}
	}
}
