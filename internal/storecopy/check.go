package storecopy

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
)

// A Finding is an invariant of a store that does not hold.
type Finding struct {
	// ID is one of damaged, too-many-nodes and not-counted.
	ID string `json:"id"`
	// Message says what is wrong, and Advice what to do.
	Message string `json:"message"`
	Advice  string `json:"advice"`
}

// maxDamaged is how many damaged rows Check describes. It counts the others.
const maxDamaged = 100

const damagedAdvice = "restore a backup, or delete the row; 'kubejoin store copy --dry-run' shows whether the rest is readable"

// Check reads a whole store and returns which invariants do not hold: rows can be decoded, indexes agree with rows, no
// token counts more nodes than its limit, and each claim is counted by its token. The counts are zero if a row is damaged.
func (s *Store) Check(ctx context.Context) (counts Counts, found []Finding, err error) {
	more := 0
	damaged := func(err error) {
		if len(found) < maxDamaged {
			found = append(found, Finding{"damaged", err.Error(), damagedAdvice})
		} else {
			more++
		}
	}
	if err := s.check(ctx, damaged); errors.Is(err, boltstore.ErrDamaged) { // a page
		damaged(err)
	} else if err != nil {
		return counts, nil, err
	}
	if more > 0 {
		found = append(found, Finding{"damaged", fmt.Sprintf("%d more rows are damaged", more), damagedAdvice})
	}
	if len(found) > 0 {
		return counts, found, nil // lists fail while a row is damaged
	}
	if counts, err = s.count(ctx, func(issuance.Entry) bool { return true }); err != nil {
		return counts, nil, err
	}
	records, err := s.tokens.List(ctx)
	if err != nil {
		return counts, nil, err
	}
	claims, err := s.claims.List(ctx)
	if err != nil {
		return counts, nil, err
	}
	byID := map[string]tokens.Record{}
	for _, r := range records {
		byID[r.Token.ID()] = r
		if most := r.Limits.NodeLimit(); most > 0 && len(r.Nodes) > most {
			found = append(found, Finding{
				"too-many-nodes", fmt.Sprintf("token %s is for %d nodes and counts %d", r.Token.ID(), most, len(r.Nodes)),
				"delete the token, and revoke nodes that you do not know: kubejoin token delete " + r.Token.ID(),
			})
		}
	}
	for _, c := range claims {
		r, exists := byID[c.TokenID]
		switch {
		case c.Released():
		case !exists || r.UID != c.TokenUID || r.Limits.NodeLimit() == 0:
		case !slices.Contains(r.Nodes, c.Node):
			found = append(found, Finding{
				"not-counted", fmt.Sprintf("token %s holds node name %s and does not count it", c.TokenID, c.Node),
				"kubejoin counts it at the next request with the token; if the machine will not join: kubejoin claim release " + c.Node,
			})
		}
	}
	return counts, found, nil
}

// count returns the numbers of rows, and those of the entries that want selects. It fails if a row cannot be copied.
func (s *Store) count(ctx context.Context, want func(issuance.Entry) bool) (counts Counts, err error) {
	records, err := s.tokens.List(ctx)
	if err != nil {
		return counts, err
	}
	claims, err := s.claims.List(ctx)
	if err != nil {
		return counts, err
	}
	revocations, err := s.revocations.List(ctx)
	if err != nil {
		return counts, err
	}
	counts = Counts{Tokens: len(records), Claims: len(claims), Revocations: len(revocations)}
	for _, r := range records {
		if err := r.Check(); err != nil {
			return counts, fmt.Errorf("%s: token %s: %w", s.name, r.Token.ID(), err)
		}
	}
	for _, c := range claims {
		if err := c.Check(); err != nil {
			return counts, fmt.Errorf("%s: claim of node %s: %w", s.name, c.Node, err)
		}
	}
	for _, e := range revocations {
		if e.Malformed != nil {
			return counts, fmt.Errorf("%s: revocation %s: %w", s.name, e.Key(), e.Malformed)
		}
	}
	add := func(page []issuance.Entry) error {
		for _, e := range page {
			if want(e) {
				counts.Issued++
			}
		}
		return nil
	}
	journaled, err := s.journaled()
	return counts, errors.Join(err, add(journaled), each(ctx, s.record, add))
}
