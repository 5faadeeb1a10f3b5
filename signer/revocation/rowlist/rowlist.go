// Package rowlist stores revocations in a file, in etcd or in memory. It implements [revocation.Store] with the rows of
// tokens/rowstore.
package rowlist

import (
	"context"
	"fmt"

	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
)

// Rows are the rows of a store. The value of a missing row is nil.
type Rows interface {
	Get(ctx context.Context, key string, read tokens.Read) (value []byte, err error)
	// Visit calls visit with each row, sorted by key. visit must not keep the value.
	Visit(ctx context.Context, read tokens.Read, visit func(key string, value []byte) error) error
	// Update replaces the value of a key with the result of change, if the value has not changed meanwhile. It may
	// call change several times. It writes nothing if change returns the same value or fails.
	Update(ctx context.Context, key string, change func(value []byte) ([]byte, error)) error
}

// A List is a [revocation.Store]. [New] creates it.
type List struct{ rows Rows }

var _ revocation.Store = (*List)(nil)

// New returns a List with these rows, which the Revocations method of a store returns.
func New(rows Rows) *List { return &List{rows} }

// Get implements [revocation.Store].
func (l *List) Get(ctx context.Context, key revocation.Key, read tokens.Read) (revocation.Entry, error) {
	value, err := l.rows.Get(ctx, string(key), read)
	switch {
	case err != nil:
		return revocation.Entry{}, err
	case value == nil:
		return revocation.Entry{}, fmt.Errorf("%s: %w", key, revocation.ErrNotFound)
	}
	return revocation.Decode(string(key), value)
}

// List implements [revocation.Store].
func (l *List) List(ctx context.Context, read tokens.Read) (all []revocation.Entry, err error) {
	err = l.rows.Visit(ctx, read, func(key string, value []byte) error {
		e, err := revocation.Decode(key, value)
		all = append(all, e)
		return err
	})
	return all, err
}

// Update implements [revocation.Store].
func (l *List) Update(ctx context.Context, key revocation.Key, change func(*revocation.Entry) (*revocation.Entry, error)) (result *revocation.Entry, err error) {
	err = l.rows.Update(ctx, string(key), func(value []byte) ([]byte, error) {
		var before *revocation.Entry
		if value != nil {
			e, err := revocation.Decode(string(key), value)
			if err != nil {
				return nil, err
			}
			before = &e
		}
		after, err := change(before)
		switch {
		case err != nil:
			return nil, err
		case after == nil:
			result = nil
			return nil, nil
		case after == before:
			result = before
			return value, nil
		}
		if value, err = revocation.Encode(*after); err != nil {
			return nil, err
		}
		stored, err := revocation.Decode(string(key), value)
		result = &stored
		return value, err
	})
	if err != nil {
		return nil, err
	}
	return result, nil
}
