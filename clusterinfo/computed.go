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

// Computed is a cluster-info with no Kubernetes to keep it in: signed, when it is asked for,
// with the tokens that are alive then. What was computed is kept for as long as it holds, so
// that a question costs next to nothing while no token comes or goes. It may be used side by
// side.
type Computed struct {
	// Tokens sign. They are listed after each change that its Watch hints at.
	Tokens tokens.Store
	// Kubeconfig is what is signed; see [Kubeconfig].
	Kubeconfig []byte
	// Now is the clock; nil is time.Now.
	Now func() time.Time

	mu      sync.Mutex
	turn    chan struct{} // holds a value while somebody computes
	hint    <-chan struct{}
	changes int // hints taken, and changes known otherwise
	last    *computation
}

// A computation is one Document and what it was made of.
type computation struct {
	document Document
	at       time.Time
	changes  int // known when the tokens were listed
	data     func() map[string]string
	json     func() ([]byte, error)
}

// Data is the data of the ConfigMap at this time. The map is shared and must not be changed.
func (c *Computed) Data(ctx context.Context) (map[string]string, error) {
	now, err := c.compute(ctx)
	if err != nil {
		return nil, err
	}
	return now.data(), nil
}

// JSON is the ConfigMap at this time as [MarshalConfigMap] gives it. The bytes are shared and
// must not be changed.
func (c *Computed) JSON(ctx context.Context) ([]byte, error) {
	now, err := c.compute(ctx)
	if err != nil {
		return nil, err
	}
	return now.json()
}

// WaitSigned returns what is signed if the token signs it now; Data and JSON have the signature
// then. There is nobody to wait for: an error says that it does not. The bytes are shared and
// must not be changed.
func (c *Computed) WaitSigned(ctx context.Context, t tokens.Token) (kubeconfig []byte, err error) {
	if len(c.Kubeconfig) == 0 {
		return nil, ErrNoKubeconfig
	}
	// One token is looked at, and not the list: with thousands of them a new one must not cost
	// a pass over all.
	record, err := c.Tokens.Get(ctx, t.ID())
	switch {
	case errors.Is(err, tokens.ErrNotFound), err == nil && !record.Signs(c.now()):
		return nil, fmt.Errorf("token %s is not in the store, has expired or is not for signing", t.ID())
	case err != nil:
		return nil, fmt.Errorf("token for cluster-info: %w", err)
	case !record.Token.Equal(t):
		return nil, fmt.Errorf("cluster-info as token %s sees it: %w", t, ErrSignature)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last != nil && !c.last.document.signedBy(t) {
		c.changes++ // the hint may be on its way still
	}
	return c.Kubeconfig, nil
}

// compute gives a computation that is as new as the question: the latest one if it still holds,
// or another one. Of many that ask at once one computes, and whoever asked before it began takes
// what it finds, also if there have been more changes since.
func (c *Computed) compute(ctx context.Context) (*computation, error) {
	asked := c.known()
	if last := c.since(asked); last != nil {
		return last, nil
	}
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return nil, fmt.Errorf("tokens for cluster-info: %w", ctx.Err())
	}
	if last := c.since(asked); last != nil {
		return last, nil
	}
	next := &computation{at: c.now(), changes: c.known()}
	records, err := c.Tokens.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("tokens for cluster-info: %w", err)
	}
	var before Document
	if c.last != nil { // written by the holder of the turn alone
		before = c.last.document
	}
	if next.document, err = before.Update(c.Kubeconfig, records, next.at); err != nil {
		return nil, err
	}
	next.data = sync.OnceValue(next.document.Data)
	next.json = sync.OnceValues(func() ([]byte, error) { return MarshalConfigMap(next.data()) })
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = next
	return next, nil
}

// known is the number of changes known now.
func (c *Computed) known() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.turn == nil {
		c.turn = make(chan struct{}, 1)
		c.hint = c.Tokens.Watch(context.Background()) // for as long as the store lives
	}
	select {
	case <-c.hint:
		c.changes++
	default:
	}
	return c.changes
}

// since is the latest computation if it has so many changes in it and the time has not ended it,
// be it by an expiry or because it was set back; otherwise nil.
func (c *Computed) since(changes int) *computation {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil || c.last.changes < changes {
		return nil
	}
	now, next := c.now(), c.last.document.Next()
	if now.Before(c.last.at) || !next.IsZero() && !now.Before(next) {
		return nil
	}
	return c.last
}

func (c *Computed) now() time.Time {
	if c.Now != nil {
		return c.Now()
	}
	return time.Now()
}
