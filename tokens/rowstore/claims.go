package rowstore

import (
	"context"
	"fmt"

	"github.com/kubejoin/kubejoin/tokens"
)

// Claims is a [tokens.Counter] of rows, in the database of a [Store].
type Claims struct {
	store *Store
	db    DB
	table *table[tokens.Claim]
}

var _ tokens.Counter = (*Claims)(nil)

// Claims returns the claims in the database.
func (s *Store) Claims() *Claims { return s.claims }

func newClaims(s *Store) *Claims {
	return &Claims{store: s, db: s.db, table: &table[tokens.Claim]{
		db: s.db, folder: claimsFolder, what: "claim", check: tokens.CheckNodeName,
		fields: func(c *tokens.Claim) fields {
			return fields{c.Node, &c.Created, &c.UID, &c.Version}
		},
		normalize: normalizedClaim, encode: encodeClaim, decode: decodeClaim,
		begins: func(before, after tokens.Claim) bool { return before.Released() && !after.Released() },
		index:  holders,
	}}
}

// holders returns the changes of the index when a claim changes.
func holders(before, after tokens.Claim) (changes []Change) {
	if before.Version == "" { // no row, whatever the caller has set
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

// Get implements [tokens.Claims].
func (s *Claims) Get(ctx context.Context, node string) (tokens.Claim, error) {
	return s.table.get(ctx, s.db, node)
}

// Find implements [tokens.Claims].
func (s *Claims) Find(ctx context.Context, node string) (tokens.Claim, error) {
	return s.table.get(ctx, s.db.Cached(), node)
}

// Recent implements [tokens.Claims]. It is Get.
func (s *Claims) Recent(ctx context.Context, node string) (tokens.Claim, error) {
	return s.Get(ctx, node)
}

// List implements [tokens.Claims]. It fails if it cannot decode a row, like [Store.List].
func (s *Claims) List(ctx context.Context) ([]tokens.Claim, error) { return s.table.list(ctx) }

// HeldBy implements [tokens.Claims]. [tokens.Recent] is [tokens.Live].
func (s *Claims) HeldBy(ctx context.Context, id string, read tokens.Read) ([]tokens.Claim, error) {
	if read == tokens.Cached {
		return s.held(ctx, s.db.Cached(), id, func(Row) error { return nil })
	}
	return s.held(ctx, s.db, id, func(holder Row) error {
		return mustHaveChanged(ctx, s.db, holder, "the token does not hold this claim")
	})
}

// held finds the claims of a token with the index, and reads all of them at once. It calls missing for a row of the index
// whose claim does not exist or belongs to another token.
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

// Create implements [tokens.Claims].
func (s *Claims) Create(ctx context.Context, c tokens.Claim) (tokens.Claim, error) {
	return s.table.create(ctx, c)
}

// Update implements [tokens.Claims].
func (s *Claims) Update(ctx context.Context, node string, change func(*tokens.Claim) error) (tokens.Claim, error) {
	return s.table.update(ctx, node, change)
}

// Delete implements [tokens.Claims].
func (s *Claims) Delete(ctx context.Context, c tokens.Claim) error { return s.table.delete(ctx, c) }

// Watch implements [tokens.Claims].
func (s *Claims) Watch(ctx context.Context) <-chan struct{} { return s.db.Watch(ctx, claimsFolder) }

// MaxCommit implements [tokens.Counter]. A record is one change, and a claim is at most three: its row, and two of the
// index.
func (s *Claims) MaxCommit() int { return min(tokens.MaxNodes, (s.db.MaxChanges()-1)/3) }

// Commit implements [tokens.Counter]. It writes the record in any case, so that of two concurrent calls one fails.
func (s *Claims) Commit(ctx context.Context, before, after tokens.Record, changes []tokens.ClaimChange) ([]tokens.Claim, error) {
	id := before.Token.ID()
	after, err := before.Edit(func(r *tokens.Record) error { *r = after; return nil })
	if err != nil {
		return nil, err
	}
	if before.Version == "" { // it would create the record
		return nil, fmt.Errorf("count nodes of token %s: %w: no version given", id, tokens.ErrConflict)
	}
	record, err := s.store.table.write(before, s.store.table.stamp(before, after))
	if err != nil {
		return nil, fmt.Errorf("count nodes of token %s: %w", id, err)
	}
	// Versions are enough as conditions: a key never has the same version again, so a row with the version of before has
	// its UID and all its values, too.
	conditions, writes := []Condition{record.condition}, record.changes
	claims := make([]tokens.Claim, len(changes))
	for i, change := range changes {
		w, err := s.table.write(change.Before, s.table.stamp(change.Before, change.After))
		if err != nil {
			return nil, fmt.Errorf("claim %.253s: %w", tokens.Redact(change.After.Node), err)
		}
		conditions, writes, claims[i] = append(conditions, w.condition), append(writes, w.changes...), w.value
	}
	version, err := s.db.Commit(ctx, conditions, writes)
	if err != nil {
		return nil, fmt.Errorf("count nodes of token %s: %w", id, err)
	}
	for i := range claims {
		claims[i].Version = version
	}
	return claims, nil
}
