package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/tokens"
)

// attempts is how often a claim is looked at anew because others change it at the same time.
const attempts = 10

// admitToken checks a request of a bootstrap token and, where the token has limits, claims the
// name: first the claim itself, which is the lock on the name, then the count on the token. What
// was written is undone before a refusal is told.
func (n *Nodes) admitToken(ctx context.Context, r approval.Request, id, node string, a *Admitted) error {
	if n.Tokens == nil || n.Claims == nil {
		return approval.RefuseFor(ReasonTokenRevoked, "there are no bootstrap tokens here")
	}
	// The cache only says where to begin: whether a token counts nodes shows when it is read live.
	record, err := n.Tokens.Find(ctx, id)
	counts := err == nil && record.Limits.NodeLimit() > 0
	for range attempts {
		if !counts {
			if record, err = n.live(ctx, id, a.at); err != nil {
				return err
			}
			counts = record.Limits.NodeLimit() > 0
		}
		if record.Limits.IsZero() {
			if err := n.check(record, r, node); err != nil {
				return err
			}
			n.remember(record, a.at)
			return n.checkNameFree(ctx, node)
		}
		// A request that cannot be signed leaves no claim.
		if err := pkcs10.Check(r.CSR); err != nil {
			return err
		}
		if err := r.CSR.CheckSignature(); err != nil {
			return approval.Refuse("the certificate request is not signed by its own key: %v", err)
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
			// Perhaps a claim was made just now, or by a try whose answer was lost.
			if undoErr := n.undo(ctx, id, node, r); undoErr != nil {
				return fmt.Errorf("refused (%s), and the claim of %s cannot be undone yet: %w", refused.Reason, node, undoErr)
			}
		}
		if err != nil {
			return err
		}
		a.Duration, a.TokenID, a.Keys = p.record.Limits.CertificateDuration, id, len(p.claim.Keys)
		return nil
	}
	return fmt.Errorf("token %s: its limits changed %d times in a row", id, attempts)
}

// claimName has the token hold the claim of a name if the record, which was read live, and the Node
// have nothing against it. It may be called again with a record that was read later.
func (n *Nodes) claimName(ctx context.Context, record tokens.Record, p *slotRequest) error {
	if p.record.UID != "" && p.record.UID != record.UID {
		return fmt.Errorf("token %s was replaced while this request was looked at", record.Token.ID())
	}
	// What can be refused without a write comes before the first one: a kubelet that is refused
	// asks about a hundred times an hour.
	if err := n.admits(record, p.request, p.node); err != nil {
		return err
	}
	replaces, err := n.checkNode(ctx, p.node, record.Limits.Replaces)
	if err != nil {
		return err
	}
	if p.record.UID == "" {
		// A name that is counted later on is counted for the claim that is made here.
		p.counted = slices.Contains(record.Nodes, p.node)
	}
	p.record, p.replaces = record, replaces
	if replaces {
		if p.ready, err = n.readySpell(ctx, p.node); err != nil {
			return err
		}
	}
	p.claim, err = n.claim(ctx, p)
	return err
}

// mustAdmit is what a token with limits says about a request by itself.
func (n *Nodes) admits(record tokens.Record, r approval.Request, node string) error {
	if err := n.check(record, r, node); err != nil {
		return err
	}
	if record.Spent() && !slices.Contains(record.Nodes, node) {
		return refuseSpent(record, node)
	}
	return nil
}

// live reads the token as it is now, or as it was just now if it had no limits then: when a rack
// comes up on one token there is one answer for all of its machines.
func (n *Nodes) live(ctx context.Context, id string, now time.Time) (tokens.Record, error) {
	n.mu.Lock()
	known, found := n.unlimited[id]
	n.mu.Unlock()
	if age := now.Sub(known.at); found && age >= 0 && age < unlimitedTTL {
		return known.record, nil
	}
	record, err := n.Tokens.Get(ctx, id)
	switch {
	case errors.Is(err, tokens.ErrNotFound), errors.Is(err, tokens.ErrMalformed):
		return record, refuseGone(id)
	case err != nil:
		return record, fmt.Errorf("token %s: %w", id, err)
	}
	_, _, err = n.mend(ctx, &record)
	return record, err
}

func refuseGone(id string) error {
	return approval.RefuseFor(ReasonTokenRevoked, "there is no token %.6s any more: it was deleted, or has expired; make another with: kubejoin token create", id)
}

func (n *Nodes) remember(record tokens.Record, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, known := range n.unlimited {
		if age := now.Sub(known.at); age < 0 || age >= unlimitedTTL {
			delete(n.unlimited, id)
		}
	}
	if _, found := n.unlimited[record.Token.ID()]; !found {
		n.unlimited[record.Token.ID()] = remembered{record, now}
	}
}

// check is what a token says about a request by itself.
func (n *Nodes) check(record tokens.Record, r approval.Request, node string) error {
	id := record.Token.ID()
	switch l := record.Limits; {
	case record.Expired(n.now()):
		return approval.RefuseFor(ReasonTokenExpired, "token %s expired at %s; make another with: kubejoin token create", id, record.Expires.UTC().Format(time.RFC3339))
	case record.Problem != nil:
		return approval.RefuseFor(ReasonTokenRevoked, "token %s is no good: %v", id, record.Problem)
	case !record.Authentication:
		return approval.RefuseFor(ReasonTokenRevoked, "token %s has not the usage authentication (any more)", id)
	case !r.Created.IsZero() && record.Created.After(r.Created):
		return approval.RefuseFor(ReasonTokenReplaced, "token %s was made at %s, after this request: it is another one of the same ID", id, record.Created.UTC().Format(time.RFC3339))
	case l.Problem != nil:
		return approval.RefuseFor(ReasonTokenLimitsMalformed, "what token %s is good for cannot be read, so that it is good for nothing: %v", id, l.Problem)
	case !l.AllowsName(node):
		return approval.RefuseFor(ReasonNodeNameNotAllowed, "token %s is not for %s, but for %s; make another with: kubejoin token create --node-name %s", id, node, names(l), node)
	case n.reserved(node) && l.Role != tokens.RoleControlPlane:
		return n.refuseReserved(node)
	}
	return nil
}

func names(l tokens.Limits) string {
	if l.Replaces.Name != "" {
		return l.Replaces.Name
	}
	const most = 5
	if len(l.NodeNames) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(l.NodeNames[:most], ", "), len(l.NodeNames)-most)
	}
	return strings.Join(l.NodeNames, ", ")
}

func refuseSpent(record tokens.Record, node string) error {
	most := record.Limits.NodeLimit()
	nodes, joined := "nodes", fmt.Sprintf("%d have joined with it", len(record.Nodes))
	if most == 1 && len(record.Nodes) == 1 {
		nodes, joined = "node", record.Nodes[0]+" took it"
	}
	return approval.RefuseFor(ReasonTokenSpent, "token %s was for %d %s and %s; make another with: kubejoin token create --node-name %s", record.Token.ID(), most, nodes, joined, node)
}

// claim is hold for a name that most probably has no claim.
func (n *Nodes) claim(ctx context.Context, p *slotRequest) (tokens.Claim, error) {
	if _, err := n.Claims.Find(ctx, p.node); errors.Is(err, tokens.ErrNotFound) && !p.counted {
		if claim, err := n.Claims.Create(ctx, p.fresh()); !errors.Is(err, tokens.ErrExists) {
			return n.made(claim, err)
		}
	}
	return n.hold(ctx, p)
}

// hold has the token hold the claim of a name, with the request's key in it. It writes nothing if that is so.
func (n *Nodes) hold(ctx context.Context, p *slotRequest) (tokens.Claim, error) {
	id, node := p.record.Token.ID(), p.node
	for range attempts {
		var do step
		claim, err := n.Claims.Update(ctx, node, func(c *tokens.Claim) (err error) {
			if do, err = n.plan(*c, p); err == nil {
				*c = p.apply(do, *c, n.now())
			}
			return err
		})
		switch {
		case err == nil && do == refuseReplacedAgain:
			return claim, refuseReplaced(node)
		case err == nil && do == newClaim:
			return n.made(claim, nil)
		case err == nil:
			if do != keep {
				n.count(do.String())
				n.log.Warn("claim of a node name: "+strings.ReplaceAll(do.String(), "_", " "), "node", tokens.Redact(node), "token", id, "keys", len(claim.Keys))
			}
			return claim, nil
		case errors.Is(err, errRegistered):
			if err := n.release(ctx, node); err != nil {
				return claim, err
			}
			continue
		case errors.Is(err, errAbandoned):
			if err := n.releaseAbandoned(ctx, node); err != nil {
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
		// Another request was quicker, or a try of ours whose answer was lost. Something that is
		// there and no claim stays for good.
		if _, err := n.Claims.Get(ctx, node); errors.Is(err, tokens.ErrNotFound) {
			return claim, approval.RefuseFor(ReasonNodeNameNotAllowed, "the name %s is taken by something that is no claim: %v", node, errors.Unwrap(err))
		}
	}
	return tokens.Claim{}, fmt.Errorf("claim of node %s: it changed %d times in a row", node, attempts)
}

func (n *Nodes) made(claim tokens.Claim, err error) (tokens.Claim, error) {
	if err != nil {
		return claim, fmt.Errorf("the node name cannot be claimed yet: %w", err) // which has the name
	}
	n.count("made")
	n.log.Info("node name claimed", "node", tokens.Redact(claim.Node), "token", claim.TokenID)
	return claim, nil
}

// readySpell is which spell of being Ready a Node is in, or empty.
func (n *Nodes) readySpell(ctx context.Context, node string) (string, error) {
	if n.Ready == nil {
		return "", nil
	}
	spell, err := n.Ready(ctx, node)
	if err != nil && !errors.Is(err, tokens.ErrNotFound) {
		return "", fmt.Errorf("node %s: %w", node, err)
	}
	return spell, nil
}
