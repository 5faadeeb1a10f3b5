package tokens

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/loop"
	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/prometheus/client_golang/prometheus"
)

// claimGap gathers what a rack of machines that register makes of hints.
const claimGap = 200 * time.Millisecond

// A ClaimCleaner follows claims to their end. It notes on each which Node has registered, and
// releases those whose Node was deleted after that, and those whose Node never registered and
// whose token is gone. The name is free then. The token's own count stays as it is: what has
// joined and left has used the token. What a claim leaves goes when its time has come.
type ClaimCleaner struct {
	Claims Claims
	Tokens Store
	// Node gives the UID of a Node, as it is now and not from a cache; the error wraps
	// [ErrNotFound] if there is none. Nil is for where there are no Nodes: nobody but people
	// releases claims then.
	Node func(ctx context.Context, name string) (uid string, err error)
	// Nodes gives the UIDs of all Nodes by name. It may lag: nothing is released on its word
	// alone. Nil asks Node about each claim.
	Nodes func(ctx context.Context) (map[string]string, error)
	// Ready says which spell of being Ready a Node is in now, and not from a cache: a short word
	// that is another one each time the Node has become Ready, and empty while it is not. The error
	// is as with Node. Nil leaves it to others to note that a replaced Node is Ready again.
	Ready func(ctx context.Context, name string) (spell string, err error)
	// NodesChanged hints at changes of Nodes, their condition Ready included; nil never does.
	NodesChanged <-chan struct{}
	// Sweep is the longest time between two looks at all claims; zero is one minute.
	Sweep time.Duration
	// Logger is told of what is released and of failures; nil is nobody.
	Logger *slog.Logger
	// Registerer has kubejoin_claims, kubejoin_claims_released_total and the loop's metrics as
	// loop="claim-cleaner"; nil counts nothing.
	Registerer prometheus.Registerer
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Run cleans until ctx ends, and returns nil then. Several at once do no harm.
func (c ClaimCleaner) Run(ctx context.Context) error {
	if c.Claims == nil || c.Tokens == nil {
		return errors.New("claim cleaner: want Claims and Tokens")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	cleaning := &claimCleaning{
		ClaimCleaner: c,
		count:        metrics.Gauge(c.Registerer, "kubejoin_claims", "Claims of node names, by whether their Node has registered.", "registered"),
		released:     metrics.Counter(c.Registerer, "kubejoin_claims_released_total", "Claims released, by why: node_deleted or token_gone.", "reason"),
	}
	var hint <-chan struct{} // without Nodes nothing has to be done at once
	if c.Node != nil {
		hint = loop.Either(ctx, c.Claims.Watch(ctx), c.Tokens.Watch(ctx), c.NodesChanged)
	}
	return loop.Loop{
		Name:       "claim-cleaner",
		Step:       cleaning.step,
		Hint:       hint,
		Gap:        claimGap,
		Sweep:      c.Sweep,
		Logger:     c.Logger,
		Registerer: c.Registerer,
	}.Run(ctx)
}

type claimCleaning struct {
	ClaimCleaner
	count    *prometheus.GaugeVec
	released *prometheus.CounterVec
}

func (c *claimCleaning) step(ctx context.Context) (time.Time, error) {
	claims, err := c.Claims.List(ctx)
	if err != nil {
		return time.Time{}, fmt.Errorf("list claims: %w", err)
	}
	next, errs := c.forget(ctx, claims)
	claims = slices.DeleteFunc(claims, Claim.Released)
	registered := 0
	for _, claim := range claims {
		if claim.NodeUID != "" {
			registered++
		}
	}
	c.count.WithLabelValues("true").Set(float64(registered))
	c.count.WithLabelValues("false").Set(float64(len(claims) - registered))
	if len(claims) == 0 || c.Node == nil {
		return c.timer(next), errors.Join(errs...)
	}
	records, err := c.Tokens.List(ctx)
	if err != nil {
		return time.Time{}, fmt.Errorf("list tokens: %w", err)
	}
	var nodes map[string]string
	if c.Nodes != nil {
		if nodes, err = c.Nodes(ctx); err != nil {
			return time.Time{}, fmt.Errorf("list nodes: %w", err)
		}
	}
	for _, claim := range claims {
		seen, known := nodes[claim.Node], c.Nodes != nil
		at, found := slices.BinarySearchFunc(records, claim.TokenID, func(r Record, id string) int { return strings.Compare(r.Token.ID(), id) })
		// Whatever its UID: a Secret that was replaced is still what the machine joins with.
		alive := found && !records[at].Expired(c.Now())
		if alive {
			if err := c.readyAgain(ctx, claim); err != nil {
				errs = append(errs, err)
			}
		}
		switch {
		case known && claim.NodeUID != "" && seen == claim.NodeUID:
			continue
		case known && claim.NodeUID == "" && seen == "" && alive:
			if end := records[at].Expires; !end.IsZero() && (next.IsZero() || end.Before(next)) {
				next = end // nobody hints at that
			}
			continue
		}
		if err := c.clean(ctx, claim); err != nil {
			errs = append(errs, err)
		}
	}
	return c.timer(next), errors.Join(errs...)
}

// timer is when it is that time by Now, of which the timer knows nothing.
func (c *claimCleaning) timer(next time.Time) time.Time {
	if next.IsZero() {
		return next
	}
	return time.Now().Add(next.Sub(c.Now()))
}

// forget deletes what claims have left whose time has come, and says when more will be due.
func (c *claimCleaning) forget(ctx context.Context, claims []Claim) (next time.Time, errs []error) {
	for _, claim := range claims {
		switch end := claim.Past.Until; {
		case !claim.Released():
		case claim.Past.Held(c.Now()):
			if next.IsZero() || end.Before(next) {
				next = end
			}
		default:
			if err := c.Claims.Delete(ctx, claim); err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrConflict) {
				errs = append(errs, fmt.Errorf("what is left of the claim of node %s: %w", claim.Node, err))
			}
		}
	}
	return next, errs
}

// clean looks at one claim and what it is about as they are now.
func (c *claimCleaning) clean(ctx context.Context, claim Claim) error {
	uid, err := c.Node(ctx, claim.Node)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("claim of node %s: %w", claim.Node, err)
	}
	switch {
	case uid != "" && uid != claim.NodeUID:
		// Registered, or deleted and registered again by a machine that still has its
		// certificate: it is the claim's either way.
		return c.registered(ctx, claim, uid)
	case uid != "":
		return nil
	case claim.NodeUID != "":
		return c.release(ctx, claim, "node_deleted")
	}
	switch r, err := c.Tokens.Get(ctx, claim.TokenID); {
	case errors.Is(err, ErrNotFound), err == nil && r.Expired(c.Now()):
		return c.release(ctx, claim, "token_gone")
	case err != nil:
		return fmt.Errorf("claim of node %s: token %s: %w", claim.Node, claim.TokenID, err)
	}
	return nil
}

// readyAgain notes on the claim of a Node that is replaced that it has become Ready since.
func (c *claimCleaning) readyAgain(ctx context.Context, claim Claim) error {
	if c.Ready == nil || claim.Limits.Replaces.Name != claim.Node || claim.ReadyAgain {
		return nil
	}
	spell, err := c.Ready(ctx, claim.Node)
	switch {
	case errors.Is(err, ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("claim of node %s: %w", claim.Node, err)
	case spell == "" || spell == claim.ReadyBefore:
		return nil
	}
	return c.note(ctx, claim, func(now *Claim) { now.ReadyAgain = now.ReadyAgain || spell != now.ReadyBefore })
}

func (c *claimCleaning) registered(ctx context.Context, claim Claim, uid string) error {
	return c.note(ctx, claim, func(now *Claim) { now.NodeUID = uid })
}

// note changes a claim, unless it is another one by now.
func (c *claimCleaning) note(ctx context.Context, claim Claim, change func(*Claim)) error {
	_, err := c.Claims.Update(ctx, claim.Node, func(now *Claim) error {
		if !now.Same(claim) {
			return ErrConflict // its change is on the way
		}
		change(now)
		return nil
	})
	if err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrConflict) {
		return fmt.Errorf("claim of node %s: %w", claim.Node, err)
	}
	return nil
}

func (c *claimCleaning) release(ctx context.Context, claim Claim, reason string) error {
	err := Release(ctx, c.Claims, claim, claim.Leaves(c.Now(), 0))
	switch {
	case err == nil:
		c.released.WithLabelValues(reason).Inc()
		c.Logger.Info("claim released", "node", Redact(claim.Node), "token", claim.TokenID, "reason", reason)
	case errors.Is(err, ErrNotFound), errors.Is(err, ErrConflict): // its change is on the way
	default:
		return fmt.Errorf("release claim of node %s: %w", claim.Node, err)
	}
	return nil
}
