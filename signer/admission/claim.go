package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/tokens"
	"golang.org/x/sync/errgroup"
)

// attempts is how often a change is tried while others change the same claim or token.
const attempts = 10

// countTimeout is the timeout for writing a token's count. Other requests with the token wait for that write.
const countTimeout = 30 * time.Second

// maxEvictions is how many claims evict writes at once.
const maxEvictions = 16

// A slotRequest is one request for a node slot of a token. Requests with the same token at the same time are written
// together. Otherwise each machine of a rack would conflict with every other machine, and retry.
type slotRequest struct {
	request approval.Request
	node    string

	record   tokens.Record // the token that claims the name; zero before the first attempt
	counted  bool          // the token had counted the name before this request came
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

// admitToken checks a request of a bootstrap token and, if the token has limits, claims the name. It writes the claim
// first, which is the lock on the name, and then the count on the token. It undoes its writes before it returns a
// refusal.
func (n *Nodes) admitToken(ctx context.Context, r approval.Request, id, node string, a *Admitted) error {
	if n.Tokens == nil || n.Claims == nil {
		return approval.RefuseFor(ReasonTokenRevoked, "this server does not accept bootstrap tokens")
	}
	// The cached record only selects where to start. The live read decides whether the token limits the number of
	// nodes.
	record, err := n.Tokens.Find(ctx, id)
	counts := err == nil && record.Limits.NodeLimit() > 0
	for range attempts {
		if !counts {
			if record, err = n.live(ctx, id, r, node); err != nil {
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
		if refused := (*approval.Refused)(nil); errors.As(err, &refused) && refused.Reason != ReasonTooManyKeys {
			// This attempt, or an earlier one whose response was lost, may have left a claim.
			if undoErr := n.undo(ctx, id, node, r, false); undoErr != nil {
				return fmt.Errorf("request refused (%s), but its claim on node name %s was not removed: %w", refused.Reason, node, undoErr)
			}
		}
		if err != nil {
			return err
		}
		a.Duration, a.TokenID, a.Keys = p.record.Limits.CertificateDuration, id, len(p.claim.Keys)
		if p.claim.Identity.TokenID == id {
			a.Rejoined = &p.claim.Identity
		}
		if p.replaces {
			a.nodeUID = p.record.Limits.Replaces.UID
		}
		return nil
	}
	return fmt.Errorf("token %s: limits changed during each of %d attempts", id, attempts)
}

// live reads the token from the store and restores what it lost (see mend). It caches a token without limits that allows
// the request for one second, so that all machines of a rack share one read.
func (n *Nodes) live(ctx context.Context, id string, r approval.Request, node string) (tokens.Record, error) {
	if known, found := n.unlimited.Get(id); found {
		return known.(tokens.Record), nil
	}
	asked := n.now()
	record, err := n.Tokens.Get(ctx, id)
	switch {
	case errors.Is(err, tokens.ErrNotFound), errors.Is(err, tokens.ErrMalformed):
		return record, refuseGone(id)
	case err != nil:
		return record, fmt.Errorf("token %s: %w", id, err)
	}
	if _, _, err = n.mend(ctx, &record); err != nil || !record.Limits.IsZero() || n.check(record, r, node) != nil {
		return record, err
	}
	if left := unlimitedTTL - n.now().Sub(asked); left > 0 {
		cached := record.Clone()
		cached.Token, _ = tokens.OnlyID(id) // without its secret; the ID was checked when the token was read
		n.unlimited.Add(id, cached, left)
	}
	return record, nil
}

// takeSlot claims a name and counts it on a token that limits the number of nodes. It counts by compare-and-swap, so that
// concurrent requests cannot exceed the limit. The last slot also brings the token's expiration forward.
func (n *Nodes) takeSlot(ctx context.Context, id string, p *slotRequest) error {
	for range attempts {
		if err := n.slots.Do(ctx, id, p, func(ctx context.Context, all []*slotRequest) {
			ctx, cancel := context.WithTimeout(ctx, countTimeout)
			defer cancel()
			if err := n.write(ctx, id, all); err != nil {
				for _, p := range all {
					p.err = err
				}
			}
		}); err != nil {
			return fmt.Errorf("update node count of token %s: %w", id, err)
		}
		if p.err != nil || !p.claim.Pending || n.dry {
			return p.err
		}
		// The name is counted, so the claim can be confirmed. This fails if the claim has changed since the count:
		// another attempt with its key was refused, the count was lost and evict removed the keys, or another key was
		// added. Then start over.
		confirmed := p.claim
		confirmed.Pending = false
		claim, err := n.replace(ctx, p.claim, confirmed)
		if !changed(err) {
			p.claim = claim
			return err
		}
	}
	return fmt.Errorf("claim of node %s: lost during each of %d attempts", p.node, attempts)
}

// write claims and counts the names of all, and sets the error of those that get no slot. It makes the claims between
// the live read of the token and its write. So when the write succeeds, no name was counted before it was claimed.
//
// The written record no longer shows that a count was lost, so write evicts the pending claims first. It does so before
// it makes claims: a write that fails has then fewer pending claims to evict in its next try, and not more.
func (n *Nodes) write(ctx context.Context, id string, all []*slotRequest) error {
	mended := false
	_, err := n.Tokens.Update(ctx, id, func(record *tokens.Record) error {
		var pending []tokens.Claim
		var err error
		if mended, pending, err = n.mend(ctx, record); err != nil {
			return err
		}
		if record.Limits.NodeLimit() == 0 {
			return errNoNodeLimit
		}
		if mended || slices.ContainsFunc(all, func(p *slotRequest) bool { return n.checkSlot(*record, p) == nil }) {
			if err := n.evict(ctx, pending); err != nil {
				return err
			}
		}
		var claiming sync.WaitGroup
		for _, p := range all {
			claiming.Go(func() { p.err = n.claimName(ctx, *record, p) })
		}
		claiming.Wait()
		// A pending claim needs the write also if the record stays as it is: that proves that it has not changed.
		if !n.fill(record, all) && !mended && !slices.ContainsFunc(all, func(p *slotRequest) bool { return p.claim.Pending }) {
			return errUnchanged
		}
		return nil
	})
	switch {
	case errors.Is(err, errUnchanged):
		return nil
	case errors.Is(err, tokens.ErrNotFound):
		return refuseGone(id)
	case err != nil:
		return fmt.Errorf("update node count of token %s: %w", id, err)
	case mended:
		n.count("repaired")
		n.log.Warn("bootstrap token had lost limits or node names, restored from its claims", "token", id)
	}
	return nil
}

// mend restores what a record has lost from the claims of its token ID: restrictions that were erased, and names that
// are missing in the count. The record must have been read live. mend reports whether it changed the record, and
// returns the pending claims if it has read them.
//
// A record without a node limit or without counted names may have lost them, or may be another token under the same
// ID. Then mend reads the claims live, after the record. Otherwise the cached claims only decide whether to read them
// live.
func (n *Nodes) mend(ctx context.Context, record *tokens.Record) (mended bool, pending []tokens.Claim, err error) {
	if record.Problem != nil || record.Limits.Problem != nil {
		return false, nil, nil
	}
	id := record.Token.ID()
	if record.Limits.NodeLimit() > 0 && len(record.Nodes) > 0 {
		known, err := n.Claims.OfToken(ctx, id)
		if err != nil {
			return false, nil, fmt.Errorf("claims of token %s: %w", id, err)
		}
		try := *record
		try.Nodes = slices.Clone(record.Nodes)
		if !restrict(&try, known) {
			return false, nil, nil
		}
	}
	claims, err := n.Claims.HeldBy(ctx, id)
	if err != nil {
		return false, nil, fmt.Errorf("claims of token %s: %w", id, err)
	}
	for _, c := range claims {
		if c.Pending && c.NodeUID == "" && len(c.Keys) > 0 {
			pending = append(pending, c)
		}
	}
	return restrict(record, claims), pending, nil
}

// evict removes the keys of pending claims: they may have been counted before the count was lost. Nothing was issued on
// them. The request that made such a claim does not find its key and starts over. The claim stays, because its name may
// be counted. evict fails if a claim has changed since it was read, after it has tried all of them.
func (n *Nodes) evict(ctx context.Context, pending []tokens.Claim) error {
	var evicting errgroup.Group
	evicting.SetLimit(maxEvictions)
	for _, c := range pending {
		evicting.Go(func() error {
			evicted := c
			evicted.Keys, evicted.Requests = nil, nil
			if _, err := n.replace(ctx, c, evicted); err != nil && !errors.Is(err, tokens.ErrNotFound) {
				return err
			}
			return nil
		})
	}
	return evicting.Wait()
}

// claimName makes the token hold the claim of a name if the record and the Node allow it. The record must have been
// read live. claimName may be called again with a newer record.
func (n *Nodes) claimName(ctx context.Context, record tokens.Record, p *slotRequest) error {
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
	if p.record.UID == "" {
		// If the name is counted later, it is counted for the claim that is made here.
		p.counted = slices.Contains(record.Nodes, p.node)
	}
	p.record, p.replaces = record, replaces
	if replaces && n.Ready != nil {
		if p.ready, err = n.Ready(ctx, p.node); err != nil && !errors.Is(err, tokens.ErrNotFound) {
			return fmt.Errorf("node %s: %w", p.node, err)
		}
	}
	p.claim, err = n.hold(ctx, p)
	return err
}

// hold makes the token hold the claim of a name, with the request's key in it. It writes nothing if the claim is
// already so.
func (n *Nodes) hold(ctx context.Context, p *slotRequest) (tokens.Claim, error) {
	id, node := p.record.Token.ID(), p.node
	_, err := n.Claims.Find(ctx, node)
	free := errors.Is(err, tokens.ErrNotFound) && !p.counted // probably: Create fails if not
	for range attempts {
		var do step
		var seen, claim tokens.Claim
		if err = tokens.ErrNotFound; !free {
			claim, err = n.Claims.Update(ctx, node, func(c *tokens.Claim) (err error) {
				seen = c.Clone()
				if do, err = n.plan(seen, p); err == nil {
					*c = p.apply(do, *c, n.now())
				}
				return err
			})
		}
		assumedFree := free
		free = false
		switch {
		case err == nil && do == refuseReplacedAgain:
			return tokens.Claim{}, refuseReplaced(node)
		case err == nil && do == newClaim:
			return n.made(claim, nil)
		case err == nil:
			if do != keep {
				n.count(do.String())
				n.log.Warn("node name claim changed", "change", do.String(), "node", tokens.Redact(node), "token", id, "keys", len(claim.Keys))
			}
			return claim, nil
		case errors.Is(err, errVacate):
			if err := n.vacate(ctx, seen); err != nil {
				return claim, err
			}
			continue
		case !errors.Is(err, tokens.ErrNotFound):
			return claim, fmt.Errorf("claim of node %s: %w", node, err)
		case p.counted:
			return claim, refuseJoined(id, node, p.replaces)
		}
		if claim, err = n.Claims.Create(ctx, p.fresh()); !errors.Is(err, tokens.ErrExists) {
			return n.made(claim, err)
		}
		if assumedFree {
			continue
		}
		// Another request was faster, or an earlier attempt succeeded and its response was lost. If there is no claim
		// now, an object that is not a claim has the name, and a retry does not help.
		if _, err := n.Claims.Get(ctx, node); errors.Is(err, tokens.ErrNotFound) {
			return claim, approval.RefuseFor(ReasonNodeNameNotAllowed, "node name %s is not available: an object that is not a claim has this name: %v", node, errors.Unwrap(err))
		}
	}
	return tokens.Claim{}, fmt.Errorf("claim of node %s: changed during each of %d attempts", node, attempts)
}

func (n *Nodes) made(claim tokens.Claim, err error) (tokens.Claim, error) {
	if err != nil {
		return claim, fmt.Errorf("claim node name: %w", err) // err contains the name
	}
	n.count("made")
	n.log.Info("node name claimed", "node", tokens.Redact(claim.Node), "token", claim.TokenID)
	return claim, nil
}
