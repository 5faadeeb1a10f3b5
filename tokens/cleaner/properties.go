package cleaner

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubejoin/kubejoin/tokens"
)

// Properties gives Nodes what their tokens ask for.
type Properties interface {
	// Joining returns the names of the Nodes with [tokens.JoiningTaint], from a cache that may lag.
	Joining(ctx context.Context) ([]string, error)
	// Set gives the Node of a claim what [tokens.Claim.Remaining] has, and removes [tokens.JoiningTaint]. If the Node has to wait,
	// Set adds what it can. Set does nothing if the claim has changed since it was listed: the Node may be that of another token,
	// and a hint about the change starts another step. A Claim with only Node means that the Node has no claim. done reports
	// whether the Node has everything. uid is that of the Node, read live; it may be empty if done is false. The error wraps
	// [tokens.ErrNotFound] if there is no such Node.
	Set(ctx context.Context, claim tokens.Claim) (uid string, done bool, err error)
}

// node reads the Node of a claim live. If the claim does not have its UID yet, node gives it what the token asks for, and
// reports whether it has everything. The claim of a Node that waits gets its UID all the same: the token admits no other
// machine under its name. setProperties then reports the error.
func (c *claimLoop) node(ctx context.Context, claim tokens.Claim) (uid string, done bool, err error) {
	want := claim.Remaining().Node
	sets := c.Properties != nil && want != (tokens.NodeProperties{})
	if !sets || claim.NodeUID != "" {
		if uid, err = c.Node(ctx, claim.Node); !sets || err != nil || uid == claim.NodeUID {
			return uid, true, err
		}
	}
	uid, done, err = c.Properties.Set(ctx, claim)
	if !done && !errors.Is(err, tokens.ErrNotFound) && (claim.NodeUID == "" || claim.Waits) {
		uid, err = c.Node(ctx, claim.Node)
	}
	return uid, done, err
}

// setProperties sets the properties of Nodes that step does not register: of those that registered again after their claim was
// released, of those that wait, and of all with [tokens.JoiningTaint]. A kubelet registers with that taint each time.
func (c *claimLoop) setProperties(ctx context.Context, released, claims []tokens.Claim, nodes map[string]string) (errs []error) {
	names, err := c.Properties.Joining(ctx)
	if err != nil {
		return []error{fmt.Errorf("list joining nodes: %w", err)}
	}
	joining := make(map[string]bool, len(names))
	for _, name := range names {
		joining[name] = true
	}
	set := func(claim tokens.Claim, wants bool) {
		if wants {
			errs = append(errs, c.set(ctx, claim))
		}
		delete(joining, claim.Node)
	}
	none, before := tokens.NodeProperties{}, c.returned
	c.returned = map[string]string{} // so that it has no names without a claim
	for _, claim := range released {
		if uid := before[claim.Node]; uid != "" {
			c.returned[claim.Node] = uid
		}
		uid := nodes[claim.Node]
		set(claim, joining[claim.Node] || claim.Past.Node != none && uid != "" && c.returned[claim.Node] != uid)
	}
	for _, claim := range claims { // clean follows for those without the UID of a Node
		if !claim.Waits { // if somebody releases the claim, its Node has everything
			c.returned[claim.Node] = claim.NodeUID
		}
		waits := claim.Waits && (nodes == nil || nodes[claim.Node] == claim.NodeUID)
		set(claim, waits || joining[claim.Node] && !claim.Waits && (claim.NodeUID != "" || claim.Limits.Node == none))
	}
	for _, name := range names {
		if joining[name] {
			errs = append(errs, c.set(ctx, tokens.Claim{Node: name}))
		}
	}
	return errs
}

func (c *claimLoop) set(ctx context.Context, claim tokens.Claim) error {
	uid, done, err := c.Properties.Set(ctx, claim)
	switch {
	case errors.Is(err, tokens.ErrNotFound):
		return nil
	case done && claim.Waits && uid == claim.NodeUID:
		return c.note(ctx, claim, func(now *tokens.Claim) { now.Waits = false })
	}
	if done && claim.Remaining().Node != (tokens.NodeProperties{}) {
		c.returned[claim.Node] = uid
	}
	return err
}
