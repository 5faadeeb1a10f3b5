package cleaner

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
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/prometheus/client_golang/prometheus"
)

// claimsGap merges the hints of many machines that register at the same time.
const claimsGap = 200 * time.Millisecond

// Claims updates claims until their node names are free again. It records on each claim which Node has registered. It
// releases a claim if its Node registered and was deleted, or if no Node registered and the token was deleted or has
// expired. The count of the token stays the same, because a machine that joined and left has used the token. Claims deletes
// a released claim when its Past and its Identity are over. An Identity ends when its Node is deleted, or RejoinWindow
// after its last certificate has expired.
type Claims struct {
	Store  tokens.Claims
	Tokens tokens.Store
	// Node returns the UID of a Node, read live and not from a cache. The error wraps [tokens.ErrNotFound] if there is no
	// such Node. Nil means that Claims has no access to Nodes. In this case only people release claims.
	Node func(ctx context.Context, name string) (uid string, err error)
	// Nodes returns the UIDs of all Nodes by name. It may lag, because Claims calls Node before it
	// releases a claim. With nil, Claims calls Node for every claim.
	Nodes func(ctx context.Context) (map[string]string, error)
	// Ready identifies the Ready period of a Node, read live and not from a cache. It returns a short word that differs
	// each time the Node becomes Ready, or an empty string while the Node is not Ready. It returns the same errors as Node.
	// With nil, Claims does not record that a replaced Node is Ready again.
	Ready func(ctx context.Context, name string) (period string, err error)
	// RejoinWindow is how long a node may rejoin after its certificate has expired, see [tokens.Identity]. Zero means that
	// nodes never rejoin.
	RejoinWindow time.Duration
	// Properties sets [tokens.NodeProperties]. Nil sets none. The write that records a Node follows, or sets Waits on the
	// claim until its Node has them. So another leader sets them if this one stops, and nobody sets them later.
	Properties Properties
	// NodesChanged sends hints until ctx ends, one after a Node or its Ready condition changes. It may be nil.
	NodesChanged func(ctx context.Context) <-chan struct{}
	// Sweep is the longest time between two lists of all claims; zero means one minute.
	Sweep time.Duration
	// Logger logs releases and failures; nil logs nothing.
	Logger *slog.Logger
	// Registerer gets kubejoin_claims, kubejoin_claims_released_total and the metrics of the loop with
	// loop="claim-cleaner"; nil registers no metrics.
	Registerer prometheus.Registerer
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Run updates and releases claims until ctx ends, then returns nil. Several may run on one Store.
func (c Claims) Run(ctx context.Context) error {
	if c.Store == nil || c.Tokens == nil {
		return errors.New("claim cleaner: want Store and Tokens")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	cleaning := &claimLoop{
		Claims:   c,
		count:    metrics.Gauge(c.Registerer, "kubejoin_claims", "Claims of node names, by whether the Node has registered.", "registered"),
		released: metrics.Counter(c.Registerer, "kubejoin_claims_released_total", "Claims released, by reason: node_deleted, token_gone or left.", "reason"),
	}
	var hint <-chan struct{} // without Nodes nothing is urgent
	if c.Node != nil {
		var nodes <-chan struct{}
		if c.NodesChanged != nil {
			nodes = c.NodesChanged(ctx)
		}
		hint = loop.Either(ctx, c.Store.Watch(ctx), c.Tokens.Watch(ctx), nodes)
	}
	return loop.Loop{
		Name:       "claim-cleaner",
		Step:       cleaning.step,
		Hint:       hint,
		Gap:        claimsGap,
		Sweep:      c.Sweep,
		Logger:     c.Logger,
		Registerer: c.Registerer,
	}.Run(ctx)
}

// claimLoop is a running Claims with its metrics.
type claimLoop struct {
	Claims
	count    *prometheus.GaugeVec
	released *prometheus.CounterVec
	// returned has, by the name of a claim, the UID of the Node that has what the claim or its Past asks for. A new leader starts
	// with no entries, and looks at the Nodes of released claims again.
	returned map[string]string
}

func (c *claimLoop) step(ctx context.Context) (time.Time, error) {
	claims, err := c.Store.List(ctx)
	if err != nil {
		return time.Time{}, fmt.Errorf("list claims: %w", err)
	}
	next, errs := c.forget(ctx, claims)
	released := slices.DeleteFunc(slices.Clone(claims), func(claim tokens.Claim) bool { return !claim.Released() })
	identified := slices.DeleteFunc(slices.Clone(released), func(claim tokens.Claim) bool { return !c.identifies(claim) })
	claims = slices.DeleteFunc(claims, tokens.Claim.Released)
	registered := 0
	for _, claim := range claims {
		if claim.NodeUID != "" {
			registered++
		}
	}
	c.count.WithLabelValues("true").Set(float64(registered))
	c.count.WithLabelValues("false").Set(float64(len(claims) - registered))
	if len(claims)+len(identified) == 0 && c.Properties == nil || c.Node == nil {
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
	if c.Properties != nil {
		errs = append(errs, c.setProperties(ctx, released, claims, nodes)...)
	}
	for _, claim := range identified {
		if c.Nodes == nil || nodes[claim.Node] == "" != (claim.Identity.NodeUID == "") {
			if err := c.cleanIdentity(ctx, claim); err != nil {
				errs = append(errs, err)
			}
		}
	}
	for _, claim := range claims {
		seen, known := nodes[claim.Node], c.Nodes != nil
		at, found := slices.BinarySearchFunc(records, claim.TokenID, func(r tokens.Record, id string) int { return strings.Compare(r.Token.ID(), id) })
		// The UID of the token need not match: if the Secret was deleted and created again, the machine can still join with
		// the token.
		alive := found && !records[at].Expired(c.Now()) && !c.Store.Ended(records[at], claim)
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
				next = end // no hint arrives when a token expires
			}
			continue
		}
		if err := c.clean(ctx, claim); err != nil {
			errs = append(errs, err)
		}
	}
	return c.timer(next), errors.Join(errs...)
}

// timer converts a time of the clock c.Now to one of time.Now, which the timer of the loop follows.
func (c *claimLoop) timer(next time.Time) time.Time {
	if next.IsZero() {
		return next
	}
	return time.Now().Add(next.Sub(c.Now()))
}

// unregistered is how long a released claim keeps its Identity if no Node registers. A machine registers within seconds.
// Without this limit, a stolen token without limits could fill the store.
const unregistered = time.Hour

// identifies reports whether the Identity of a claim has not ended.
func (c *claimLoop) identifies(claim tokens.Claim) bool { return c.identityEnd(claim).After(c.Now()) }

// identityEnd returns when the Identity of a released claim ends.
func (c *claimLoop) identityEnd(claim tokens.Claim) time.Time {
	if c.RejoinWindow <= 0 || claim.Identity.IsZero() {
		return time.Time{}
	}
	end := claim.Identity.NotAfter.Add(c.RejoinWindow)
	if soon := claim.Created.Add(unregistered); c.Node != nil && claim.Identity.NodeUID == "" && soon.Before(end) {
		return soon
	}
	return end
}

// forget deletes the released claims whose Past and Identity are over. It returns when it can delete the next claim.
func (c *claimLoop) forget(ctx context.Context, claims []tokens.Claim) (next time.Time, errs []error) {
	for _, claim := range claims {
		end := claim.Past.Until
		if identityEnd := c.identityEnd(claim); identityEnd.After(end) {
			end = identityEnd
		}
		switch {
		case !claim.Released(), !claim.Machine.IsZero() && claim.Equal(claim.AfterRelease(tokens.ReleasedClaim{})): // only the machine remains
		case end.After(c.Now()):
			if next.IsZero() || end.Before(next) {
				next = end
			}
		default:
			if err := tokens.Release(ctx, c.Store, claim, tokens.ReleasedClaim{}); err != nil && !errors.Is(err, tokens.ErrNotFound) && !errors.Is(err, tokens.ErrConflict) {
				errs = append(errs, fmt.Errorf("delete released claim of node %s: %w", claim.Node, err))
			}
		}
	}
	return next, errs
}

// clean updates or releases one claim. It reads the Node and the token live, because caches may lag.
func (c *claimLoop) clean(ctx context.Context, claim tokens.Claim) error {
	uid, done, err := c.node(ctx, claim)
	if err != nil && !errors.Is(err, tokens.ErrNotFound) {
		return fmt.Errorf("claim of node %s: %w", claim.Node, err)
	}
	switch {
	case err == nil && !done && claim.NodeUID != "" && !claim.Waits: // so that the Node does not wait for ReadyAfter again
		return nil
	case uid != "" && uid != claim.NodeUID:
		// Either the Node has registered for the first time, or a machine with a certificate of the claim has registered it
		// again. In both cases it is the Node of the claim.
		return c.registered(ctx, claim, uid, !done)
	case uid != "":
		return nil
	}
	reason := "node_deleted"
	if claim.NodeUID == "" {
		reason = "token_gone"
		switch r, err := c.Tokens.Get(ctx, claim.TokenID, tokens.Live); {
		case errors.Is(err, tokens.ErrNotFound):
		case err != nil:
			return fmt.Errorf("claim of node %s: token %s: %w", claim.Node, claim.TokenID, err)
		case c.Store.Ended(r, claim):
			// The token admits nobody with this claim: a release was interrupted, or a slow request wrote the claim after
			// the release.
			reason = "left"
		case !r.Expired(c.Now()):
			return nil
		}
	}
	return c.release(ctx, claim, reason)
}

// cleanIdentity stores which Node the Identity of a released claim belongs to, or ends the Identity if that Node
// was deleted. It reads the Node live.
func (c *claimLoop) cleanIdentity(ctx context.Context, claim tokens.Claim) error {
	uid, err := c.Node(ctx, claim.Node)
	switch {
	case errors.Is(err, tokens.ErrNotFound):
		if claim.Identity.NodeUID == "" {
			return nil
		}
		err = tokens.Release(ctx, c.Store, claim, claim.PastAfterRelease(c.Now(), 0))
		if err != nil && !errors.Is(err, tokens.ErrNotFound) && !errors.Is(err, tokens.ErrConflict) {
			return fmt.Errorf("end identity of node %s: %w", claim.Node, err)
		}
		return nil
	case err != nil:
		return fmt.Errorf("claim of node %s: %w", claim.Node, err)
	}
	return c.note(ctx, claim, func(now *tokens.Claim) { identify(now, uid) })
}

// identify stores the Node that the Identity of a claim belongs to, unless the Identity has a Node already. A Node that was
// deleted and created again is another Node.
func identify(claim *tokens.Claim, uid string) {
	if !claim.Identity.IsZero() && claim.Identity.NodeUID == "" {
		claim.Identity.NodeUID = uid
	}
}

// readyAgain sets ReadyAgain on the claim of a replaced Node if the Node has become Ready again.
func (c *claimLoop) readyAgain(ctx context.Context, claim tokens.Claim) error {
	if c.Ready == nil || claim.Limits.Replaces.Name != claim.Node || claim.ReadyAgain {
		return nil
	}
	period, err := c.Ready(ctx, claim.Node)
	switch {
	case errors.Is(err, tokens.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("claim of node %s: %w", claim.Node, err)
	case period == "" || period == claim.ReadyBefore:
		return nil
	}
	return c.note(ctx, claim, func(now *tokens.Claim) { now.ReadyAgain = true })
}

func (c *claimLoop) registered(ctx context.Context, claim tokens.Claim, uid string, waits bool) error {
	return c.note(ctx, claim, func(now *tokens.Claim) {
		now.NodeUID, now.Waits = uid, waits
		identify(now, uid)
	})
}

// note updates a claim. If the claim has changed meanwhile, note does nothing, because a hint about that change starts
// another step.
func (c *claimLoop) note(ctx context.Context, claim tokens.Claim, change func(*tokens.Claim)) error {
	after := claim.Clone()
	change(&after)
	if _, err := tokens.CommitClaim(ctx, c.Store, claim, after); err != nil && !errors.Is(err, tokens.ErrNotFound) && !errors.Is(err, tokens.ErrConflict) {
		return fmt.Errorf("claim of node %s: %w", claim.Node, err)
	}
	return nil
}

func (c *claimLoop) release(ctx context.Context, claim tokens.Claim, reason string) error {
	err := tokens.Release(ctx, c.Store, claim, claim.PastAfterRelease(c.Now(), 0))
	switch {
	case err == nil:
		c.released.WithLabelValues(reason).Inc()
		c.Logger.Info("claim released", "node", tokens.Redact(claim.Node), "token", claim.TokenID, "reason", reason)
	case errors.Is(err, tokens.ErrNotFound), errors.Is(err, tokens.ErrConflict): // a hint about the change starts another step
	default:
		return fmt.Errorf("release claim of node %s: %w", claim.Node, err)
	}
	return nil
}
