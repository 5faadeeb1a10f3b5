package admission

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// renew returns the claim of a node that authenticates with its current certificate, as the cache has it, and the longest
// lifetime of its next one. It updates the claim as renewed says.
func (n *Nodes) renew(ctx context.Context, node string) (c tokens.Claim, lifetime time.Duration, err error) {
	if n.Claims == nil || tokens.CheckNodeName(node) != nil {
		return c, 0, nil
	}
	c, err = n.Claims.Find(ctx, node)
	if errors.Is(err, tokens.ErrNotFound) {
		// The cache may lag: the machine may have just joined through another replica.
		c, err = n.Claims.Get(ctx, node)
	}
	if errors.Is(err, tokens.ErrNotFound) {
		return c, 0, nil
	} else if err != nil {
		return c, 0, fmt.Errorf("claim of node %s: %w", node, err)
	}
	at := n.now()
	next, lifetime, err := renewed(c, n.Node != nil, at)
	if next.Equal(c) || n.dry { // unchanged, also if the renewal is refused
		return c, lifetime, err
	}
	if _, err = n.Claims.Update(ctx, node, func(now *tokens.Claim) (err error) {
		if c.Released() || now.Same(c) { // otherwise it is not the claim of this node any more
			*now, lifetime, err = renewed(*now, n.Node != nil, at)
		}
		return err
	}); err != nil {
		return c, 0, fmt.Errorf("claim of node %s: %w", node, err)
	}
	return c, lifetime, nil
}
