package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/tokens"
)

// attempts is how often a change is tried while others change the same claim or token.
const attempts = 10

// countTimeout is the timeout for writing a token's count. Other requests with the token wait for that write.
const countTimeout = 30 * time.Second

// A slotRequest is one request for a node slot of a token. Requests with the same token at the same time are counted
// together. Otherwise each machine of a rack would conflict with every other machine, and retry.
type slotRequest struct {
	request approval.Request
	node    string

	record   tokens.Record // the token that claims the name; zero before the first attempt
	had      bool          // the token had a claim on the name, and gets no other one
	exists   bool          // the name could not be claimed, because it had a claim
	replaces bool          // the token replaces the Node that has the name now
	ready    string        // the period of being Ready that this Node is in, as Nodes.Ready returns it
	claim    tokens.Claim
	err      error
}

var (
	// errNoNodeLimit means that the token does not limit the number of nodes.
	errNoNodeLimit = errors.New("the token has no node limit")
	// errUnchanged ends an update that has nothing to change.
	errUnchanged = errors.New("nothing to change")
)

// admitToken checks a request of a bootstrap token and, if the token has limits, claims the name.
func (n *Nodes) admitToken(ctx context.Context, r approval.Request, id, node string, a *Admitted) error {
	if n.Tokens == nil || n.Claims == nil {
		return approval.RefuseFor(ReasonTokenRevoked, "this server does not accept bootstrap tokens")
	}
	// The cached record only selects where to start.
	record, err := n.Tokens.Find(ctx, id)
	counts := err == nil && record.Limits.NodeLimit() > 0
	if err == nil && record.Limits.IsZero() {
		if allows, err := n.recentlyAllows(ctx, id, r, node); err != nil {
			return err
		} else if allows {
			return n.checkNameFree(ctx, node)
		}
	}
	for range attempts {
		if !counts {
			if record, err = n.live(ctx, id); err != nil {
				return err
			}
			counts = record.Limits.NodeLimit() > 0
		}
		if record.Limits.IsZero() {
			if err := n.check(record, r, node); err != nil {
				return err
			}
			return n.checkNameFree(ctx, node)
		}
		// Check this before the claim: a request that cannot be signed leaves no claim.
		if err := pkcs10.CheckSignature(r.CSR); err != nil {
			return err
		}
		p := &slotRequest{request: r, node: node}
		if counts {
			err = n.takeSlot(ctx, id, p)
		} else {
			err = n.claimName(ctx, record, p)
		}
		if errors.Is(err, errNoNodeLimit) {
			counts = false
			continue
		}
		if err != nil {
			return err
		}
		a.Duration, a.TokenID, a.Keys = p.record.Limits.CertificateDuration, id, len(p.claim.Keys)
		if p.replaces {
			a.nodeUID = p.record.Limits.Replaces.UID
		}
		return nil
	}
	return fmt.Errorf("token %s: limits changed during each of %d attempts", id, attempts)
}

// recentlyAllows reports whether a token allows the request and has no limits, neither by its record nor by its claims.
// A token without limits reserves nothing, so record and claims may be up to [tokens.MaxAge] old. If the result is
// false, the caller decides by live reads.
func (n *Nodes) recentlyAllows(ctx context.Context, id string, r approval.Request, node string) (bool, error) {
	record, err := n.Tokens.Recent(ctx, id)
	switch {
	case errors.Is(err, tokens.ErrNotFound), errors.Is(err, tokens.ErrMalformed):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("token %s: %w", id, err)
	case !record.Limits.IsZero() || n.check(record, r, node) != nil:
		return false, nil
	}
	claims, err := n.Claims.HeldBy(ctx, id, tokens.Recent)
	if err != nil {
		return false, fmt.Errorf("claims of token %s: %w", id, err)
	}
	return !restrict(&record, claims), nil
}

// live reads the token from the store and restores what it lost (see mend).
func (n *Nodes) live(ctx context.Context, id string) (tokens.Record, error) {
	record, err := n.Tokens.Get(ctx, id)
	switch {
	case errors.Is(err, tokens.ErrNotFound), errors.Is(err, tokens.ErrMalformed):
		return record, refuseGone(id)
	case err != nil:
		return record, fmt.Errorf("token %s: %w", id, err)
	}
	_, err = n.mend(ctx, &record)
	return record, err
}

// takeSlot claims a name and counts it on a token that limits the number of nodes. It counts by compare-and-swap, so
// that concurrent requests cannot exceed the limit. The last slot also brings the token's expiration forward.
func (n *Nodes) takeSlot(ctx context.Context, id string, p *slotRequest) error {
	if err := n.slots.Do(ctx, id, p, func(ctx context.Context, all []*slotRequest) {
		ctx, cancel := context.WithTimeout(ctx, countTimeout)
		defer cancel()
		n.countNames(ctx, id, all)
	}); err != nil {
		return fmt.Errorf("update node count of token %s: %w", id, err)
	}
	return p.err
}

func (n *Nodes) reportMended(id string) {
	n.count("repaired")
	n.log.Warn("bootstrap token had lost limits or node names, restored from its claims", "token", id)
}

// mend restores what a record has lost from the claims of its token ID: restrictions that were erased, and names that
// are missing in the count. It reports whether it changed the record.
//
// A record without a node limit or without counted names may have lost them, or may be another token under the same
// ID. Then mend reads the claims live, after the record. Otherwise the cached claims only decide whether to read them
// live.
func (n *Nodes) mend(ctx context.Context, record *tokens.Record) (mended bool, err error) {
	if record.Problem != nil || record.Limits.Problem != nil {
		return false, nil
	}
	id := record.Token.ID()
	if record.Limits.NodeLimit() > 0 && len(record.Nodes) > 0 {
		known, err := n.Claims.HeldBy(ctx, id, tokens.Cached)
		if err != nil {
			return false, fmt.Errorf("claims of token %s: %w", id, err)
		}
		try := *record
		try.Nodes = slices.Clone(record.Nodes)
		if !restrict(&try, known) {
			return false, nil
		}
	}
	claims, err := n.Claims.HeldBy(ctx, id, tokens.Live)
	if err != nil {
		return false, fmt.Errorf("claims of token %s: %w", id, err)
	}
	return restrict(record, claims), nil
}

// claimName makes a token without a node limit hold the claim of a name if the record and the Node allow it. The record
// must have been read live.
func (n *Nodes) claimName(ctx context.Context, record tokens.Record, p *slotRequest) error {
	for range attempts {
		planned, err := n.planClaim(ctx, record, p)
		if p.claim = planned.After; err != nil || planned.Before.Equal(planned.After) {
			return err
		}
		if p.claim, err = n.writeClaim(ctx, p, planned); !changed(err) {
			return err
		}
	}
	return fmt.Errorf("claim of node %s: changed during each of %d attempts", p.node, attempts)
}

// prepare checks everything but the claim of the name, and sets what a claim depends on.
func (n *Nodes) prepare(ctx context.Context, record tokens.Record, p *slotRequest) error {
	p.claim = tokens.Claim{} // of an attempt with an older record
	if p.record.UID != "" && p.record.UID != record.UID {
		return fmt.Errorf("token %s was replaced while kubejoin handled this request", record.Token.ID())
	}
	// Refuse before the first write where possible: a refused kubelet retries about a hundred times an hour.
	if err := n.checkSlot(record, p); err != nil {
		return err
	}
	replaces, err := n.checkNode(ctx, p.node, record.Limits.Replaces)
	if err != nil {
		return err
	}
	p.record, p.replaces = record, replaces
	if replaces && n.Ready != nil {
		if p.ready, err = n.Ready(ctx, p.node); err != nil && !errors.Is(err, tokens.ErrNotFound) {
			return fmt.Errorf("node %s: %w", p.node, err)
		}
	}
	return nil
}

// A plannedClaim is a change of a claim that was not written yet.
type plannedClaim struct {
	tokens.ClaimChange
	step step
}

// planClaim returns how the claim of a name changes if the record and the Node allow it.
func (n *Nodes) planClaim(ctx context.Context, record tokens.Record, p *slotRequest) (plannedClaim, error) {
	if err := n.prepare(ctx, record, p); err != nil {
		return plannedClaim{}, err
	}
	_, atomic := n.Claims.(tokens.Counter)
	p.had = slices.Contains(record.Left, p.node) || slices.Contains(record.Nodes, p.node) && (atomic || record.Limits.Replaces != (tokens.NodeRef{}))
	_, err := n.Claims.Find(ctx, p.node)
	known := !errors.Is(err, tokens.ErrNotFound)
	for range attempts {
		var seen tokens.Claim
		// If the cache is wrong about a name without a claim, the write fails, and the name starts over.
		if err = tokens.ErrNotFound; known || p.had || p.exists {
			seen, err = n.Claims.Get(ctx, p.node)
		}
		switch {
		case errors.Is(err, tokens.ErrNotFound) && p.had:
			return plannedClaim{}, refuseJoined(record.Token.ID(), p.node, p.replaces)
		case errors.Is(err, tokens.ErrNotFound):
			return plannedClaim{tokens.ClaimChange{After: p.fresh()}, newClaim}, nil
		case err != nil:
			return plannedClaim{}, fmt.Errorf("claim of node %s: %w", p.node, err)
		}
		do, err := n.plan(seen, p)
		if errors.Is(err, errVacate) {
			if err := n.vacate(ctx, seen); err != nil {
				return plannedClaim{}, err
			}
			p.had = p.had || seen.TokenID == record.Token.ID()
			continue
		}
		if err != nil {
			return plannedClaim{}, fmt.Errorf("claim of node %s: %w", p.node, err)
		}
		after := p.apply(do, seen.Clone(), n.now())
		if do == refuseReplacedAgain {
			if _, err := n.replace(ctx, seen, after); err != nil && !changed(err) {
				return plannedClaim{}, err
			}
			return plannedClaim{}, refuseReplaced(p.node)
		}
		return plannedClaim{tokens.ClaimChange{Before: seen, After: after}, do}, nil
	}
	return plannedClaim{}, fmt.Errorf("claim of node %s: changed during each of %d attempts", p.node, attempts)
}

// writeClaim writes one change. If the claim has changed meanwhile, the error is one for which changed is true.
func (n *Nodes) writeClaim(ctx context.Context, p *slotRequest, c plannedClaim) (claim tokens.Claim, err error) {
	if c.Before.UID != "" {
		claim, err = n.replace(ctx, c.Before, c.After)
	} else {
		claim, err = n.Claims.Create(ctx, c.After)
	}
	switch {
	case err == nil:
		n.reportClaim(c.step, claim)
	case errors.Is(err, tokens.ErrExists) && p.exists:
		return claim, n.checkClaim(ctx, p.node, err)
	case errors.Is(err, tokens.ErrExists):
		p.exists = true
		return claim, fmt.Errorf("%w: %w", tokens.ErrConflict, err)
	default:
		err = fmt.Errorf("claim node name: %w", err) // err contains the name
	}
	return claim, err
}

// checkClaim returns why no claim could be created. Another request was faster, or an earlier attempt succeeded and its
// response was lost. If there is no claim now, an object that is not a claim has the name, and a retry does not help.
func (n *Nodes) checkClaim(ctx context.Context, node string, exists error) error {
	switch _, err := n.Claims.Get(ctx, node); {
	case errors.Is(err, tokens.ErrNotFound):
		return approval.RefuseFor(ReasonNodeNameNotAllowed, "node name %s is not available: an object that is not a claim has this name: %v", node, errors.Unwrap(err))
	case err != nil:
		return fmt.Errorf("claim of node %s: %w", node, err)
	}
	return fmt.Errorf("%w: %w", tokens.ErrConflict, exists)
}

// reportClaim logs and counts a step that was written.
func (n *Nodes) reportClaim(do step, claim tokens.Claim) {
	switch do {
	case keep:
		return
	case newClaim:
		n.log.Info("node name claimed", "node", tokens.Redact(claim.Node), "token", claim.TokenID)
	default:
		n.log.Warn("node name claim changed", "change", do.String(), "node", tokens.Redact(claim.Node), "token", claim.TokenID, "keys", len(claim.Keys))
	}
	n.count(do.String())
}
