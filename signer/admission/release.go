package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
)

// replace writes a claim over one that was read live, if that has not changed since. If the new claim is released and
// has neither past nor identity, replace deletes the claim instead.
func (n *Nodes) replace(ctx context.Context, c, next tokens.Claim) (tokens.Claim, error) {
	var err error
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
	case c.NodeUID != "":
		n.count("released")
		n.log.Info("claim released, its Node was deleted", "node", tokens.Redact(c.Node), "token", c.TokenID)
	default:
		n.count("undone")
		n.log.Info("claim undone", "node", tokens.Redact(c.Node), "token", c.TokenID)
	}
	return next, nil
}

// changed reports whether replace failed because another writer changed or deleted the claim first.
func changed(err error) bool {
	return errors.Is(err, tokens.ErrNotFound) || errors.Is(err, tokens.ErrConflict)
}

// vacate releases a claim whose name another requester wants, or refuses if the claim keeps the name. The claim
// cleaner also releases claims of Nodes that are gone, a little later. An attempt that is still running does not
// confirm a claim that is gone. The claim was read live, but may have changed when vacate returns.
func (n *Nodes) vacate(ctx context.Context, c tokens.Claim) error {
	gone, counted, now := false, false, n.now()
	switch {
	case c.NodeUID != "" && n.Node != nil:
		switch uid, err := n.Node(ctx, c.Node); {
		case errors.Is(err, tokens.ErrNotFound):
			gone = true
		case err != nil:
			return fmt.Errorf("node %s: %w", c.Node, err)
		default:
			if _, err := n.replaces(c.Node, uid, tokens.NodeRef{}); err != nil {
				return err
			}
		}
	case abandoned(c, now):
		switch record, err := n.Tokens.Get(ctx, c.TokenID); {
		case err == nil:
			counted = slices.Contains(record.Nodes, c.Node)
		case !errors.Is(err, tokens.ErrNotFound):
			return fmt.Errorf("token %s: %w", c.TokenID, err)
		}
	}
	left, err := vacated(c, gone, counted, now)
	if err != nil {
		return err
	}
	if _, err := n.replace(ctx, c, left); !changed(err) {
		return err
	}
	return nil
}

// checkNameFree refuses a name that a Node has, or that a token with limits has claimed. It reads the claim live, because a
// stale cache could give the name away.
func (n *Nodes) checkNameFree(ctx context.Context, node string) error {
	if _, err := n.checkNode(ctx, node, tokens.NodeRef{}); err != nil || n.Claims == nil {
		return err
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

// Withdraw removes the claim that an attempt at a request may have left, after somebody else has denied the request.
// Nobody retries such a request, so the name would stay taken until the token is gone. Withdraw keeps a claim that
// has keys of other requests, and a claim whose name is counted.
func (n *Nodes) Withdraw(ctx context.Context, r approval.Request) error {
	if n == nil || n.Tokens == nil || n.Claims == nil || r.CSR == nil {
		return nil
	}
	n.once.Do(n.start)
	id, bootstrap := strings.CutPrefix(r.User, tokens.BootstrapUserPrefix)
	node, ok := nodeOf(r)
	if !ok || !bootstrap || tokens.CheckNodeName(node) != nil {
		return nil
	}
	if err := n.undo(ctx, id, node, r, true); err != nil {
		return fmt.Errorf("remove claim of node %s: %w", node, err)
	}
	return nil
}

// undo removes the key of a refused request from a pending claim of the token. Claims of a token without a node limit
// are not pending: they stay until the token is gone. For a withdrawn request, undo changes only a claim that an
// attempt at this request may have left.
//
// Another attempt may count the name meanwhile. It does not confirm a claim that lacks its key.
func (n *Nodes) undo(ctx context.Context, id, node string, r approval.Request, withdrawn bool) error {
	for range attempts {
		c, err := n.Claims.Get(ctx, node)
		switch {
		case errors.Is(err, tokens.ErrNotFound):
			return nil
		case err != nil:
			return err
		case !undoable(c, id) || withdrawn && !mayStemFrom(c, r.UID):
			return nil
		}
		record, err := n.Tokens.Get(ctx, id)
		switch {
		case errors.Is(err, tokens.ErrNotFound): // the claim cleaner releases its claims
			return nil
		case err != nil:
			return err
		}
		next := undone(c, record, r, n.now())
		if next.Equal(c) {
			return nil
		}
		if _, err := n.replace(ctx, c, next); !changed(err) {
			return err
		}
	}
	return fmt.Errorf("claim of node %s: changed during each of %d attempts", node, attempts)
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
