package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// mend restores what a record, which was read live, has lost and the claims of its ID still have:
// restrictions that were erased, and names that are missing in the count. It reports whether it changed
// the record, and returns the pending claims if it has read them.
//
// A record without a count may have lost it, or be another one under the same ID: then the claims
// are read live, after the record. Otherwise a cache says whether it is worth reading them, and
// nothing more.
func (n *Nodes) mend(ctx context.Context, record *tokens.Record) (mended bool, pending []tokens.Claim, err error) {
	if record.Problem != nil || record.Limits.Problem != nil {
		return false, nil, nil
	}
	id := record.Token.ID()
	if record.Limits.NodeLimit() > 0 && len(record.Nodes) > 0 {
		known, err := n.Claims.OfToken(ctx, id)
		if err != nil {
			return false, nil, fmt.Errorf("claims of token %s: %w", id, err)
		}
		try := *record
		try.Nodes = slices.Clone(record.Nodes)
		if !restrict(&try, known) {
			return false, nil, nil
		}
	}
	claims, err := n.Claims.HeldBy(ctx, id)
	if err != nil {
		return false, nil, fmt.Errorf("claims of token %s: %w", id, err)
	}
	for _, c := range claims {
		if c.Pending && c.NodeUID == "" && len(c.Keys) > 0 {
			pending = append(pending, c)
		}
	}
	return restrict(record, claims), pending, nil
}

// restrict restores from the claims what the record has lost, and reports whether it changed the record.
// It restores restrictions only: never a Node to replace and never a role, whichever token of this ID
// made the claim.
func restrict(record *tokens.Record, claims []tokens.Claim) (changed bool) {
	l := &record.Limits
	before := *l
	for _, c := range claims {
		maxNodes, names := c.Limits.MaxNodes, c.Limits.NodeNames
		if to := c.Limits.Replaces.Name; to != "" {
			maxNodes, names = 1, []string{to}
		}
		if l.Replaces == (tokens.NodeRef{}) { // which is for one node of one name
			if before.MaxNodes == 0 {
				l.MaxNodes = least(l.MaxNodes, maxNodes)
			}
			if len(l.NodeNames) == 0 {
				l.NodeNames = slices.Clone(names)
			}
		}
		if before.CertificateDuration == 0 {
			l.CertificateDuration = least(l.CertificateDuration, c.Limits.CertificateDuration)
		}
	}
	changed = !l.Equal(before)
	if l.NodeLimit() == 0 {
		return changed
	}
	for _, registered := range []bool{true, false} {
		for _, c := range claims {
			counts := c.NodeUID != "" || !c.Pending && len(c.Keys) > 0
			if counts && registered == (c.NodeUID != "") && !record.Spent() && !slices.Contains(record.Nodes, c.Node) {
				record.Nodes = append(record.Nodes, c.Node)
				changed = true
			}
		}
	}
	return changed
}

// least returns the lesser of two limits. Zero is unlimited.
func least[T int | time.Duration](a, b T) T {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// evict removes the keys of pending claims, which may have been counted before the count was lost. Nothing
// was issued on them. The request that made such a claim does not find its key and starts over. The claim
// stays, because its name may be counted. evict fails if a claim has changed since it was read.
func (n *Nodes) evict(ctx context.Context, pending []tokens.Claim) error {
	for _, c := range pending {
		_, err := n.Claims.Update(ctx, c.Node, func(evicted *tokens.Claim) error {
			if evicted.UID != c.UID || evicted.Version != c.Version {
				return tokens.ErrConflict
			}
			evicted.Keys, evicted.Requests = nil, nil
			return nil
		})
		if err != nil && !errors.Is(err, tokens.ErrNotFound) {
			return fmt.Errorf("claim of node %s: %w", c.Node, err)
		}
	}
	return nil
}

// drop releases a claim that nothing was issued on. It keeps the past of earlier claims of the name.
func (n *Nodes) drop(ctx context.Context, c tokens.Claim) error {
	left := c.Past
	if !left.Active(n.now()) {
		left = tokens.ReleasedClaim{}
	}
	err := tokens.Release(ctx, n.Claims, c, left)
	if err == nil {
		n.count("undone")
		n.log.Info("claim undone", "node", tokens.Redact(c.Node), "token", c.TokenID)
	}
	return err
}
