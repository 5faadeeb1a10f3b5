package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
)

// countNames claims the names of all and counts them on their token, or sets the error of those that get no slot.
//
// A [tokens.Counter] writes claims and count in one transaction. Other stores take three steps:
//
//  1. Write the count, by compare-and-swap on the token.
//  2. Write the claims of the names that it counts, each by compare-and-swap.
//  3. Read the token live. A name that it does not count any more starts over.
//
// So a lost count can be restored from the claims. All admitted names are among them, because each had its claim before
// the read that admitted it. A token that replaces a Node is for one name, which it cannot lose to another one. There
// the claim comes before the count, which shows that the token has had its claim.
func (n *Nodes) countNames(ctx context.Context, id string, all []*slotRequest) {
	most := len(all)
	if counter, ok := n.Claims.(tokens.Counter); ok {
		most = counter.MaxCommit()
	}
	for len(all) > 0 {
		var some, rest []*slotRequest
		names := map[string]bool{}
		for _, p := range all {
			if names[p.node] || len(some) == most { // one transaction changes a claim once
				rest = append(rest, p)
				continue
			}
			names[p.node] = true
			some = append(some, p)
		}
		n.countDistinct(ctx, id, some)
		all = rest
	}
}

// countDistinct is countNames for names that differ.
func (n *Nodes) countDistinct(ctx context.Context, id string, all []*slotRequest) {
	var err error
	for try := range attempts {
		// The first try reads the cache, because its write fails if the cache is stale.
		var again []*slotRequest
		if again, err = n.tryCount(ctx, id, all, try > 0); err == nil {
			all = again
		} else if errors.Is(err, errStale) { // nothing was written
			for _, p := range all {
				p.record = tokens.Record{}
			}
		}
		if len(all) == 0 {
			return
		}
		if err != nil && !changed(err) {
			break
		}
	}
	if err == nil || changed(err) {
		err = fmt.Errorf("token %s: it or the claims of its nodes changed during each of %d attempts", id, attempts)
	}
	for _, p := range all {
		p.err = err
	}
}

// tryCount returns the requests that must start over. If it fails with an error for which changed is true, all must.
// Unless live is set, it reads the token from the cache, and refuses nothing.
func (n *Nodes) tryCount(ctx context.Context, id string, all []*slotRequest, live bool) (again []*slotRequest, err error) {
	record, err := n.readToken(ctx, id, live)
	if err != nil {
		return nil, err
	}
	replaces := record.Limits.Replaces != (tokens.NodeRef{})
	if !live && (replaces || slices.ContainsFunc(all, func(p *slotRequest) bool { return slices.Contains(record.Nodes, p.node) })) {
		return nil, errStale
	}
	after := record.Clone()
	mended, err := n.mend(ctx, &after)
	if err != nil {
		return nil, err
	}
	if after.Limits.NodeLimit() == 0 {
		if !live {
			return nil, errStale
		}
		return nil, errNoNodeLimit
	}
	planned := make([]plannedClaim, len(all))
	var planning sync.WaitGroup
	for i, p := range all {
		planning.Go(func() { planned[i], p.err = n.planClaim(ctx, after, p) })
	}
	planning.Wait()
	counter, atomic := n.Claims.(tokens.Counter)
	if replaces && !atomic {
		n.writeClaims(ctx, all, planned)
	}
	counted := n.fill(&after, all)
	if !live && slices.ContainsFunc(all, func(p *slotRequest) bool { return approval.Refused(p.err) != nil }) {
		return nil, errStale
	}
	if atomic {
		err = n.commit(ctx, counter, record, after, all, planned)
	} else if counted || mended {
		err = n.swap(ctx, record, after)
	}
	if err != nil {
		return nil, err
	}
	if mended {
		n.reportMended(id)
	}
	if atomic {
		return nil, nil
	}
	if !replaces {
		n.writeClaims(ctx, all, planned)
	}
	return n.recheck(ctx, after, all)
}

// errStale means that the cached token is not enough to decide.
var errStale = fmt.Errorf("the cached token %w", tokens.ErrConflict)

func (n *Nodes) readToken(ctx context.Context, id string, live bool) (tokens.Record, error) {
	read := n.Tokens.Find
	if live {
		read = n.Tokens.Get
	}
	switch record, err := read(ctx, id); {
	case err == nil:
		return record, nil
	case !live:
		return record, errStale
	case errors.Is(err, tokens.ErrNotFound):
		return record, refuseGone(id)
	default:
		return record, fmt.Errorf("token %s: %w", id, err)
	}
}

// commit writes the claims of all and the record in one transaction.
func (n *Nodes) commit(ctx context.Context, counter tokens.Counter, before, after tokens.Record, all []*slotRequest, planned []plannedClaim) error {
	var changes []tokens.ClaimChange
	var writes []int
	for i, p := range all {
		if p.claim = planned[i].After; p.err == nil && !planned[i].Before.Equal(planned[i].After) {
			changes, writes = append(changes, planned[i].ClaimChange), append(writes, i)
		}
	}
	if len(changes) == 0 && slices.Equal(before.Nodes, after.Nodes) && before.Limits.Equal(after.Limits) {
		return nil
	}
	claims, err := counter.Commit(ctx, before, after, changes)
	if err != nil {
		return err
	}
	for at, i := range writes {
		all[i].claim = claims[at]
		n.reportClaim(planned[i].step, claims[at])
	}
	return nil
}

// swap writes a token if it has not changed.
func (n *Nodes) swap(ctx context.Context, before, after tokens.Record) error {
	_, err := n.Tokens.Update(ctx, before.Token.ID(), func(now *tokens.Record) error {
		if now.Version != before.Version {
			return tokens.ErrConflict
		}
		*now = after.Clone()
		return nil
	})
	if err != nil {
		return fmt.Errorf("update node count of token %s: %w", before.Token.ID(), err)
	}
	return nil
}

// writeClaims writes the planned claims of those that are not refused.
func (n *Nodes) writeClaims(ctx context.Context, all []*slotRequest, planned []plannedClaim) {
	var writing sync.WaitGroup
	for i, p := range all {
		if p.claim = planned[i].After; p.err == nil && !planned[i].Before.Equal(planned[i].After) {
			writing.Go(func() { p.claim, p.err = n.writeClaim(ctx, p, planned[i]) })
		}
	}
	writing.Wait()
}

// recheck reads the token live after the claims were written. It returns the requests whose claim has changed meanwhile,
// or that the token does not count any more. A request that has lost its name gives its slot back.
func (n *Nodes) recheck(ctx context.Context, counted tokens.Record, all []*slotRequest) (again []*slotRequest, err error) {
	id := counted.Token.ID()
	var record tokens.Record
	if !n.dry && slices.ContainsFunc(all, func(p *slotRequest) bool { return p.err == nil }) {
		record, err = n.Tokens.Get(ctx, id)
	}
	for _, p := range all {
		switch {
		case p.err == nil && err != nil && !errors.Is(err, tokens.ErrNotFound):
			p.err = fmt.Errorf("token %s: %w", id, err)
		case p.err == nil && !n.dry && (err != nil || record.UID != p.record.UID || !admits(record, p.node)), changed(p.err):
			again = append(again, p)
		case n.dry:
		case slices.Contains(counted.Nodes, p.node) && p.mayHaveLost():
			if err := n.giveBack(ctx, id, p); err != nil {
				p.err = fmt.Errorf("request refused (%v), but token %s may still count node name %s: %w", p.err, id, p.node, err)
			}
		}
	}
	return again, nil
}

// isRefused reports whether a request was refused for a reason.
func isRefused(err error, reason string) bool {
	refused := approval.Refused(err)
	return refused != nil && refused.Reason == reason
}

// mayHaveLost reports whether a request was refused because another token or an object that is not a claim has its name.
func (p *slotRequest) mayHaveLost() bool {
	return isRefused(p.err, ReasonNodeNameClaimed) || isRefused(p.err, ReasonNodeExists) || p.exists && isRefused(p.err, ReasonNodeNameNotAllowed)
}

// admits reports whether a token counts a name, and a machine may have it.
func admits(record tokens.Record, node string) bool {
	return slices.Contains(record.Nodes, node) && !slices.Contains(record.Left, node) && !slices.Contains(record.Lost, node) && len(record.Nodes) <= record.Limits.NodeLimit()
}

// giveBack removes a name from the count of a token unless the token keeps the slot. First it adds the name to those that
// the token has lost. Nobody is admitted under a lost name, so a claim that is made after giveBack has looked for one
// leads to no certificate.
func (n *Nodes) giveBack(ctx context.Context, id string, p *slotRequest) error {
	node := p.node
	keeps, err := n.keepsSlot(ctx, id, p)
	if keeps || err != nil {
		return err
	}
	_, err = n.Tokens.Update(ctx, id, func(r *tokens.Record) error {
		if !slices.Contains(r.Nodes, node) || slices.Contains(r.Left, node) {
			return errUnchanged
		}
		if !slices.Contains(r.Lost, node) { // by an attempt that was interrupted
			r.Lost = append(r.Lost, node)
		}
		return nil
	})
	if err == nil {
		keeps, err = n.keepsSlot(ctx, id, p)
	}
	if err == nil && !keeps {
		_, err = n.Tokens.Update(ctx, id, func(r *tokens.Record) error {
			if !slices.Contains(r.Lost, node) {
				return errUnchanged
			}
			r.Uncount(node)
			return nil
		})
	}
	if errors.Is(err, errUnchanged) || errors.Is(err, tokens.ErrNotFound) {
		return nil
	}
	return err
}

// keepsSlot reports whether a token keeps the slot of a request that was refused: it holds the claim, or nobody does and
// a Node has the name. That Node may have joined with the token, and somebody has deleted its claim. keepsSlot reads the
// claim live.
func (n *Nodes) keepsSlot(ctx context.Context, id string, p *slotRequest) (bool, error) {
	claim, err := n.Claims.Get(ctx, p.node)
	if errors.Is(err, tokens.ErrNotFound) {
		claim, err = tokens.Claim{}, nil
	}
	return err == nil && (claim.TokenID == id || claim.Released() && isRefused(p.err, ReasonNodeExists)), err
}
