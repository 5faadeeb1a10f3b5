package etcdstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/internal/rows"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Claims is a [tokens.Claims] and [tokens.Counter] in etcd.
type Claims struct {
	store  *Store
	mirror *mirror[tokens.Claim]
}

var _ tokens.Counter = (*Claims)(nil)

// Claims returns the claims in etcd. They can be used until the store is closed.
func (s *Store) Claims() *Claims { return &s.claims }

// Get implements [tokens.Claims].
func (s *Claims) Get(ctx context.Context, node string) (tokens.Claim, error) {
	if err := ctx.Err(); err != nil {
		return tokens.Claim{}, err
	}
	if err := tokens.CheckNodeName(node); err != nil {
		return tokens.Claim{}, fmt.Errorf("get claim: %w", err)
	}
	kv := s.store.kv
	value, version, err := kv.get(ctx, claimsFolder+node)
	switch {
	case err != nil:
		return tokens.Claim{}, fmt.Errorf("claim %s: %w", node, err)
	case value == nil:
		return tokens.Claim{}, fmt.Errorf("claim %s: %w", node, tokens.ErrNotFound)
	}
	c, err := decodeClaim(node, value, version)
	if err != nil {
		return tokens.Claim{}, kv.damaged(claimsFolder+node, err)
	}
	return c, nil
}

// Find implements [tokens.Claims].
func (s *Claims) Find(ctx context.Context, node string) (tokens.Claim, error) {
	if err := ctx.Err(); err != nil {
		return tokens.Claim{}, err
	}
	if err := tokens.CheckNodeName(node); err != nil {
		return tokens.Claim{}, fmt.Errorf("find claim: %w", err)
	}
	c, found, synced, err := s.mirror.find(node)
	switch {
	case !synced:
		return s.Get(ctx, node)
	case !found:
		return tokens.Claim{}, fmt.Errorf("claim %s: %w", node, tokens.ErrNotFound)
	}
	return c.Clone(), err
}

// List implements [tokens.Claims]. If it cannot decode a row, it fails with an error that names the key.
func (s *Claims) List(ctx context.Context) (all []tokens.Claim, err error) {
	err = s.mirror.list(ctx, func(_ string, c tokens.Claim) { all = append(all, c.Clone()) })
	return all, err
}

// OfToken implements [tokens.Claims].
func (s *Claims) OfToken(ctx context.Context, id string) ([]tokens.Claim, error) {
	if err := check(ctx, id); err != nil {
		return nil, err
	}
	all, synced := s.mirror.inGroup(id)
	if !synced {
		return s.HeldBy(ctx, id)
	}
	for i, c := range all {
		all[i] = c.Clone()
	}
	return all, nil
}

// HeldBy implements [tokens.Claims]. It finds the claims with the index and then reads each of them.
func (s *Claims) HeldBy(ctx context.Context, id string) (all []tokens.Claim, err error) {
	if err := check(ctx, id); err != nil {
		return nil, err
	}
	var nodes []string
	if _, err := s.store.kv.all(ctx, holdersFolder+id+"/", func(node string, _ *mvccpb.KeyValue) error {
		nodes = append(nodes, node)
		return nil
	}, clientv3.WithKeysOnly()); err != nil {
		return nil, fmt.Errorf("claims of token %s: %w", id, err)
	}
	for _, node := range nodes {
		switch c, err := s.Get(ctx, node); {
		case errors.Is(err, tokens.ErrNotFound): // deleted since
		case err != nil:
			return nil, err
		case c.TokenID == id:
			all = append(all, c)
		}
	}
	return all, nil
}

// Create implements [tokens.Claims].
func (s *Claims) Create(ctx context.Context, c tokens.Claim) (tokens.Claim, error) {
	w, err := s.write(tokens.Claim{}, c)
	if err == nil {
		c, err = w.claim, ctx.Err()
	}
	if err != nil {
		return tokens.Claim{}, err
	}
	c.Version, err = s.store.write(ctx, []clientv3.Cmp{w.condition}, w.ops)
	switch {
	case err != nil:
		return tokens.Claim{}, fmt.Errorf("create claim %s: %w", c.Node, err)
	case c.Version == "":
		return tokens.Claim{}, fmt.Errorf("create claim %s: %w", c.Node, s.store.refused(ctx, tokens.ErrExists))
	}
	return c, nil
}

// Update implements [tokens.Claims].
func (s *Claims) Update(ctx context.Context, node string, change func(*tokens.Claim) error) (tokens.Claim, error) {
	for {
		before, err := s.Get(ctx, node)
		if err != nil {
			return tokens.Claim{}, err
		}
		after, err := before.Edit(change)
		if err != nil {
			return tokens.Claim{}, err
		}
		if after.Equal(before) {
			return before, nil
		}
		w, err := s.write(before, after)
		if err != nil {
			return tokens.Claim{}, err
		}
		w.claim.Version, err = s.store.write(ctx, []clientv3.Cmp{w.condition}, w.ops)
		if err != nil {
			return tokens.Claim{}, fmt.Errorf("update claim %s: %w", node, err)
		}
		if w.claim.Version != "" {
			return w.claim, nil
		}
		if err := s.store.refused(ctx, nil); err != nil {
			return tokens.Claim{}, err
		}
	}
}

// Delete implements [tokens.Claims].
func (s *Claims) Delete(ctx context.Context, c tokens.Claim) error {
	for {
		now, err := s.Get(ctx, c.Node)
		switch {
		case err != nil:
			return fmt.Errorf("delete: %w", err)
		case now.UID != c.UID:
			return fmt.Errorf("delete claim %s: %w: another claim has its name", c.Node, tokens.ErrConflict)
		case now.Version != c.Version:
			return fmt.Errorf("delete claim %s: %w: version %q given, %q found", c.Node, tokens.ErrConflict, c.Version, now.Version)
		}
		kv := s.store.kv
		version, err := s.store.write(ctx, []clientv3.Cmp{kv.unchanged(claimsFolder+c.Node, c.Version)},
			append([]clientv3.Op{kv.delete(claimsFolder + c.Node)}, s.leave(now)...))
		if err != nil {
			return fmt.Errorf("delete claim %s: %w", c.Node, err)
		}
		if version != "" {
			return nil
		}
		if err := s.store.refused(ctx, nil); err != nil {
			return err
		}
	}
}

// Watch implements [tokens.Claims].
func (s *Claims) Watch(ctx context.Context) <-chan struct{} { return s.mirror.hints.Watch(ctx) }

// MaxCommit implements [tokens.Counter]. etcd allows 128 operations in a transaction by default (--max-txn-ops), and a
// claim takes three.
func (s *Claims) MaxCommit() int { return 40 }

// Commit implements [tokens.Counter].
func (s *Claims) Commit(ctx context.Context, before, after tokens.Record, changes []tokens.ClaimChange) ([]tokens.Claim, error) {
	id, kv := before.Token.ID(), s.store.kv
	if err := check(ctx, id); err != nil {
		return nil, err
	}
	after, err := before.Edit(func(r *tokens.Record) error { *r = after; return nil })
	if err != nil {
		return nil, err
	}
	conditions := []clientv3.Cmp{kv.unchanged(tokensFolder+id, before.Version)}
	op, err := s.store.putRecord(before, &after)
	if err != nil {
		return nil, err
	}
	ops := []clientv3.Op{op}
	var claims []tokens.Claim
	for _, change := range changes {
		w, err := s.write(change.Before, change.After)
		if err != nil {
			return nil, err
		}
		conditions, ops, claims = append(conditions, w.condition), append(ops, w.ops...), append(claims, w.claim)
	}
	version, err := s.store.write(ctx, conditions, ops)
	switch {
	case err != nil:
		return nil, fmt.Errorf("count nodes of token %s: %w", id, err)
	case version == "":
		return nil, fmt.Errorf("count nodes of token %s: %w", id, s.store.refused(ctx, tokens.ErrConflict))
	}
	for i := range claims {
		claims[i].Version = version
	}
	return claims, nil
}

// A claimWrite is a claim as it will be stored, the condition of the write, and its operations.
type claimWrite struct {
	claim     tokens.Claim
	condition clientv3.Cmp
	ops       []clientv3.Op
}

// write returns the write of a claim over before, which is the zero Claim for a new one.
func (s *Claims) write(before, c tokens.Claim) (w claimWrite, err error) {
	if err := c.Check(); err != nil {
		return w, fmt.Errorf("claim %s: %w", tokens.Redact(c.Node), err)
	}
	kv, key := s.store.kv, claimsFolder+c.Node
	if before.Version == "" {
		c.Created, c.UID = time.Now(), rand.Text()
		w.condition = kv.absent(key)
	} else {
		c.Created, c.UID = before.Created, before.UID
		if before.Released() && !c.Released() {
			c.Created = time.Now()
		}
		w.condition = kv.unchanged(key, before.Version)
	}
	c.Version = ""
	w.claim = rows.NormalizedClaim(c)
	row, err := rows.EncodeClaim(w.claim)
	if err != nil {
		return w, err
	}
	w.ops = []clientv3.Op{kv.put(key, row)}
	if before.TokenID != c.TokenID {
		w.ops = append(w.ops, s.leave(before)...)
		if !c.Released() {
			w.ops = append(w.ops, kv.put(holderKey(c), nil))
		}
	}
	return w, nil
}

// leave returns the operation that removes a claim from the index.
func (s *Claims) leave(c tokens.Claim) []clientv3.Op {
	if c.Released() {
		return nil
	}
	return []clientv3.Op{s.store.kv.delete(holderKey(c))}
}

func holderKey(c tokens.Claim) string { return holdersFolder + c.TokenID + "/" + c.Node }
