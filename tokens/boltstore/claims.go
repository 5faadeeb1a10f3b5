package boltstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	"go.etcd.io/bbolt"
)

// Claims is a [tokens.Claims] in the file of a [Store]. Its changes share transactions with those of the
// Store. Its reads never lag.
type Claims struct {
	store  *Store
	hints  tokens.Hints
	listed listing[tokens.Claim]
}

var _ tokens.Claims = (*Claims)(nil)

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
	c.Created, c.UID, c.Version = time.Now(), rand.Text(), "1"
	c = normalizedClaim(c)
	err := s.store.write(&s.hints, func(tx *bbolt.Tx) error {
		switch _, err := getClaim(tx, c.Node); {
		case err == nil:
			return fmt.Errorf("create claim %s: %w", c.Node, tokens.ErrExists)
		case !errors.Is(err, tokens.ErrNotFound):
			return err
		}
		return putClaim(tx, tokens.Claim{}, c)
	})
	if err != nil {
		return tokens.Claim{}, err
	}
	return c.Clone(), nil
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
		version, err := strconv.ParseUint(before.Version, 10, 64)
		if err != nil {
			return tokens.Claim{}, fmt.Errorf("update claim %s: version: %w", node, err)
		}
		if before.Released() && !after.Released() {
			after.Created = time.Now()
		}
		after.Version = strconv.FormatUint(version+1, 10)
		after = normalizedClaim(after)
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
