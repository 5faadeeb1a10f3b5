package admission

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// replace writes a claim over one that was read live, if that has not changed since. If the new claim is released and
// has neither past nor identity, replace deletes the claim instead.
func (n *Nodes) replace(ctx context.Context, c, next tokens.Claim) (tokens.Claim, error) {
	var err error
	if next.TokenID != c.TokenID {
		if err = tokens.Leave(ctx, n.Tokens, n.Claims, c); err != nil {
			return next, fmt.Errorf("claim of node %s: %w", c.Node, err)
		}
	}
	if next.Released() && next.Identity.IsZero() {
		err = tokens.Release(ctx, n.Claims, c, next.Past)
	} else {
		next, err = n.Claims.Update(ctx, c.Node, func(now *tokens.Claim) error {
			if now.UID != c.UID || now.Version != c.Version {
				return tokens.ErrConflict
			}
			*now = next
			return nil
		})
	}
	switch {
	case err != nil:
		return next, fmt.Errorf("claim of node %s: %w", c.Node, err)
	case c.Released() || !next.Released():
	default:
		n.count("released")
		n.log.Info("claim released, its Node was deleted", "node", tokens.Redact(c.Node), "token", c.TokenID)
	}
	return next, nil
}

// changed reports whether replace failed because another writer changed or deleted the claim first.
func changed(err error) bool {
	return errors.Is(err, tokens.ErrNotFound) || errors.Is(err, tokens.ErrConflict)
}

// vacate releases a claim whose name another requester wants, if its Node had registered and is gone. Otherwise it
// refuses, because the claim keeps the name. The claim cleaner also releases claims of Nodes that are gone, a little
// later. The claim was read live, but may have changed when vacate returns.
func (n *Nodes) vacate(ctx context.Context, c tokens.Claim) error {
	if c.NodeUID == "" || n.Node == nil {
		return refuseClaimed(c)
	}
	switch uid, err := n.Node(ctx, c.Node); {
	case err == nil:
		if _, err := n.replaces(c.Node, uid, tokens.NodeRef{}); err != nil {
			return err
		}
		return refuseClaimed(c)
	case !errors.Is(err, tokens.ErrNotFound):
		return fmt.Errorf("node %s: %w", c.Node, err)
	}
	if _, err := n.replace(ctx, c, released(c, c.PastAfterRelease(n.now(), 0))); !changed(err) {
		return err
	}
	return nil
}

// checkNameFree refuses the name of a Node, and a name that a token with limits has claimed. It may miss a claim that
// is less than [tokens.MaxAge] old. This grants no more than a live read: a token with limits may also claim the name
// just after the check.
func (n *Nodes) checkNameFree(ctx context.Context, node string) error {
	if _, err := n.checkNode(ctx, node, tokens.NodeRef{}); err != nil || n.Claims == nil {
		return err
	}
	switch _, err := n.Claims.Recent(ctx, node); {
	case errors.Is(err, tokens.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("claim of node %s: %w", node, err)
	}
	for range attempts {
		c, err := n.Claims.Get(ctx, node)
		switch {
		case errors.Is(err, tokens.ErrNotFound):
			return nil
		case err != nil:
			return fmt.Errorf("claim of node %s: %w", node, err)
		case !c.Released():
			if err := n.vacate(ctx, c); err != nil {
				return err
			}
			continue
		}
		// The name now belongs to the new requester, whose renewals are not bound by the past of the old claim.
		if _, err := n.replace(ctx, c, released(c, tokens.ReleasedClaim{})); !changed(err) {
			return err
		}
	}
	return fmt.Errorf("claim of node %s: changed during each of %d attempts", node, attempts)
}

// checkNode refuses the name of a Node that exists, unless the token replaces that Node, which it reports.
// AllowExisting allows such names.
func (n *Nodes) checkNode(ctx context.Context, node string, ref tokens.NodeRef) (bool, error) {
	if n.Node == nil || n.AllowExisting && ref == (tokens.NodeRef{}) {
		return false, nil
	}
	uid, err := n.Node(ctx, node)
	switch {
	case errors.Is(err, tokens.ErrNotFound):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("node %s: %w", node, err)
	}
	return n.replaces(node, uid, ref)
}

// renew returns the longest lifetime of the next certificate of a node that authenticates with its current one. It
// updates the node's claim as renewed says.
func (n *Nodes) renew(ctx context.Context, node string) (lifetime time.Duration, err error) {
	if n.Claims == nil || tokens.CheckNodeName(node) != nil {
		return 0, nil
	}
	c, err := n.Claims.Find(ctx, node)
	if errors.Is(err, tokens.ErrNotFound) {
		// The cache may lag: the machine may have just joined through another replica.
		c, err = n.Claims.Get(ctx, node)
	}
	if errors.Is(err, tokens.ErrNotFound) {
		return 0, nil
	} else if err != nil {
		return 0, fmt.Errorf("claim of node %s: %w", node, err)
	}
	at := n.now()
	next, lifetime, err := renewed(c, n.Node != nil, at)
	if next.Equal(c) { // unchanged, also if the renewal is refused
		return lifetime, err
	}
	if _, err = n.Claims.Update(ctx, node, func(now *tokens.Claim) (err error) {
		if c.Released() || now.Same(c) { // otherwise it is not the claim of this node any more
			*now, lifetime, err = renewed(*now, n.Node != nil, at)
		}
		return err
	}); err != nil {
		return 0, fmt.Errorf("claim of node %s: %w", node, err)
	}
	return lifetime, nil
}
