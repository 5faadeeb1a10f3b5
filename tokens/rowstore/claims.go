package rowstore

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	"github.com/kubejoin/kubejoin/tokens"
)

// Claims is a [tokens.Claims] whose claims are rows in the database of a [Store].
type Claims struct {
	store *Store
	db    DB
	table *table[tokens.Claim]
}

var _ tokens.Claims = (*Claims)(nil)

// Claims returns the claims in the database.
func (s *Store) Claims() *Claims { return s.claims }

func newClaims(s *Store) *Claims {
	return &Claims{store: s, db: s.db, table: &table[tokens.Claim]{
		db: s.db, folder: claimsFolder, what: "claim", check: tokens.CheckNodeName,
		fields: func(c *tokens.Claim) fields {
			return fields{c.Node, &c.Created, &c.UID, &c.Version}
		},
		normalize: normalizedClaim, encode: encodeClaim, decode: decodeClaim,
		begins: func(before, after tokens.Claim) bool { return before.TokenID != after.TokenID && !after.Released() },
		index:  holders,
	}}
}

// holders returns the changes of index rows for a change of a claim.
func holders(before, after tokens.Claim) (changes []Change) {
	if before.Version == "" { // not stored, even if the caller has set other fields
		before = tokens.Claim{}
	}
	if before.TokenID == after.TokenID {
		return nil
	}
	if !before.Released() {
		changes = append(changes, Change{Key: holderKey(before)})
	}
	if !after.Released() {
		changes = append(changes, Change{Key: holderKey(after), Value: []byte{}})
	}
	return changes
}

func holderKey(c tokens.Claim) string { return holdersFolder + c.TokenID + "/" + c.Node }

// Get implements [tokens.Claims]. It treats [tokens.Recent] as [tokens.Live].
func (s *Claims) Get(ctx context.Context, node string, read tokens.Read) (tokens.Claim, error) {
	return s.table.get(ctx, reader(s.db, read), node)
}

// List implements [tokens.Claims]. It fails if it cannot decode a row, like [Store.List].
func (s *Claims) List(ctx context.Context) ([]tokens.Claim, error) { return s.table.list(ctx) }

// HeldBy implements [tokens.Claims]. It treats [tokens.Recent] as [tokens.Live].
func (s *Claims) HeldBy(ctx context.Context, id string, read tokens.Read) ([]tokens.Claim, error) {
	if read == tokens.Cached {
		return s.held(ctx, s.db.Cached(), id, func(Row) error { return nil })
	}
	return s.held(ctx, s.db, id, func(holder Row) error {
		return mustHaveChanged(ctx, s.db, holder, "the token does not hold this claim")
	})
}

// held finds the claims of a token in the index, and reads all of them at once. It calls missing for an index row whose
// claim does not exist or belongs to another token.
func (s *Claims) held(ctx context.Context, from Reader, id string, missing func(Row) error) (all []tokens.Claim, err error) {
	if err := tokens.CheckID(id); err != nil {
		return nil, err
	}
	var holders []Row
	var nodes []string
	if err := scan(ctx, from, holdersFolder+id+"/", func(node string, row Row) error {
		holders, nodes = append(holders, Row{Key: row.Key, Version: row.Version}), append(nodes, node)
		return nil
	}); err != nil {
		return nil, fmt.Errorf("claims of token %s: %w", id, err)
	}
	claims, err := s.table.getAll(ctx, from, nodes...)
	if err != nil {
		return nil, err
	}
	for i, c := range claims {
		if c.TokenID == id {
			all = append(all, c)
		} else if err := missing(holders[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Watch implements [tokens.Claims].
func (s *Claims) Watch(ctx context.Context) <-chan struct{} { return s.db.Watch(ctx, claimsFolder) }

// Ended implements [tokens.Claims]. One transaction writes the claim and the count. So if a token counts a name without a
// claim, its claim has ended.
func (s *Claims) Ended(r tokens.Record, c tokens.Claim) bool {
	return c.TokenID != r.Token.ID() && slices.Contains(r.Nodes, c.Node)
}

// Commit implements [tokens.Claims]. It uses one transaction, or several if there are too many claims for one.
func (s *Claims) Commit(ctx context.Context, before, after tokens.Record, changes []tokens.ClaimChange) (all []tokens.Outcome, err error) {
	most := (s.db.MaxChanges() - 1) / 3 // a record needs one change, and a claim at most three: its row and two index rows
	for {
		some, rest := changes[:min(most, len(changes))], changes[min(most, len(changes)):]
		now := after.Clone()
		if len(rest) > 0 { // do not count names yet whose claims the next transaction writes
			now.Expires = before.Expires
			added := now.NodesBeyond(before)
			now.Nodes = slices.DeleteFunc(now.Nodes, func(name string) bool {
				return slices.Contains(added, name) && slices.ContainsFunc(rest, func(c tokens.ClaimChange) bool {
					return c.After.Node == name && c.Before.TokenID != c.After.TokenID
				})
			})
		}
		written, err := s.commit(ctx, &before, now, some)
		if err != nil && all == nil {
			return nil, err
		}
		if err != nil {
			return append(all, slices.Repeat([]tokens.Outcome{{Err: err}}, len(changes))...), nil
		}
		if all = append(all, written...); len(rest) == 0 {
			return all, nil
		}
		changes = rest
	}
}

// commit is Commit in one transaction. It sets before to the stored record. It does not write an unchanged record, but
// checks its version, so that tokens without a node limit can admit machines concurrently.
func (s *Claims) commit(ctx context.Context, before *tokens.Record, after tokens.Record, changes []tokens.ClaimChange) ([]tokens.Outcome, error) {
	var conditions []Condition
	var writes []Change
	record := *before
	if id := before.Token.ID(); id != "" {
		// Without a version, the write would create the record.
		if before.Version == "" {
			return nil, fmt.Errorf("count nodes of token %s: %w: no version given", id, tokens.ErrConflict)
		}
		conditions = append(conditions, Condition{tokensFolder + id, before.Version})
		if !reflect.DeepEqual(*before, after) {
			after, err := before.Edit(func(r *tokens.Record) error { *r = after; return nil })
			if err != nil {
				return nil, err
			}
			w, err := s.store.table.write(*before, s.store.table.stamp(*before, after))
			if err != nil {
				return nil, fmt.Errorf("count nodes of token %s: %w", id, err)
			}
			record, writes = w.value, w.changes
		}
	}
	if err := s.checkFree(ctx, *before, after, changes); err != nil {
		return nil, err
	}
	counts := len(writes) > 0
	// It is enough to compare versions: a key never gets an earlier version again, so a row with the version of Before also
	// has the same UID and values.
	outcomes, stored := make([]tokens.Outcome, len(changes)), make([]bool, len(changes))
	for i, c := range changes {
		if c.Before.Version != "" && !c.After.Empty() {
			after, err := c.Before.Edit(func(now *tokens.Claim) error { *now = c.After.Clone(); return nil })
			if err != nil {
				return nil, err
			}
			c.After = after
		}
		outcomes[i].Claim = c.After
		switch {
		case c.After.Empty():
			if err := tokens.CheckNodeName(c.After.Node); err != nil {
				return nil, err
			}
			key := claimsFolder + c.After.Node
			conditions, writes = append(conditions, Condition{key, c.Before.Version}), append(append(writes, holders(c.Before, tokens.Claim{})...), Change{Key: key})
			continue
		case c.Before.Version != "" && c.Before.Equal(c.After):
			continue
		}
		w, err := s.table.write(c.Before, s.table.stamp(c.Before, c.After))
		if err != nil {
			return nil, fmt.Errorf("claim %.253s: %w", tokens.Redact(c.After.Node), err)
		}
		conditions, writes = append(conditions, w.condition), append(writes, w.changes...)
		outcomes[i].Claim, stored[i] = w.value, true
	}
	if len(writes) == 0 {
		return outcomes, nil
	}
	version, err := s.db.Commit(ctx, conditions, writes)
	if err != nil {
		what := "claims of token " + before.Token.ID()
		if before.Token.ID() == "" {
			what = "claim " + tokens.Redact(changes[0].After.Node)
		}
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	for i := range outcomes {
		if stored[i] {
			outcomes[i].Claim.Version = version
		}
	}
	if counts {
		record.Version = version
	}
	*before = record
	return outcomes, nil
}

// checkFree returns an error that wraps ErrConflict if after frees the slot of a name on which the token still holds a
// claim. The caller writes the token only if it is unchanged since before, so the token cannot have got a new claim.
func (s *Claims) checkFree(ctx context.Context, before, after tokens.Record, changes []tokens.ClaimChange) error {
	free := slices.DeleteFunc(before.NodesBeyond(after), func(name string) bool {
		return slices.ContainsFunc(changes, func(c tokens.ClaimChange) bool { return c.After.Node == name })
	})
	claims, err := s.table.getAll(ctx, s.db, free...)
	for _, c := range claims {
		if id := before.Token.ID(); c.TokenID == id {
			return fmt.Errorf("token %s has a claim on node %s: %w", id, c.Node, tokens.ErrConflict)
		}
	}
	return err
}
