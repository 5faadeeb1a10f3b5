package revocationtest

import (
	"context"

	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
)

// Before returns a Store that runs f before each call of s. If f fails, the call fails and has no effect. The method
// is Update, or Get or List with a dot and the [tokens.Read], for example "Get.recent". A List has no key.
func Before(s revocation.Store, f func(method string, key revocation.Key) error) revocation.Store {
	return before{s, f}
}

type before struct {
	store revocation.Store
	f     func(method string, key revocation.Key) error
}

func (b before) Get(ctx context.Context, key revocation.Key, read tokens.Read) (revocation.Entry, error) {
	if err := b.f("Get."+string(read), key); err != nil {
		return revocation.Entry{}, err
	}
	return b.store.Get(ctx, key, read)
}

func (b before) List(ctx context.Context, read tokens.Read) ([]revocation.Entry, error) {
	if err := b.f("List."+string(read), ""); err != nil {
		return nil, err
	}
	return b.store.List(ctx, read)
}

func (b before) Update(ctx context.Context, key revocation.Key, change func(*revocation.Entry) (*revocation.Entry, error)) (*revocation.Entry, error) {
	if err := b.f("Update", key); err != nil {
		return nil, err
	}
	return b.store.Update(ctx, key, change)
}
