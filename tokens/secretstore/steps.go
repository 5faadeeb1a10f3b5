package secretstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"

	"github.com/kubejoin/kubejoin/tokens"
)

// Steps is a [tokens.Claims] in another store than its tokens: Leases and Secrets. Commit takes three steps:
//
//  1. Write the count, by compare-and-swap on the token.
//  2. Write the claims, each by compare-and-swap. Before a claim changes its holder, mark the name as left on the old one.
//  3. Read the token live. A claim whose name it does not count any more starts over.
//
// So a lost count can be restored from the claims. All admitted names are among them, because each had its claim before
// the read that admitted it. A token that replaces a Node is for one name, which it cannot lose to another one. There
// step 2 comes before step 1, which shows that the token has had its claim.
//
// Only Commit and Ended are those of Steps. All other methods are those of Claims, whose Commit writes one claim and no
// token at a time. If an object that is not a claim has the name of a new claim, its error wraps [tokens.ErrExists].
type Steps struct {
	tokens.Claims
	Tokens tokens.Store
}

// Marks of counted names in [tokens.Record.Marks], as in the annotation. A name without a mark has a claim or gets one.
const (
	joinedMark = "+" // only in the annotation
	leftMark   = "-" // its claim has ended; it stays counted, and no machine gets it with the token any more
	lostMark   = "!" // somebody frees its slot: a request that claims it now is not admitted unless it counts it again
)

// errUnchanged ends an update that has nothing to change.
var errUnchanged = errors.New("nothing to change")

// Ended implements [tokens.Claims].
func (s Steps) Ended(r tokens.Record, c tokens.Claim) bool {
	return slices.Contains(r.Nodes, c.Node) &&
		(r.Marks[c.Node] == leftMark || r.Limits.Replaces != (tokens.NodeRef{}) && c.TokenID != r.Token.ID())
}

// Commit implements [tokens.Claims].
func (s Steps) Commit(ctx context.Context, before, after tokens.Record, changes []tokens.ClaimChange) ([]tokens.Outcome, error) {
	outcomes := make([]tokens.Outcome, len(changes))
	replaces := after.Limits.Replaces != (tokens.NodeRef{})
	if replaces {
		s.write(ctx, changes, outcomes)
		if slices.ContainsFunc(outcomes, func(o tokens.Outcome) bool { return o.Err != nil }) {
			return outcomes, nil
		}
	}
	if err := s.count(ctx, before, after, changes); err != nil && replaces {
		for i := range outcomes { // the claim is written
			outcomes[i].Err = err
		}
		return outcomes, nil
	} else if err != nil {
		return nil, err
	}
	if !replaces {
		s.write(ctx, changes, outcomes)
	}
	if after.Limits.NodeLimit() > 0 {
		s.recheck(ctx, before, changes, outcomes)
	}
	for _, node := range before.NodesBeyond(after) {
		i := slices.IndexFunc(changes, func(c tokens.ClaimChange) bool { return c.After.Node == node })
		if i >= 0 && outcomes[i].Err != nil {
			continue
		}
		if err := s.free(ctx, before.Token.ID(), node, i >= 0 || before.Marks[node] == leftMark); err != nil {
			return outcomes, err
		}
	}
	return outcomes, nil
}

// count is step 1. Names that after does not count any more stay until their claims are released.
func (s Steps) count(ctx context.Context, before, after tokens.Record, changes []tokens.ClaimChange) error {
	id, want := before.Token.ID(), after.Clone()
	want.Nodes, want.Marks = slices.Concat(before.Nodes, after.NodesBeyond(before)), maps.Clone(before.Marks)
	for _, c := range changes {
		if c.After.TokenID == id && want.Marks[c.After.Node] == lostMark {
			delete(want.Marks, c.After.Node)
		}
	}
	if len(want.Nodes) == len(before.Nodes) && reflect.DeepEqual(before, want) {
		return nil
	}
	_, err := s.swap(ctx, before, want)
	return err
}

// swap writes a token if it has not changed.
func (s Steps) swap(ctx context.Context, before, after tokens.Record) (tokens.Record, error) {
	id := before.Token.ID()
	now, err := s.Tokens.Update(ctx, id, func(now *tokens.Record) error {
		if now.Version != before.Version || !now.Limits.Equal(before.Limits) { // the rules of the token may have changed
			return tokens.ErrConflict
		}
		*now = after.Clone()
		return nil
	})
	if err != nil {
		return now, fmt.Errorf("update node count of token %s: %w", id, err)
	}
	return now, nil
}

// write is step 2.
func (s Steps) write(ctx context.Context, changes []tokens.ClaimChange, outcomes []tokens.Outcome) {
	var writing sync.WaitGroup
	for i, c := range changes {
		if outcomes[i].Claim = c.Before; c.Before.Version == "" || c.After.Empty() || !c.Before.Equal(c.After) {
			writing.Go(func() {
				if outcomes[i].Claim, outcomes[i].Err = s.writeClaim(ctx, c); outcomes[i].Err != nil {
					outcomes[i].Err = fmt.Errorf("claim of node %s: %w", tokens.Redact(c.After.Node), outcomes[i].Err)
				}
			})
		}
	}
	writing.Wait()
}

func (s Steps) writeClaim(ctx context.Context, c tokens.ClaimChange) (after tokens.Claim, err error) {
	switch {
	case c.Before.Version == "" && c.After.Empty():
		return c.After, nil
	case c.Before.Version == "":
		return s.create(ctx, c.After)
	}
	if !c.Before.Released() && c.After.TokenID != c.Before.TokenID {
		if err := s.leave(ctx, c.Before); err != nil {
			return after, err
		}
	}
	return tokens.CommitClaim(ctx, s.Claims, c.Before, c.After)
}

// create creates a claim. If the name exists, another request was faster, or an earlier attempt succeeded and its response
// was lost. If there is no claim, also after a retry, the error wraps ErrExists: an object that is not a claim has the name.
func (s Steps) create(ctx context.Context, c tokens.Claim) (after tokens.Claim, err error) {
	for range 2 {
		if after, err = tokens.CommitClaim(ctx, s.Claims, tokens.Claim{}, c); !errors.Is(err, tokens.ErrExists) {
			return after, err
		}
		switch _, getErr := s.Claims.Get(ctx, c.Node, tokens.Live); {
		case getErr == nil:
			return after, tokens.ErrConflict
		case !errors.Is(getErr, tokens.ErrNotFound):
			return after, getErr
		}
	}
	return after, err
}

// leave marks the name of a claim as left on its token, before the claim is released or written over for another token. A
// token that does not count the name, or is gone, stays as it is.
func (s Steps) leave(ctx context.Context, c tokens.Claim) error {
	_, err := s.Tokens.Update(ctx, c.TokenID, func(r *tokens.Record) error {
		if r.Problem != nil || r.Limits.Problem != nil || !slices.Contains(r.Nodes, c.Node) || r.Marks[c.Node] == leftMark {
			return errUnchanged
		}
		mark(r, c.Node, leftMark)
		return nil
	})
	if err == nil || errors.Is(err, errUnchanged) || errors.Is(err, tokens.ErrNotFound) {
		return nil
	}
	return fmt.Errorf("token %s, node %s has left: %w", c.TokenID, c.Node, err)
}

func mark(r *tokens.Record, node, mark string) {
	if r.Marks == nil {
		r.Marks = map[string]string{}
	}
	r.Marks[node] = mark
}

// recheck is step 3.
func (s Steps) recheck(ctx context.Context, counted tokens.Record, changes []tokens.ClaimChange, outcomes []tokens.Outcome) {
	id := counted.Token.ID()
	read := sync.OnceValues(func() (tokens.Record, error) { return s.Tokens.Get(ctx, id, tokens.Live) })
	for i, c := range changes {
		if outcomes[i].Err != nil || c.After.TokenID != id {
			continue
		}
		switch now, err := read(); {
		case err != nil && !errors.Is(err, tokens.ErrNotFound):
			outcomes[i].Err = fmt.Errorf("token %s: %w", id, err)
		case err != nil || now.UID != counted.UID || !counts(now, c.After.Node):
			outcomes[i].Err = fmt.Errorf("token %s does not count node %s: %w", id, tokens.Redact(c.After.Node), tokens.ErrConflict)
		}
	}
}

// counts reports whether a token counts a name, and a machine may have it.
func counts(r tokens.Record, node string) bool {
	return slices.Contains(r.Nodes, node) && r.Marks[node] == "" && len(r.Nodes) <= r.Limits.NodeLimit()
}

// freeAttempts is how often free retries while others change the token.
const freeAttempts = 20

// free removes a name without a claim from the count of a token. Nobody needs to know why the claim is missing: it was
// released, another token was faster, somebody deleted it, or kubejoin stopped before it could write it. The error wraps
// ErrConflict if the token holds a claim of the name: it must be released first.
//
// A request may be about to write the claim. So free first marks the name as lost, unless it has left: then that request
// is not admitted, and counts the name again if there is a slot. If the name leaves only now, a machine has had it
// meanwhile and has used the slot: then the error wraps ErrConflict, too.
func (s Steps) free(ctx context.Context, id, node string, left bool) error {
	for range freeAttempts {
		r, err := s.Tokens.Get(ctx, id, tokens.Live)
		switch {
		case errors.Is(err, tokens.ErrNotFound):
			return nil
		case err != nil:
			return err
		case r.Problem != nil || r.Limits.Problem != nil || !slices.Contains(r.Nodes, node):
			return nil
		case !left && r.Marks[node] == leftMark:
			return fmt.Errorf("token %s, node %s has left: %w", id, tokens.Redact(node), tokens.ErrConflict)
		}
		switch c, err := s.Claims.Get(ctx, node, tokens.Live); {
		case err == nil && c.TokenID == id:
			return fmt.Errorf("token %s has a claim on node %s: %w", id, tokens.Redact(node), tokens.ErrConflict)
		case err != nil && !errors.Is(err, tokens.ErrNotFound):
			return err
		}
		after, closed := r.Clone(), r.Marks[node] != ""
		if closed {
			after.Nodes = slices.DeleteFunc(after.Nodes, func(name string) bool { return name == node })
			delete(after.Marks, node)
		} else {
			mark(&after, node, lostMark)
		}
		switch _, err = s.swap(ctx, r, after); {
		case errors.Is(err, tokens.ErrNotFound), err == nil && closed:
			return nil
		case err != nil && !errors.Is(err, tokens.ErrConflict):
			return err
		}
	}
	return fmt.Errorf("token %s changed during each of %d attempts to give back the slot of node %s", id, freeAttempts, tokens.Redact(node))
}
