package rowstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/kubejoin/kubejoin/tokens"
)

// Values are the rows of one folder. Another package encodes and decodes their values.
type Values struct {
	db     DB
	folder string
}

// Revocations returns the rows of revocations, which package signer/revocation/rowlist encodes and decodes.
func (s *Store) Revocations() *Values { return &Values{s.db, revocationsFolder} }

// Rotations returns the rows of the CA rotation, which package signer/rotation/rowstate encodes and decodes.
func (s *Store) Rotations() *Values { return &Values{s.db, rotationsFolder} }

// Get returns the value of a key, or nil if the key does not exist. The caller must not change the value.
func (r *Values) Get(ctx context.Context, key string, read tokens.Read) ([]byte, error) {
	row, err := get(ctx, reader(r.db, read), r.folder+key)
	return row.Value, err
}

// Visit calls visit with each row, sorted by key. visit must not keep the value.
func (r *Values) Visit(ctx context.Context, read tokens.Read, visit func(key string, value []byte) error) error {
	return scan(ctx, reader(r.db, read), r.folder, func(key string, row Row) error { return visit(key, row.Value) })
}

// Watch sends hints about changes, like [tokens.Store.Watch].
func (r *Values) Watch(ctx context.Context) <-chan struct{} { return r.db.Watch(ctx, r.folder) }

// Update replaces the value of a key by the result of change, with compare-and-swap. A nil value means that there is no
// row. Update writes nothing if change returns the same value or an error. It may call change several times.
func (r *Values) Update(ctx context.Context, key string, change func(value []byte) ([]byte, error)) error {
	key = r.folder + key
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
			return fmt.Errorf("%s: %w", key, err)
		}
	}
}
