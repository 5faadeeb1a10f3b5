package signer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
)

// errRegistered says that the Node of a claim has registered.
var errRegistered = errors.New("the node has registered")

// release takes away the claim of a Node that had registered and is gone, and refuses if it is
// not gone. The claim cleaner does the same, a little later. Where there are no Nodes none is
// ever known to be gone.
func (n *NodeAdmission) release(ctx context.Context, node string) error {
	c, err := n.Claims.Get(ctx, node)
	if errors.Is(err, tokens.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("claim of node %s: %w", node, err)
	}
	if c.NodeUID == "" {
		return nil // another one, to be looked at anew
	}
	if n.Node == nil {
		return refuseClaimed(c)
	}
	if gone, err := n.gone(ctx, node); err != nil {
		return err
	} else if !gone {
		if _, err := n.checkNode(ctx, node, tokens.NodeRef{}); err != nil {
			return err
		}
		return refuseClaimed(c) // existing Nodes are handed out, claimed names are not
	}
	err = tokens.Release(ctx, n.Claims, c, c.Leaves(n.now(), 0))
	if err == nil {
		n.count("released")
		n.log.Info("claim of a Node that was deleted is released", "node", tokens.Redact(node), "token", c.TokenID)
	}
	if errors.Is(err, tokens.ErrNotFound) || errors.Is(err, tokens.ErrConflict) {
		return nil
	}
	return err
}

// Withdraw takes away the claim that a try at a request may have left, when somebody else has denied
// the request since: nobody would come back to it, and the name would be taken until the token is
// gone. A claim that others have a part in, and one that is counted, stay.
func (n *NodeAdmission) Withdraw(ctx context.Context, r approval.Request) error {
	if n == nil || n.Tokens == nil || n.Claims == nil || r.CSR == nil {
		return nil
	}
	n.once.Do(n.start)
	id, bootstrap := strings.CutPrefix(r.User, bootstrapUserPrefix)
	node, ok := nodeOf(r)
	if !ok || !bootstrap || tokens.CheckNodeName(node) != nil {
		return nil
	}
	c, err := n.Claims.Get(ctx, node)
	switch {
	case errors.Is(err, tokens.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("claim of node %s: %w", node, err)
	case r.UID == "" || len(c.Keys) > 0 && !slices.Contains(c.Requests, r.UID): // without keys it is half undone
		return nil
	}
	if err := n.undo(ctx, id, node, r); err != nil {
		return fmt.Errorf("claim of node %s cannot be undone yet: %w", node, err)
	}
	return nil
}

// undo takes the key of a request that was refused out of a claim of the token, and takes away a
// claim that has no other one, or that nobody can be in the middle of making. On a claim whose name
// the token has counted something may have been issued: it stays. So do claims of a token that counts
// nothing, until the token is gone.
//
// Another try may get past the count meanwhile. It looks at the claim after that, and the count is
// looked at here after the keys have left the claim: one of the two sees the other.
func (n *NodeAdmission) undo(ctx context.Context, id, node string, r approval.Request) error {
	key := keyOf(r)
	kept := func(c tokens.Claim) []string {
		if n.now().Sub(c.Created) >= settled {
			return nil
		}
		return slices.DeleteFunc(slices.Clone(c.Keys), func(k string) bool { return k == key })
	}
	stays := func(c tokens.Claim) bool {
		return c.TokenID != id || c.NodeUID != "" || c.Limits.Most() == 0 || len(c.Keys) > 0 && len(kept(c)) == len(c.Keys)
	}
	for range attempts {
		c, err := n.Claims.Get(ctx, node)
		switch {
		case errors.Is(err, tokens.ErrNotFound):
			return nil
		case err != nil:
			return err
		case stays(c):
			return nil
		}
		if counted, err := n.counted(ctx, id, node); err != nil || counted {
			return err
		}
		without, err := n.Claims.Update(ctx, node, func(now *tokens.Claim) error {
			if c = now.Clone(); stays(c) {
				return errNothing
			}
			now.Keys = kept(c)
			now.Requests = slices.DeleteFunc(now.Requests, func(uid string) bool { return uid == r.UID })
			return nil
		})
		switch {
		case errors.Is(err, errNothing), errors.Is(err, tokens.ErrNotFound):
			return nil
		case err != nil:
			return err
		}
		counted, err := n.counted(ctx, id, node)
		switch {
		case err != nil:
			return err
		case counted:
			return n.putBack(ctx, c)
		case len(without.Keys) > 0:
			return nil
		}
		left := without.Past
		if !left.Held(n.now()) {
			left = tokens.Past{}
		}
		switch err := tokens.Release(ctx, n.Claims, without, left); {
		case err == nil:
			n.count("undone")
			n.log.Info("claim undone", "node", tokens.Redact(node), "token", id)
			return nil
		case errors.Is(err, tokens.ErrNotFound):
			return nil
		case !errors.Is(err, tokens.ErrConflict):
			return err
		}
	}
	return fmt.Errorf("claim of node %s: it changed %d times in a row", node, attempts)
}

// putBack adds the keys of a claim again that were taken out of it.
func (n *NodeAdmission) putBack(ctx context.Context, before tokens.Claim) error {
	_, err := n.Claims.Update(ctx, before.Node, func(c *tokens.Claim) error {
		if !c.Same(before) {
			return nil
		}
		for _, key := range before.Keys {
			if !c.HasKey(key) && len(c.Keys) < tokens.MaxKeys {
				c.Keys = append(c.Keys, key)
			}
		}
		return nil
	})
	if errors.Is(err, tokens.ErrNotFound) {
		return nil
	}
	return err
}

// counted reports whether the token has counted the name, as of now. Of one that is gone nobody knows.
func (n *NodeAdmission) counted(ctx context.Context, id, node string) (bool, error) {
	record, err := n.Tokens.Get(ctx, id)
	if errors.Is(err, tokens.ErrNotFound) {
		return true, nil
	}
	return slices.Contains(record.Nodes, node), err
}
