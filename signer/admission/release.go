package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/tokens"
)

// release takes away the claim of a Node that had registered and is gone, and refuses if it is
// not gone. The claim cleaner does the same, a little later. Where there are no Nodes none is
// ever known to be gone.
func (n *Nodes) release(ctx context.Context, node string) error {
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
	err = tokens.Release(ctx, n.Claims, c, c.PastAfterRelease(n.now(), 0))
	if err == nil {
		n.count("released")
		n.log.Info("claim of a Node that was deleted is released", "node", tokens.Redact(node), "token", c.TokenID)
	}
	if errors.Is(err, tokens.ErrNotFound) || errors.Is(err, tokens.ErrConflict) {
		return nil
	}
	return err
}

// pendingFor is how long a claim may be pending before another token can take its name. No attempt takes
// longer to count the name.
const pendingFor = 2 * countTimeout

// abandoned reports whether a claim has been pending for longer than any attempt takes: the client left, or
// kubejoin stopped, between the claim and its confirmation.
func (n *Nodes) abandoned(c tokens.Claim) bool {
	return c.Pending && c.NodeUID == "" && n.now().Sub(c.Created) > pendingFor
}

// releaseAbandoned takes away the claim of a name if it is abandoned, and refuses if its token has counted
// the name. A try that is under way all the same does not confirm a claim that is gone.
func (n *Nodes) releaseAbandoned(ctx context.Context, node string) error {
	c, err := n.Claims.Get(ctx, node)
	switch {
	case errors.Is(err, tokens.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("claim of node %s: %w", node, err)
	case !n.abandoned(c):
		return nil // it has changed, or the cache was stale
	}
	record, err := n.Tokens.Get(ctx, c.TokenID)
	switch {
	case err != nil && !errors.Is(err, tokens.ErrNotFound):
		return fmt.Errorf("token %s: %w", c.TokenID, err)
	case err == nil && slices.Contains(record.Nodes, node):
		return refuseClaimed(c)
	}
	if err = n.drop(ctx, c); errors.Is(err, tokens.ErrNotFound) || errors.Is(err, tokens.ErrConflict) {
		return nil
	}
	return err
}

// Withdraw takes away the claim that a try at a request may have left, when somebody else has denied
// the request since: nobody would come back to it, and the name would be taken until the token is
// gone. A claim that others have a part in, and one that is counted, stay.
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

// undo takes the key of a request that was refused out of a pending claim of the token, and takes away
// one that has no other key, or that a spent token cannot count any more. Where the token has counted
// the name the claim stays. So do claims of a token that counts nothing, until the token is gone.
//
// Another try may get past the count meanwhile: it does not confirm a claim without its key.
func (n *Nodes) undo(ctx context.Context, id, node string, r approval.Request) error {
	key := pkcs10.KeyID(r.CSR)
	for range attempts {
		c, err := n.Claims.Get(ctx, node)
		switch {
		case errors.Is(err, tokens.ErrNotFound):
			return nil
		case err != nil:
			return err
		case c.TokenID != id || !c.Pending || c.NodeUID != "":
			return nil
		}
		record, err := n.Tokens.Get(ctx, id)
		switch {
		case errors.Is(err, tokens.ErrNotFound): // its claims go with it
			return nil
		case err != nil:
			return err
		case slices.Contains(record.Nodes, node):
			return nil
		}
		if record.Spent() || !slices.ContainsFunc(c.Keys, func(k string) bool { return k != key }) {
			err = n.drop(ctx, c)
		} else {
			_, err = n.Claims.Update(ctx, node, func(now *tokens.Claim) error {
				if now.Version != c.Version {
					return tokens.ErrConflict
				}
				now.Keys = slices.DeleteFunc(now.Keys, func(k string) bool { return k == key })
				now.Requests = slices.DeleteFunc(now.Requests, func(uid string) bool { return uid == r.UID })
				return nil
			})
		}
		if !errors.Is(err, tokens.ErrConflict) {
			if errors.Is(err, tokens.ErrNotFound) {
				return nil
			}
			return err
		}
	}
	return fmt.Errorf("claim of node %s: it changed %d times in a row", node, attempts)
}
