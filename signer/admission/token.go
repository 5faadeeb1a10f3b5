package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/tokens"
)

// A machine gets a name in four steps: readToken, look, plan and commit. Only commit writes. If something has changed since
// it was read, all four start over.

// attempts is how often a decision starts over while others change the same claim or token.
const attempts = 10

// countTimeout is the timeout for a decision about requests with one token. Other requests with it wait meanwhile.
const countTimeout = 30 * time.Second

// A candidate is a machine that requests a node name, with what a decision about it depends on, and the decision.
type candidate struct {
	request  approval.Request
	node     string
	live     bool   // the cache of claims is not enough
	foreign  bool   // an object that is not a claim has the name
	tokenUID string // of the token for which a commit was tried

	claim   tokens.Claim // of the name, or only Node
	ended   bool         // the token counts the name, but its claim has ended
	nodeUID string       // of the Node that has the name, or empty
	ready   string       // result of Nodes.Ready for a replaced Node

	decision
	limits tokens.Limits // of the token that the decision is for
}

// A decision is what becomes of the claim of a name, and why its candidate is refused, or nil.
type decision struct {
	next     tokens.Claim // also if the candidate is refused
	step     step
	replaces bool // the token replaces the Node that has the name now
	vacates  bool // the claim belongs to a Node that was deleted
	lost     bool // the token counted the name, and another one has it
	err      error
}

// admitToken checks a request of a bootstrap token and, if the token has limits, claims the name.
func (n *Nodes) admitToken(ctx context.Context, r approval.Request, id, node string, a *Admitted) error {
	if n.Tokens == nil || n.Claims == nil {
		return approval.RefuseFor(ReasonTokenRevoked, "this server does not accept bootstrap tokens")
	}
	if !n.dry { // the proof of a cache may be a write
		if allows, err := n.recentlyAllows(ctx, id, r, node); err != nil {
			return err
		} else if allows {
			return n.admitFree(ctx, node)
		}
	}
	// Check this before the claim: a request that cannot be signed leaves no claim.
	if err := pkcs10.CheckSignature(r.CSR); err != nil {
		return err
	}
	c := &candidate{request: r, node: node, live: n.dry}
	// Requests with the same token at the same time are decided together. Otherwise each machine of a rack would conflict
	// with every other machine, and retry.
	if err := n.slots.Do(ctx, id, c, func(ctx context.Context, all []*candidate) {
		ctx, cancel := context.WithTimeout(ctx, countTimeout)
		defer cancel()
		n.decide(ctx, id, all)
	}); err != nil {
		return fmt.Errorf("update node count of token %s: %w", id, err)
	}
	if c.err != nil || c.limits.IsZero() {
		return c.err
	}
	a.Duration, a.TokenID, a.Keys = c.limits.CertificateDuration, id, len(c.next.Keys)
	if c.replaces {
		a.nodeUID = c.limits.Replaces.UID
	}
	return nil
}

// recentlyAllows reports whether a token allows the request and has no limits, neither by its record nor by its claims.
// A token without limits reserves nothing, so record and claims may be up to [tokens.MaxAge] old. If the result is
// false, the caller decides by live reads.
func (n *Nodes) recentlyAllows(ctx context.Context, id string, r approval.Request, node string) (bool, error) {
	// The cached record only selects where to start.
	if record, err := n.Tokens.Find(ctx, id); err != nil || !record.Limits.IsZero() {
		return false, nil
	}
	record, err := n.Tokens.Recent(ctx, id)
	switch {
	case errors.Is(err, tokens.ErrNotFound), errors.Is(err, tokens.ErrMalformed):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("token %s: %w", id, err)
	case !record.Limits.IsZero() || n.check(record, r, node) != nil:
		return false, nil
	}
	claims, err := n.Claims.HeldBy(ctx, id, tokens.Recent)
	if err != nil {
		return false, fmt.Errorf("claims of token %s: %w", id, err)
	}
	return !restrict(&record, claims), nil
}

// admitFree refuses the name of a Node, and a name that a token with limits has claimed. It may miss a claim that is less
// than [tokens.MaxAge] old. This grants no more than a live read: a token with limits may also claim the name just after
// the check.
func (n *Nodes) admitFree(ctx context.Context, node string) error {
	c := &candidate{node: node, live: n.dry}
	for range attempts {
		if err := n.look(ctx, tokens.Record{}, c); err != nil {
			return err
		}
		c.decision = n.planFree(c)
		switch again, err := n.commit(ctx, tokens.Record{}, tokens.Record{}, false, []*candidate{c}); {
		case changed(err), len(again) > 0:
			c.live = true
		case err != nil:
			return err
		default:
			return c.err
		}
	}
	return fmt.Errorf("claim of node %s: changed during each of %d attempts", node, attempts)
}

// decide decides about all candidates of a token, at once about those whose names differ.
func (n *Nodes) decide(ctx context.Context, id string, all []*candidate) {
	for len(all) > 0 {
		var rest []*candidate
		names := map[string]*candidate{}
		all = slices.DeleteFunc(slices.Clone(all), func(c *candidate) bool {
			again := names[c.node] != nil
			if names[c.node] = c; again {
				rest = append(rest, c)
			}
			return again
		})
		var err error
		for try := 0; try < attempts && len(all) > 0; try++ {
			// The first try reads the cache, because its write fails if the cache is stale.
			var again []*candidate
			if again, err = n.try(ctx, id, all, try > 0 || n.dry); err == nil {
				all = again
			} else if !changed(err) {
				break
			}
			for _, c := range all {
				c.live = c.live || try > 0
			}
		}
		if err == nil || changed(err) {
			err = fmt.Errorf("token %s: it or the claims of its nodes changed during each of %d attempts", id, attempts)
		}
		for _, c := range all {
			c.err = err
		}
		all = rest
	}
}

// changed reports whether a write failed because another writer changed or deleted something first.
func changed(err error) bool {
	return errors.Is(err, tokens.ErrNotFound) || errors.Is(err, tokens.ErrConflict)
}

// errStale means that the cached token is not enough to decide. Nothing was written.
var errStale = fmt.Errorf("the cached token %w", tokens.ErrConflict)

// try returns the candidates that must start over. If it fails with an error for which changed is true, all must.
// Unless live is set, it reads the token from the cache, and refuses nothing.
func (n *Nodes) try(ctx context.Context, id string, all []*candidate, live bool) (again []*candidate, err error) {
	record, after, err := n.readToken(ctx, id, live, func(record tokens.Record) bool {
		return record.Limits.NodeLimit() == 0 || record.Limits.Replaces != (tokens.NodeRef{}) ||
			slices.ContainsFunc(all, func(c *candidate) bool { return slices.Contains(record.Nodes, c.node) })
	})
	if err != nil {
		return nil, err
	}
	mended := !record.Limits.Equal(after.Limits) || len(record.Nodes) != len(after.Nodes)
	var looking sync.WaitGroup
	for _, c := range all {
		c.claim = tokens.Claim{Node: c.node}
		c.decision, c.limits = decision{next: c.claim}, after.Limits
		// Refuse first what needs no other read: a refused kubelet retries about a hundred times an hour.
		if c.err = n.allows(after, c); c.err == nil {
			looking.Go(func() { c.err = n.look(ctx, after, c) })
		}
	}
	looking.Wait()
	n.plan(&after, all)
	if !live && slices.ContainsFunc(all, func(c *candidate) bool { return approval.Refused(c.err) != nil }) {
		return nil, errStale
	}
	return n.commit(ctx, record, after, mended, all)
}

// readToken reads a token, and restores in after what the record has lost: restrictions that were erased, and names that
// are missing in the count. The claims of the token ID have both.
//
// A record without a node limit or without counted names may have lost them, or may be another token under the same
// ID. Then readToken reads the claims live, after the record. Otherwise the cached claims only decide whether to read them
// live.
func (n *Nodes) readToken(ctx context.Context, id string, live bool, needsLive func(tokens.Record) bool) (record, after tokens.Record, err error) {
	if live {
		record, err = n.Tokens.Get(ctx, id)
	} else if record, err = n.Tokens.Find(ctx, id); err != nil || needsLive(record) {
		return record, after, errStale
	}
	switch {
	case errors.Is(err, tokens.ErrNotFound), errors.Is(err, tokens.ErrMalformed):
		return record, after, refuseGone(id)
	case err != nil:
		return record, after, fmt.Errorf("token %s: %w", id, err)
	case record.Problem != nil || record.Limits.Problem != nil:
		return record, record, nil
	}
	read := tokens.Live
	if record.Limits.NodeLimit() > 0 && len(record.Nodes) > 0 {
		read = tokens.Cached
	}
	for {
		claims, err := n.Claims.HeldBy(ctx, id, read)
		if err != nil {
			return record, after, fmt.Errorf("claims of token %s: %w", id, err)
		}
		after = record.Clone()
		if !restrict(&after, claims) || read == tokens.Live {
			return record, after, nil
		}
		read = tokens.Live
	}
}

// look reads what a decision about a name depends on: its claim, then its Node.
func (n *Nodes) look(ctx context.Context, record tokens.Record, c *candidate) error {
	c.claim, c.nodeUID, c.ready = tokens.Claim{Node: c.node}, "", ""
	if n.Claims != nil {
		if err := n.lookAtClaim(ctx, record, c); err != nil {
			return fmt.Errorf("claim of node %s: %w", c.node, err)
		}
		c.ended = n.Claims.Ended(record, c.claim)
	}
	ref := record.Limits.Replaces
	if n.Node == nil || n.AllowExisting && ref == (tokens.NodeRef{}) && c.claim.NodeUID == "" {
		return nil
	}
	// After the claim: a Node that the claim has, and that does not exist now, was deleted.
	uid, err := n.uidOf(ctx, c.node)
	if c.nodeUID = uid; err != nil || uid == "" || ref != (tokens.NodeRef{Name: c.node, UID: uid}) || n.Ready == nil {
		return err
	}
	if c.ready, err = n.Ready(ctx, c.node); err != nil && !errors.Is(err, tokens.ErrNotFound) {
		return fmt.Errorf("node %s: %w", c.node, err)
	}
	return nil
}

// lookAtClaim reads the claim live unless the cache has none. If the cache is wrong about that, the write fails, and
// the candidate starts over.
func (n *Nodes) lookAtClaim(ctx context.Context, record tokens.Record, c *candidate) error {
	if !c.live && !slices.Contains(record.Nodes, c.node) {
		find := n.Claims.Find
		if record.Limits.IsZero() { // no write follows if the name is free
			find = n.Claims.Recent
		}
		switch _, err := find(ctx, c.node); {
		case errors.Is(err, tokens.ErrNotFound):
			return nil
		case err != nil:
			return err
		}
	}
	claim, err := n.Claims.Get(ctx, c.node)
	if err == nil {
		c.claim = claim
	} else if errors.Is(err, tokens.ErrNotFound) {
		err = nil
	}
	return err
}

// commit writes what was planned, unless this is a dry run, and returns the candidates that must start over.
func (n *Nodes) commit(ctx context.Context, before, after tokens.Record, mended bool, all []*candidate) (again []*candidate, err error) {
	var changes []tokens.ClaimChange
	var changing []*candidate
	for _, c := range all {
		// A claim that stays as it is counts only if the store still counts its name.
		if c.err == nil && !c.next.Released() || !c.next.Equal(c.claim) {
			changes, changing = append(changes, tokens.ClaimChange{Before: c.claim, After: c.next}), append(changing, c)
		}
	}
	switch {
	case after.Limits.IsZero():
		before, after = tokens.Record{}, tokens.Record{}
	case after.Limits.NodeLimit() == 0: // it counts nobody
		after, mended = before, false
	}
	if n.dry || len(changes) == 0 && !mended && len(before.Nodes) == len(after.Nodes) {
		return nil, nil
	}
	for _, c := range all {
		c.tokenUID = before.UID
	}
	outcomes, err := n.Claims.Commit(ctx, before, after, changes)
	if err != nil && len(outcomes) == 0 {
		return nil, fmt.Errorf("update node count of token %s: %w", before.Token.ID(), err)
	}
	if mended {
		n.count("repaired")
		n.log.Warn("bootstrap token had lost limits or node names, restored from its claims", "token", before.Token.ID())
	}
	for i, o := range outcomes {
		switch c := changing[i]; {
		case o.Err == nil:
			c.next = o.Claim
			n.report(c)
		case errors.Is(o.Err, tokens.ErrExists):
			c.foreign, again = true, append(again, c)
		case changed(o.Err):
			again = append(again, c)
		default:
			c.err = o.Err
		}
	}
	for _, c := range all {
		if c.lost && err != nil { // a refusal would be final
			c.err = fmt.Errorf("token %s may still count node name %s: %w", before.Token.ID(), c.node, err)
		}
	}
	return again, nil
}

// report logs and counts a change of a claim that was written.
func (n *Nodes) report(c *candidate) {
	if c.vacates {
		n.log.Info("claim released, its Node was deleted", "node", tokens.Redact(c.node), "token", c.claim.TokenID)
		n.count("released")
	}
	switch c.step {
	case keep:
		return
	case newClaim:
		n.log.Info("node name claimed", "node", tokens.Redact(c.node), "token", c.next.TokenID)
	default:
		n.log.Warn("node name claim changed", "change", c.step.String(), "node", tokens.Redact(c.node), "token", c.next.TokenID, "keys", len(c.next.Keys))
	}
	n.count(c.step.String())
}
