package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
)

// countTimeout ends a write of a count that nobody answers: others wait for it.
const countTimeout = 30 * time.Second

// A place is one node's slot on a token. Slots that are requested on the same token at the same time are
// written together. Otherwise each machine of a rack on one token would start over once for each
// other machine.
type slotRequest struct {
	request approval.Request
	node    string

	record   tokens.Record // that the name was claimed by; zero before
	counted  bool          // the token had counted the name before this request came
	replaces bool          // the token is for the Node that has the name now
	ready    string        // which spell of being Ready that Node is in
	claim    tokens.Claim
	err      error
}

// errNoNodeLimit says that a token is not limited to a number of nodes.
var errNoNodeLimit = errors.New("the token counts nothing")

// takeSlot claims a name with a token that is limited to a number of nodes, and counts it by
// compare-and-swap: of all who ask at once, the token's limit is how many get past here. The last
// one also brings the token's expiration forward.
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
			return fmt.Errorf("count of token %s: %w", id, err)
		}
		if p.err != nil || !p.claim.Pending || n.dry {
			return p.err
		}
		if kept, err := n.confirm(ctx, p); err != nil || kept {
			return err
		}
	}
	return fmt.Errorf("claim of node %s: it was taken away %d times in a row", p.node, attempts)
}

// errUnchanged ends a change of a record, or a claim, that has nothing to change.
var errUnchanged = errors.New("nothing to change")

// confirm clears Pending on a claim whose name is counted now. It reports whether the claim is still as it
// was before the count. The claim has changed if another attempt with its key was refused meanwhile, if the
// count was lost and another machine was about to take the slot, or if another key was added.
func (n *Nodes) confirm(ctx context.Context, p *slotRequest) (kept bool, err error) {
	claim, err := n.Claims.Update(ctx, p.node, func(c *tokens.Claim) error {
		if c.UID != p.claim.UID || c.Version != p.claim.Version {
			return errUnchanged
		}
		c.Pending = false
		return nil
	})
	switch {
	case errors.Is(err, errUnchanged), errors.Is(err, tokens.ErrNotFound):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("claim of node %s: %w", p.node, err)
	}
	p.claim = claim
	return true, nil
}

// write claims and counts the names of all, or sets the error of those that get no slot. The claims are
// made between the live read of the token and its write. So when the write succeeds, no name was counted
// before it was claimed.
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
		var claiming sync.WaitGroup
		for _, p := range all {
			claiming.Go(func() { p.err = n.claimName(ctx, *record, p) })
		}
		claiming.Wait()
		before, spent, unsure := len(record.Nodes), record.Spent(), false
		for _, p := range all {
			if p.err == nil {
				p.err = n.place(record, p)
			}
			unsure = unsure || p.err == nil && p.claim.Pending
		}
		// After this write the record no longer shows that its count was lost.
		if mended || len(record.Nodes) > before {
			pending = slices.DeleteFunc(pending, func(c tokens.Claim) bool { return slices.Contains(record.Nodes, c.Node) })
			if err := n.evict(ctx, pending); err != nil {
				return err
			}
		}
		if !mended && len(record.Nodes) == before && !unsure { // the write proves that the record has not changed
			return errUnchanged
		}
		if end := n.now().Add(n.retention()); record.Spent() && !spent && (record.Expires.IsZero() || record.Expires.After(end)) {
			record.Expires = end.UTC().Truncate(time.Second)
		}
		return nil
	})
	switch {
	case errors.Is(err, errUnchanged):
		return nil
	case errors.Is(err, tokens.ErrNotFound):
		return refuseGone(id)
	case err != nil:
		return fmt.Errorf("count of token %s: %w", id, err)
	case mended:
		n.count("repaired")
		n.log.Warn("a token had lost limits or names that its claims know; they are put back", "token", id)
	}
	return nil
}

func (n *Nodes) retention() time.Duration {
	if n.Retention > 0 {
		return n.Retention
	}
	return DefaultRetention
}

// slotRequest puts a name on the record, if there is room. One that is there has its place: another
// replica may be at work on the same request.
func (n *Nodes) place(record *tokens.Record, p *slotRequest) error {
	if err := n.admits(*record, p.request, p.node); err != nil {
		return err
	}
	if !slices.Contains(record.Nodes, p.node) {
		record.Nodes = append(record.Nodes, p.node)
	}
	return nil
}
