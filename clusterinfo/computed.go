package clusterinfo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// ErrNotFound is wrapped by what reads cluster-info where there is none.
var ErrNotFound = errors.New("no cluster-info")

// Computed is a cluster-info with no Kubernetes to keep it in: signed anew, when it is asked
// for, with the tokens that are alive then. It may be used side by side.
type Computed struct {
	// Tokens sign. They should be at hand: every question may list them.
	Tokens tokens.Store
	// Kubeconfig is what is signed; see [Kubeconfig].
	Kubeconfig []byte
	// Now is the clock; nil is time.Now.
	Now func() time.Time

	mu       sync.Mutex
	document Document
}

// Data is the data of the ConfigMap at this time, in a map of its own.
func (c *Computed) Data(ctx context.Context) (map[string]string, error) {
	document, err := c.compute(ctx)
	if err != nil {
		return nil, err
	}
	return document.Data(), nil
}

// WaitSigned returns nil if the token signs now. There is nobody to wait for: an error says
// that it does not.
func (c *Computed) WaitSigned(ctx context.Context, t tokens.Token) error {
	data, err := c.Data(ctx)
	if err != nil {
		return err
	}
	jws, found := data[SignatureKey(t.ID())]
	if !found {
		return fmt.Errorf("token %s is not in the store, has expired or is not for signing", t.ID())
	}
	return Verify(c.Kubeconfig, jws, t)
}

func (c *Computed) compute(ctx context.Context) (Document, error) {
	records, err := c.Tokens.List(ctx)
	if err != nil {
		return Document{}, fmt.Errorf("tokens for cluster-info: %w", err)
	}
	now := time.Now
	if c.Now != nil {
		now = c.Now
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	document, err := c.document.Update(c.Kubeconfig, records, now())
	if err != nil {
		return Document{}, err
	}
	c.document = document
	return document, nil
}
