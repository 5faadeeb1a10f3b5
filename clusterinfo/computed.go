package clusterinfo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

var (
	// ErrNotFound is wrapped by what reads cluster-info where there is none.
	ErrNotFound = errors.New("no cluster-info")
	// ErrUnsigned is wrapped when a token does not sign cluster-info and will not.
	ErrUnsigned = errors.New("not signed")
)

const (
	// mostRest bounds the rest after a computation: a store that has let it wait is no reason
	// to let others wait.
	mostRest = 50 * time.Millisecond
	// mostEarly is how many tokens that the list has not shown yet are remembered until it is
	// looked at, if nobody asks for cluster-info.
	mostEarly = 1000
)

// Computed is a cluster-info of any size, kept nowhere: signed, when it is asked for, with the
// tokens that are alive then. What was computed is kept for as long as it holds, so that a
// question costs next to nothing while no token comes or goes. It may be used side by side.
type Computed struct {
	// Tokens sign. They are listed after each change that its Watch hints at.
	Tokens tokens.Store
	// Lag is how far the list of Tokens usually is behind: a token that WaitSigned has found
	// and the list does not have is asked for again after so long, to see whether it was
	// deleted. Zero is for a store whose List never lags.
	Lag time.Duration
	// Kubeconfig is what is signed; see [Kubeconfig].
	Kubeconfig []byte
	// Follow, unless it is nil, gives what is signed in place of Kubeconfig. It is asked each
	// time and should have it at hand. Its errors are returned, and so is [ErrKubeconfig] in
	// place of a JSON with a kubeconfig that should not be passed on. The bytes are not changed.
	Follow func(context.Context) ([]byte, error)
	// Now is the clock; nil is time.Now.
	Now func() time.Time

	mu      sync.Mutex
	turn    chan struct{} // holds a value while somebody computes
	hint    <-chan struct{}
	changes int // hints taken, and changes known otherwise
	last    *computation
	early   map[string]unlisted

	rest time.Time // before which nobody computes; of the holder of the turn
}

// A computation is one Document and what it was made of.
type computation struct {
	document Document
	at       time.Time
	until    time.Time // when to look again in any case; zero is never
	changes  int       // known when the tokens were listed
	data     func() map[string]string
	json     []byte
	jsonErr  error
}

// unlisted is a token that is known to be in the store before its list has it.
type unlisted struct {
	record tokens.Record
	seen   time.Time
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
	return now.json, now.jsonErr
}

// Config is what is signed at this time, as Kubeconfig or Follow has it. The bytes are shared and
// must not be changed.
func (c *Computed) Config(ctx context.Context) (kubeconfig []byte, err error) {
	return c.kubeconfig(ctx)
}

// WaitSigned returns what is signed if the token signs it now; Data and JSON have the signature
// then. There is nobody to wait for: an error that it does not wraps [ErrUnsigned] or
// [ErrSignature]. The bytes are shared and must not be changed.
func (c *Computed) WaitSigned(ctx context.Context, t tokens.Token) (kubeconfig []byte, err error) {
	if kubeconfig, err = c.kubeconfig(ctx); err != nil {
		return nil, err
	}
	// One token is looked at, and not the list: with thousands of them a new one must not cost
	// a pass over all.
	record, err := c.Tokens.Get(ctx, t.ID())
	switch {
	case errors.Is(err, tokens.ErrNotFound), err == nil && !record.Signs(c.now()):
		return nil, fmt.Errorf("%w: token %s is not in the store, has expired or is not for signing", ErrUnsigned, t.ID())
	case err != nil:
		return nil, fmt.Errorf("token for cluster-info: %w", err)
	case !record.Token.Equal(t):
		return nil, fmt.Errorf("cluster-info as token %s sees it: %w", t, ErrSignature)
	}
	if c.addStored(record) > mostEarly {
		_, err = c.compute(ctx)
	}
	return kubeconfig, err
}

// addStored has a record that is in the store now in every computation from here on, and says how
// many such there are.
func (c *Computed) addStored(r tokens.Record) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last != nil && c.last.document.signedBy(r.Token) {
		return 0
	}
	c.changes++ // the hint may be on its way still
	if c.early == nil {
		c.early = map[string]unlisted{}
	}
	c.early[r.Token.ID()] = unlisted{r, c.now()}
	return len(c.early)
}

// compute gives a computation that is as new as the question: the latest one if it still holds,
// or another one. Of many that ask at once one computes, and whoever asked before it began takes
// what it finds, also if there have been more changes since.
func (c *Computed) compute(ctx context.Context) (*computation, error) {
	kubeconfig, err := c.kubeconfig(ctx)
	if err != nil {
		return nil, err
	}
	asked := c.known()
	if last := c.since(asked, kubeconfig); last != nil {
		return last, nil
	}
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return nil, fmt.Errorf("tokens for cluster-info: %w", ctx.Err())
	}
	if last := c.since(asked, kubeconfig); last != nil {
		return last, nil
	}
	// Where thousands of tokens come and go and somebody asks without end, more of them share an
	// answer, and it takes half of the time of a processor at most.
	if err := pause(ctx, time.Until(c.rest)); err != nil {
		return nil, fmt.Errorf("tokens for cluster-info: %w", err)
	}
	began := time.Now()
	defer func() { c.rest = time.Now().Add(min(time.Since(began), mostRest)) }()
	// Also asked for again: there may be another one since.
	if kubeconfig, err = c.kubeconfig(ctx); err != nil {
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

// next computes; only the holder of the turn does.
func (c *Computed) next(ctx context.Context, kubeconfig []byte) (*computation, error) {
	n := &computation{at: c.now(), changes: c.known()}
	records, err := c.Tokens.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("tokens for cluster-info: %w", err)
	}
	all := [][]tokens.Record{records, nil} // thousands are not copied for a few
	all[1], n.until = c.missing(ctx, records, n.at)
	var last computation
	if c.last != nil {
		last = *c.last
	}
	if n.document, err = last.document.update(kubeconfig, all, n.at); err != nil {
		return nil, err
	}
	if next := n.document.Next(); n.until.IsZero() || !next.IsZero() && next.Before(n.until) {
		n.until = next
	}
	if n.document.sameContent(last.document) { // as when expired tokens are deleted
		n.data, n.json, n.jsonErr = last.data, last.json, last.jsonErr
		return n, nil
	}
	n.data = sync.OnceValue(n.document.Data)
	if c.Follow != nil {
		if last.document.kubeconfig == n.document.kubeconfig {
			n.jsonErr = last.jsonErr
		} else if _, _, err := ParseKubeconfig(kubeconfig); err != nil {
			n.jsonErr = fmt.Errorf("cluster-info: %w", err)
		}
	}
	if n.jsonErr == nil {
		n.json, n.jsonErr = n.document.json(all)
	}
	return n, nil
}

// missing gives the tokens that a list is too old to have, and says when they are to be looked at
// again.
func (c *Computed) missing(ctx context.Context, list []tokens.Record, now time.Time) (records []tokens.Record, again time.Time) {
	c.mu.Lock()
	var missing []unlisted
	for id, e := range c.early {
		at, found := slices.BinarySearchFunc(list, id, func(r tokens.Record, id string) int { return strings.Compare(r.Token.ID(), id) })
		if found && list[at].UID == e.record.UID {
			delete(c.early, id)
		} else {
			missing = append(missing, e)
		}
	}
	c.mu.Unlock()
	for _, e := range missing {
		if now.Sub(e.seen) >= c.Lag && !c.lookAgain(ctx, &e, now) {
			continue
		}
		records = append(records, e.record)
		if c.Lag <= 0 {
			continue // it came after the list: what becomes of it is a change that will be known
		}
		if at := e.seen.Add(c.Lag); again.IsZero() || at.Before(again) {
			again = at
		}
	}
	return records, again
}

// lookAgain reports whether an early token is still in the store, or may be.
func (c *Computed) lookAgain(ctx context.Context, e *unlisted, now time.Time) bool {
	id := e.record.Token.ID()
	r, err := c.Tokens.Get(ctx, id)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case errors.Is(err, tokens.ErrNotFound), errors.Is(err, tokens.ErrMalformed):
		delete(c.early, id)
		return false
	case err == nil:
		e.record = r
	}
	e.seen = now
	c.early[id] = *e
	return true
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

// since is the latest computation if it is of that kubeconfig, has so many changes in it and the
// time has not ended it, be it by an expiry or because it was set back; otherwise nil.
func (c *Computed) since(changes int, kubeconfig []byte) *computation {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil || c.last.changes < changes || c.last.document.kubeconfig != string(kubeconfig) {
		return nil
	}
	now, until := c.now(), c.last.until
	if now.Before(c.last.at) || !until.IsZero() && !now.Before(until) {
		return nil
	}
	return c.last
}

func (c *Computed) kubeconfig(ctx context.Context) ([]byte, error) {
	kubeconfig := c.Kubeconfig
	if c.Follow != nil {
		var err error
		if kubeconfig, err = c.Follow(ctx); err != nil {
			return nil, err
		}
	}
	if len(kubeconfig) == 0 {
		return nil, ErrNoKubeconfig
	}
	return kubeconfig, nil
}

func (c *Computed) now() time.Time {
	if c.Now != nil {
		return c.Now()
	}
	return time.Now()
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
