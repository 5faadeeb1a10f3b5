package clusterinfo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/batch"
	"github.com/kubejoin/kubejoin/tokens"
)

var (
	// ErrNotFound means that there is no cluster-info.
	ErrNotFound = errors.New("no cluster-info")
	// ErrUnsigned means that a token does not sign cluster-info and will not.
	ErrUnsigned = errors.New("not signed")
)

// mostRest limits the pause after a computation. Otherwise a slow store would make later callers wait longer.
const mostRest = 50 * time.Millisecond

// Computed is a cluster-info of unlimited size that is not stored. Each request signs it with the tokens that
// are live. The result is cached while it is valid, so a request costs almost nothing while no token changes.
// Its methods may be called concurrently.
type Computed struct {
	// Tokens stores the tokens that sign. Computed lists them again after each hint from Watch.
	Tokens tokens.Store
	// Kubeconfig is the document to sign; see [Kubeconfig].
	Kubeconfig []byte
	// Follow, if set, returns the kubeconfig to sign in place of Kubeconfig. Computed calls it for each request
	// and returns its errors. It should not block. JSON returns [ErrKubeconfig] for a kubeconfig that must not
	// be passed on. Computed does not change the returned bytes.
	Follow func(context.Context) ([]byte, error)
	// Spent finds the tokens whose signatures are not needed any more. With nil, all live tokens sign.
	Spent *Spent
	// Now is the clock; nil is time.Now.
	Now func() time.Time

	mu      sync.Mutex
	hint    <-chan struct{}
	changes int // number of known changes: hints received, and tokens that WaitSigned found
	last    *computation

	calls batch.Queue[struct{}, *result]
	rest  time.Time // no computation before this time; used only by functions of calls
}

// A result is what compute returns.
type result struct {
	now *computation
	err error
}

// A computation is one Document and its input.
type computation struct {
	document Document
	retired  Retired
	at       time.Time
	until    time.Time // when the Document may change; zero: never
	changes  int       // known changes when the tokens were listed
	data     func() map[string]string
	json     []byte
	jsonErr  error
}

// Data returns the data of the ConfigMap at this time. The map is shared and must not be changed.
func (c *Computed) Data(ctx context.Context) (map[string]string, error) {
	now, err := c.compute(ctx)
	if err != nil {
		return nil, err
	}
	return now.data(), nil
}

// JSON returns the ConfigMap at this time in the form of [MarshalConfigMap]. The bytes are shared and must
// not be changed.
func (c *Computed) JSON(ctx context.Context) ([]byte, error) {
	now, err := c.compute(ctx)
	if err != nil {
		return nil, err
	}
	return now.json, now.jsonErr
}

// Config returns the kubeconfig that is signed at this time, from Kubeconfig or Follow. The bytes are
// shared and must not be changed.
func (c *Computed) Config(ctx context.Context) (kubeconfig []byte, err error) {
	kubeconfig = c.Kubeconfig
	if c.Follow != nil {
		if kubeconfig, err = c.Follow(ctx); err != nil {
			return nil, err
		}
	}
	if len(kubeconfig) == 0 {
		return nil, ErrNoKubeconfig
	}
	return kubeconfig, nil
}

// WaitSigned returns the signed kubeconfig if the token signs it now; Data and JSON then have the signature. It
// waits for the list of Tokens, which may lag, but not for a signer. If the token does not sign, the error
// wraps [ErrUnsigned] or [ErrSignature]. The bytes are shared and must not be changed.
func (c *Computed) WaitSigned(ctx context.Context, t tokens.Token) (kubeconfig []byte, err error) {
	if kubeconfig, err = c.Config(ctx); err != nil {
		return nil, err
	}
	// Read this token only. With thousands of tokens, a new one must not cost a pass over the list.
	record, err := c.Tokens.Get(ctx, t.ID(), tokens.Live)
	switch {
	case errors.Is(err, tokens.ErrNotFound), err == nil && !record.Signs(c.now()):
		return nil, fmt.Errorf("%w: token %s does not exist, has expired or has no usage signing", ErrUnsigned, t.ID())
	case err != nil:
		return nil, fmt.Errorf("token for cluster-info: %w", err)
	case !record.Token.Equal(t):
		return nil, fmt.Errorf("cluster-info for token %s: %w", t, ErrSignature)
	case c.retires(&record):
		return nil, fmt.Errorf("%w: token %s is spent", ErrUnsigned, t.ID())
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for changed := c.Tokens.Watch(ctx); ; {
		if listed, err := c.Tokens.Get(ctx, t.ID(), tokens.Cached); err == nil && listed.Token.Equal(t) && listed.Signs(c.now()) {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("token %s is not in the list of tokens yet: %w", t, context.Cause(ctx))
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes++ // the hint may not have arrived yet
	return kubeconfig, nil
}

// retires reports whether the cached computation omits the signature by a token because the token needs none.
func (c *Computed) retires(r *tokens.Record) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last != nil && c.last.retired.Has(r)
}

// compute returns a computation that contains all changes known when it was called: the cached one or a new
// one. Callers that wait share it.
func (c *Computed) compute(ctx context.Context) (*computation, error) {
	if now, err := c.cached(ctx); now != nil || err != nil {
		return now, err
	}
	var r result
	if err := c.calls.Do(ctx, struct{}{}, &r, func(ctx context.Context, waiting []*result) {
		now, err := c.cached(ctx) // the previous call may have included all changes
		if now == nil && err == nil {
			now, err = c.renew(ctx)
		}
		for _, r := range waiting {
			*r = result{now, err}
		}
	}); err != nil {
		return nil, fmt.Errorf("tokens for cluster-info: %w", err)
	}
	return r.now, r.err
}

// renew replaces the cached computation. Calls do not overlap.
func (c *Computed) renew(ctx context.Context) (*computation, error) {
	// If tokens change and requests arrive all the time, the pause lets more requests share one
	// computation. It also limits computations of up to mostRest to half of a processor's time.
	time.Sleep(time.Until(c.rest))
	began := time.Now()
	defer func() { c.rest = time.Now().Add(min(time.Since(began), mostRest)) }()
	kubeconfig, err := c.Config(ctx) // it may have changed during the pause
	if err != nil {
		return nil, err
	}
	next, err := c.next(ctx, kubeconfig)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = next
	return next, nil
}

// next computes. Only renew calls it.
func (c *Computed) next(ctx context.Context, kubeconfig []byte) (*computation, error) {
	n := &computation{at: c.now(), changes: c.known()}
	records, err := c.Tokens.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("tokens for cluster-info: %w", err)
	}
	var look time.Time
	n.retired, look = c.retire(ctx, records, n.at)
	var last Document
	if c.last != nil {
		last = c.last.document
	}
	if n.document, err = last.Update(kubeconfig, records, n.at); err != nil {
		return nil, err
	}
	if n.until = n.document.Next(); n.until.IsZero() || !look.IsZero() && look.Before(n.until) {
		n.until = look
	}
	n.data = sync.OnceValue(n.document.Data)
	if c.Follow != nil {
		if _, _, err := ParseKubeconfig(kubeconfig); err != nil {
			n.jsonErr = fmt.Errorf("cluster-info: %w", err)
			return n, nil
		}
	}
	n.json, n.jsonErr = n.document.json(records)
	return n, nil
}

// retire removes the usage signing from the tokens that need no signature. It returns when to search for such tokens
// again; zero if no token is spent. If the search fails, tokens continue to sign until the next search.
func (c *Computed) retire(ctx context.Context, records []tokens.Record, now time.Time) (retired Retired, again time.Time) {
	if c.Spent == nil || !slices.ContainsFunc(records, tokens.Record.Spent) {
		return Retired{}, time.Time{}
	}
	if c.last != nil {
		retired = c.last.retired
	}
	if retired.Due(now) {
		all := make([]*tokens.Record, len(records))
		for i := range records {
			all[i] = &records[i]
		}
		retired, _ = c.Spent.Look(ctx, retired, all, now)
	}
	for i := range records {
		if r := &records[i]; retired.Has(r) {
			r.Signing = false
		}
	}
	return retired, retired.at.Add(retireEvery)
}

// known returns the number of changes known now.
func (c *Computed) known() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hint == nil {
		c.hint = c.Tokens.Watch(context.Background()) // until the store is closed
	}
	select {
	case <-c.hint:
		c.changes++
	default:
	}
	return c.changes
}

// cached returns the latest computation if it has the current kubeconfig, contains all known changes and is still valid
// at this time; otherwise nil. It is invalid after a token has expired, when a search for spent tokens is due, and if
// the clock was set back.
func (c *Computed) cached(ctx context.Context) (*computation, error) {
	kubeconfig, err := c.Config(ctx)
	if err != nil {
		return nil, err
	}
	changes := c.known()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil || c.last.changes < changes || c.last.document.kubeconfig != string(kubeconfig) {
		return nil, nil
	}
	now, until := c.now(), c.last.until
	if now.Before(c.last.at) || !until.IsZero() && !now.Before(until) {
		return nil, nil
	}
	return c.last, nil
}

func (c *Computed) now() time.Time {
	if c.Now != nil {
		return c.Now()
	}
	return time.Now()
}
