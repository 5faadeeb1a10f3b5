package storecopy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/issuance/rowrecord"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/rotation/rowstate"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
)

// A Violation is an invariant of a store that does not hold.
type Violation struct {
	// ID is one of damaged, too-many-nodes and not-counted.
	ID string `json:"id"`
	// Message says what is wrong. Advice says what to do.
	Message string `json:"message"`
	Advice  string `json:"advice"`
}

// maxDamaged is the maximum number of damaged rows that Check describes. It only counts the others.
const maxDamaged = 100

const damagedAdvice = "restore a backup, or if no backup has the row, delete it; 'kubejoin store copy --dry-run' shows whether the rest is readable"

// Check reads a whole store and returns violated invariants. The invariants are: rows can be decoded, indexes agree with rows,
// no token counts more nodes than its limit, and each token counts its claims. If a row is damaged, the counts are zero.
func (b *Backend) Check(ctx context.Context) (counts Counts, found []Violation, err error) {
	more := 0
	damaged := func(err error) {
		if len(found) < maxDamaged {
			found = append(found, Violation{"damaged", err.Error(), damagedAdvice})
		} else {
			more++
		}
	}
	report := func(key string, err error) { damaged(b.rows.DB().Damaged(key, err)) }
	err = rowstore.Check(ctx, b.rows.DB(), allRows(), report)
	if errors.Is(err, boltstore.ErrDamaged) { // a damaged page of the file
		damaged(err)
	} else if err != nil {
		return counts, nil, err
	}
	if more > 0 {
		found = append(found, Violation{"damaged", fmt.Sprintf("%d more rows are damaged", more), damagedAdvice})
	}
	if len(found) > 0 {
		return counts, found, nil // stop here: lists fail if a row is damaged
	}
	if counts, err = b.count(ctx, allRows()); err != nil {
		return counts, nil, err
	}
	records, err := b.rows.List(ctx)
	if err != nil {
		return counts, nil, err
	}
	claims, err := b.rows.Claims().List(ctx)
	if err != nil {
		return counts, nil, err
	}
	byID := map[string]tokens.Record{}
	for _, r := range records {
		byID[r.Token.ID()] = r
		if most := r.Limits.NodeLimit(); most > 0 && len(r.Nodes) > most {
			found = append(found, Violation{
				"too-many-nodes", fmt.Sprintf("token %s is for %d nodes and counts %d", r.Token.ID(), most, len(r.Nodes)),
				"it joined more nodes than allowed, so end it, and revoke nodes that you do not know: kubejoin token delete " + r.Token.ID(),
			})
		}
	}
	for _, c := range claims {
		r, exists := byID[c.TokenID]
		switch {
		case c.Released():
		case !exists || r.UID != c.TokenUID || r.Limits.NodeLimit() == 0:
		case !slices.Contains(r.Nodes, c.Node):
			found = append(found, Violation{
				"not-counted", fmt.Sprintf("token %s holds node name %s and does not count it", c.TokenID, c.Node),
				"kubejoin counts it at the next request with the token; if the machine will not join: kubejoin claim release " + c.Node,
			})
		}
	}
	return counts, found, nil
}

// allRows returns decoders that skip no row.
func allRows() rowstore.Decoders { return decoders(true, time.Time{}) }

// decoders returns the decoders of all rows. Without certificates, they drop the certificates from rows. They skip
// refusals and failures that were recorded before the given time.
func decoders(certificates bool, before time.Time) rowstore.Decoders {
	return rowstore.Decoders{
		Revocation: func(key string, value []byte) error {
			e, err := revocation.Decode(key, value)
			return errors.Join(err, e.Malformed)
		},
		Rotation: rowstate.LeftOut,
		Issued: func(value []byte) (rowstore.IssuedRow, error) {
			e, row, err := rowrecord.Decode(value, certificates)
			if err == nil && e.Outcome != issuance.Issued && e.Time.Before(before) {
				row.Value = nil
			}
			return row, err
		},
	}
}

// of returns a pointer to the number of rows of a kind.
func (c *Counts) of(kind rowstore.Kind) *int {
	return map[string]*int{"tokens/": &c.Tokens, "claims/": &c.Claims, "revocations/": &c.Revocations, "ca-rotation/": &c.Rotations, "issued/": &c.IssuanceEntries}[kind.Folder]
}

// count returns the numbers of rows that the decoders do not skip. It fails if a row cannot be copied.
func (b *Backend) count(ctx context.Context, d rowstore.Decoders) (counts Counts, err error) {
	for _, kind := range d.Kinds() {
		if err := rowstore.EachPage(ctx, b.rows.DB(), kind.Folder, func(page []rowstore.Row) (err error) {
			for _, row := range page {
				changes, changesErr := b.changes(kind, row.Key, row.Value)
				*counts.of(kind) += min(1, len(changes))
				err = errors.Join(err, changesErr)
			}
			return err
		}); err != nil {
			return counts, err
		}
	}
	return counts, nil
}

// changes returns the changes that store a row and its index rows. The error names the row.
func (b *Backend) changes(kind rowstore.Kind, key string, value []byte) ([]rowstore.Change, error) {
	changes, err := kind.Rows(key, value)
	if err != nil {
		err = b.rows.DB().Damaged(key, err)
	}
	return changes, err
}
