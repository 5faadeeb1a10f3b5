// Package boltlist stores revocations in the file of a boltstore.Store. It implements [revocation.Store] with rows of
// that file.
package boltlist

import (
	"context"
	"fmt"

	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
)

// A List is a [revocation.Store]. [New] creates it.
type List struct{ rows *boltstore.Revocations }

var _ revocation.Store = (*List)(nil)

// New returns a List with these rows, which the Revocations method of a [boltstore.Store] returns.
func New(rows *boltstore.Revocations) *List { return &List{rows} }

// Get implements [revocation.Store].
func (l *List) Get(ctx context.Context, key revocation.Key) (revocation.Entry, error) {
	value, err := l.rows.Get(ctx, string(key))
	switch {
	case err != nil:
		return revocation.Entry{}, err
	case value == nil:
		return revocation.Entry{}, fmt.Errorf("%s: %w", key, revocation.ErrNotFound)
	}
	return revocation.Decode(string(key), value)
}

// Find implements [revocation.Store]. It is the same as Get.
func (l *List) Find(ctx context.Context, key revocation.Key) (revocation.Entry, error) {
	return l.Get(ctx, key)
}

// List implements [revocation.Store].
func (l *List) List(ctx context.Context) (all []revocation.Entry, err error) {
	err = l.rows.Visit(ctx, func(key string, value []byte) error {
		e, err := revocation.Decode(key, value)
		all = append(all, e)
		return err
	})
	return all, err
}

// Cached implements [revocation.Store]. It is the same as List.
func (l *List) Cached(ctx context.Context) ([]revocation.Entry, error) { return l.List(ctx) }

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
