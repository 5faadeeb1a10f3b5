package revocationtest

import (
	"context"

	"github.com/kubejoin/kubejoin/signer/revocation"
)

// Before returns s with calls of Get, Find and Update that run f first. If f fails, the call fails and has no effect.
func Before(s revocation.Store, f func(method string, key revocation.Key) error) revocation.Store {
	return before{s, f}
}

type before struct {
	revocation.Store
	f func(method string, key revocation.Key) error
}

func (b before) Get(ctx context.Context, key revocation.Key) (revocation.Entry, error) {
	if err := b.f("Get", key); err != nil {
		return revocation.Entry{}, err
	}
	return b.Store.Get(ctx, key)
}

func (b before) Find(ctx context.Context, key revocation.Key) (revocation.Entry, error) {
	if err := b.f("Find", key); err != nil {
		return revocation.Entry{}, err
	}
	return b.Store.Find(ctx, key)
}

func (b before) Update(ctx context.Context, key revocation.Key, change func(*revocation.Entry) (*revocation.Entry, error)) (*revocation.Entry, error) {
	if err := b.f("Update", key); err != nil {
		return nil, err
	}
	return b.Store.Update(ctx, key, change)
}
