package admission

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
)

// forget takes away what is left of a claim whose name is taken anew: whoever renews under it from
// now on does so by what it was taken with.
func (n *Nodes) forget(ctx context.Context, c tokens.Claim) error {
	err := n.Claims.Delete(ctx, c)
	if err == nil || errors.Is(err, tokens.ErrNotFound) {
		return nil
	}
	return fmt.Errorf("claim of node %s, which was released: %w", c.Node, err)
}

// renewReleased gives the lifetime of a renewal under a name whose claim was released. The machine
// has its certificate from then, and nothing better: what it renews lasts as long as the claim
// said, and puts off the time when that is forgotten. Where there are no Nodes the claim was
// released because the machine is gone.
func (n *Nodes) renewReleased(ctx context.Context, c tokens.Claim) (lifetime time.Duration, err error) {
	now := n.now()
	lifetime = c.Past.CertificateDuration
	switch {
	case !c.Past.Active(now):
		return 0, nil
	case n.Node == nil:
		return 0, approval.RefuseFor(ReasonNodeNameReleased, "the claim on the name %s was released, and nobody has taken it since; if the machine is to stay it joins with another token: kubejoin token create --node-name %s", c.Node, c.Node)
	case lifetime == 0 || c.Past == c.Past.Renewed(now):
		return lifetime, nil
	}
	_, err = n.Claims.Update(ctx, c.Node, func(c *tokens.Claim) error {
		if !c.Released() { // taken meanwhile
			lifetime = c.Limits.CertificateDuration
			return nil
		}
		c.Past = c.Past.Renewed(now)
		lifetime = c.Past.CertificateDuration
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("claim of node %s, which was released: %w", c.Node, err)
	}
	return lifetime, nil
}

// serves notes that a node asks for a serving certificate.
func (n *Nodes) serves(ctx context.Context, node string) error {
	if n.Node != nil || n.Claims == nil || tokens.CheckNodeName(node) != nil {
		return nil
	}
	switch c, err := n.Claims.Find(ctx, node); {
	case errors.Is(err, tokens.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("claim of node %s: %w", node, err)
	case c.Released():
		_, err = n.renewReleased(ctx, c)
		return err
	default:
		return n.joined(ctx, c)
	}
}

// joined notes on the claim of a node that asks with its certificate that it has one: no other key
// gets in on the token from then on. Where there are Nodes its Node says so.
func (n *Nodes) joined(ctx context.Context, c tokens.Claim) error {
	if n.Node != nil || c.NodeUID != "" || c.Pending { // nothing is issued on a pending claim
		return nil
	}
	_, err := n.Claims.Update(ctx, c.Node, func(now *tokens.Claim) error {
		if now.Same(c) && now.NodeUID == "" && !now.Pending {
			now.NodeUID = tokens.ByCertificate
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("claim of node %s: %w", c.Node, err)
	}
	return nil
}
