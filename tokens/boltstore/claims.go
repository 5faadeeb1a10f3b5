package boltstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/internal/rows"
	"go.etcd.io/bbolt"
)

// Claims is a [tokens.Counter] in the file of a [Store]. Its changes share transactions with those of the
// Store. Its reads never lag.
type Claims struct {
	store  *Store
	hints  tokens.Hints
	listed listing[tokens.Claim]
}

var _ tokens.Counter = (*Claims)(nil)

// Claims returns the claims in the file. They can be used until the store is closed.
func (s *Store) Claims() *Claims { return &s.claims }

// Get implements [tokens.Claims].
func (s *Claims) Get(ctx context.Context, node string) (tokens.Claim, error) {
	if err := ctx.Err(); err != nil {
		return tokens.Claim{}, err
	}
	if err := tokens.CheckNodeName(node); err != nil {
		return tokens.Claim{}, fmt.Errorf("get claim: %w", err)
	}
	var c tokens.Claim
	err := s.store.read(func(tx *bbolt.Tx) (err error) {
		c, err = getClaim(tx, node)
		return err
	})
	return c, err
}

// Find implements [tokens.Claims]. It is the same as Get.
func (s *Claims) Find(ctx context.Context, node string) (tokens.Claim, error) {
	return s.Get(ctx, node)
}

// List implements [tokens.Claims]. If it cannot decode a row, it fails with an error that names the row,
// like [Store.List].
func (s *Claims) List(ctx context.Context) ([]tokens.Claim, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var all []tokens.Claim
	err := s.store.read(func(tx *bbolt.Tx) (err error) {
		all, err = s.listed.list(tx.Bucket(claimsBucket), decodeClaim)
		return err
	})
	for i, c := range all {
		all[i] = c.Clone()
	}
	return all, err
}

// OfToken implements [tokens.Claims].
func (s *Claims) OfToken(ctx context.Context, id string) ([]tokens.Claim, error) {
	if err := check(ctx, id); err != nil {
		return nil, err
	}
	var all []tokens.Claim
	err := s.store.read(func(tx *bbolt.Tx) (err error) {
		all, err = claimsOf(tx, id, &s.listed)
		return err
	})
	for i, c := range all {
		all[i] = c.Clone()
	}
	return all, err
}

// HeldBy implements [tokens.Claims]. It is the same as OfToken.
func (s *Claims) HeldBy(ctx context.Context, id string) ([]tokens.Claim, error) {
	return s.OfToken(ctx, id)
}

// Create implements [tokens.Claims].
func (s *Claims) Create(ctx context.Context, c tokens.Claim) (tokens.Claim, error) {
	if err := ctx.Err(); err != nil {
		return tokens.Claim{}, err
	}
	if err := c.Check(); err != nil {
		return tokens.Claim{}, fmt.Errorf("create claim %.253s: %w", c.Node, err)
	}
	c, err := nextClaim(tokens.Claim{}, c)
	if err != nil {
		return tokens.Claim{}, err
	}
	if err := s.create(c); err != nil {
		return tokens.Claim{}, err
	}
	return c.Clone(), nil
}

// Restore stores a claim of another store, with its Created and UID. The error wraps [tokens.ErrExists] if there is a
// claim of its name.
func (s *Claims) Restore(ctx context.Context, c tokens.Claim) error {
	if err := errors.Join(ctx.Err(), c.Check()); err != nil {
		return fmt.Errorf("restore claim %s: %w", tokens.Redact(c.Node), err)
	}
	c.Version = "1"
	return s.create(rows.NormalizedClaim(c))
}

func (s *Claims) create(c tokens.Claim) error {
	return s.store.write(&s.hints, func(tx *bbolt.Tx) error {
		if err := unwritten(tx, tokens.Claim{}, c.Node); err != nil {
			return err
		}
		return putClaim(tx, tokens.Claim{}, c)
	})
}

// Update implements [tokens.Claims].
func (s *Claims) Update(ctx context.Context, node string, change func(*tokens.Claim) error) (tokens.Claim, error) {
	for {
		before, err := s.Get(ctx, node)
		if err != nil {
			return tokens.Claim{}, err
		}
		// Edit runs outside the transaction, so that change can use the store.
		after, err := before.Edit(change)
		if err != nil {
			return tokens.Claim{}, err
		}
		if after.Equal(before) {
			return before, nil
		}
		if after, err = nextClaim(before, after); err != nil {
			return tokens.Claim{}, err
		}
		err = s.store.write(&s.hints, func(tx *bbolt.Tx) error {
			if _, err := unchangedClaim(tx, before); err != nil {
				return err
			}
			return putClaim(tx, before, after)
		})
		switch {
		case err == nil:
			return after, nil
		case !errors.Is(err, tokens.ErrConflict):
			return tokens.Claim{}, err
		}
	}
}

// Delete implements [tokens.Claims].
func (s *Claims) Delete(ctx context.Context, c tokens.Claim) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := tokens.CheckNodeName(c.Node); err != nil {
		return fmt.Errorf("delete claim: %w", err)
	}
	return s.store.write(&s.hints, func(tx *bbolt.Tx) error {
		now, err := unchangedClaim(tx, c)
		if err != nil {
			return fmt.Errorf("delete: %w", err)
		}
		return deleteClaim(tx, now)
	})
}

// MaxCommit implements [tokens.Counter].
func (s *Claims) MaxCommit() int { return tokens.MaxNodes }

// Commit implements [tokens.Counter].
func (s *Claims) Commit(ctx context.Context, before, after tokens.Record, changes []tokens.ClaimChange) ([]tokens.Claim, error) {
	id := before.Token.ID()
	if err := check(ctx, id); err != nil {
		return nil, err
	}
	after, err := editRecord(before, func(r *tokens.Record) error { *r = after; return nil })
	if err != nil {
		return nil, err
	}
	claims := make([]tokens.Claim, len(changes))
	for i, change := range changes {
		if err := change.After.Check(); err != nil {
			return nil, fmt.Errorf("claim %.253s: %w", change.After.Node, err)
		}
		if claims[i], err = nextClaim(change.Before, change.After); err != nil {
			return nil, err
		}
	}
	err = s.store.write(&s.hints, func(tx *bbolt.Tx) error {
		if err := unchanged(tx, before); err != nil {
			return err
		}
		for i, change := range changes {
			if err := unwritten(tx, change.Before, claims[i].Node); err != nil {
				return err
			}
		}
		// Nothing is written before all conditions hold, because the transaction has other changes, too.
		for i, change := range changes {
			if err := putClaim(tx, change.Before, claims[i]); err != nil {
				return err
			}
		}
		return put(tx, after)
	})
	if errors.Is(err, tokens.ErrNotFound) || errors.Is(err, tokens.ErrExists) {
		err = fmt.Errorf("%w: %w", tokens.ErrConflict, err)
	}
	if err != nil {
		return nil, fmt.Errorf("count nodes of token %s: %w", id, err)
	}
	s.store.hints.Send()
	return claims, nil
}

// unwritten returns an error unless the stored claim of a node is c, which is the zero Claim for none.
func unwritten(tx *bbolt.Tx, c tokens.Claim, node string) error {
	if c.Version != "" {
		_, err := unchangedClaim(tx, c)
		return err
	}
	switch _, err := getClaim(tx, node); {
	case err == nil:
		return fmt.Errorf("create claim %s: %w", node, tokens.ErrExists)
	case !errors.Is(err, tokens.ErrNotFound):
		return err
	}
	return nil
}

// nextClaim returns a claim as it is stored over before, which is the zero Claim for none.
func nextClaim(before, c tokens.Claim) (tokens.Claim, error) {
	if before.Version == "" {
		c.Created, c.UID, c.Version = time.Now(), rand.Text(), "1"
		return rows.NormalizedClaim(c), nil
	}
	version, err := strconv.ParseUint(before.Version, 10, 64)
	if err != nil {
		return tokens.Claim{}, fmt.Errorf("update claim %s: version: %w", c.Node, err)
	}
	c.Created, c.UID = before.Created, before.UID
	if before.Released() && !c.Released() {
		c.Created = time.Now()
	}
	c.Version = strconv.FormatUint(version+1, 10)
	return rows.NormalizedClaim(c), nil
}

// Watch implements [tokens.Claims].
func (s *Claims) Watch(ctx context.Context) <-chan struct{} { return s.hints.Watch(ctx) }

// unchangedClaim returns the stored claim if it has the UID and Version of c. Otherwise the error wraps
// ErrNotFound or ErrConflict.
func unchangedClaim(tx *bbolt.Tx, c tokens.Claim) (tokens.Claim, error) {
	now, err := getClaim(tx, c.Node)
	switch {
	case err != nil:
		return tokens.Claim{}, err
	case now.UID != c.UID:
		return tokens.Claim{}, fmt.Errorf("claim %s: %w: another claim has its name", c.Node, tokens.ErrConflict)
	case now.Version != c.Version:
		return tokens.Claim{}, fmt.Errorf("claim %s: %w: version %q given, %q found", c.Node, tokens.ErrConflict, c.Version, now.Version)
	}
	return now, nil
}
