// Package etcdstore stores bootstrap tokens, claims, revocations and the issuance record in etcd, for several replicas
// of kubejoin without Kubernetes. It never uses the keys of Kubernetes.
//
// A read that decides is linearizable. Caches follow etcd with watches. A claim and the count of its token are written
// in one transaction: see [Claims.Commit].
//
// etcd contains the token secrets in clear text. It does not contain the CA key.
package etcdstore

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/internal/rows"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A Store is a [tokens.Store] in etcd. [Open] creates it. Records have the revision of their last change as Version.
type Store struct {
	kv     kv
	log    *slog.Logger
	schema schema

	stop      context.CancelFunc // ends the mirrors
	following sync.WaitGroup     // the mirrors
	refusing  atomic.Pointer[error]

	records     *mirror[tokens.Record]
	claims      Claims
	revocations Revocations
	issued      Issued
}

var _ tokens.Store = (*Store)(nil)

// Get implements [tokens.Store].
func (s *Store) Get(ctx context.Context, id string) (tokens.Record, error) {
	if err := check(ctx, id); err != nil {
		return tokens.Record{}, err
	}
	value, version, err := s.kv.get(ctx, tokensFolder+id)
	switch {
	case err != nil:
		return tokens.Record{}, fmt.Errorf("token %s: %w", id, err)
	case value == nil:
		return tokens.Record{}, fmt.Errorf("token %s: %w", id, tokens.ErrNotFound)
	}
	r, err := decodeRecord(id, value, version)
	if err != nil {
		return tokens.Record{}, s.kv.damaged(tokensFolder+id, err)
	}
	return r, nil
}

// Find implements [tokens.Store].
func (s *Store) Find(ctx context.Context, id string) (tokens.Record, error) {
	if err := check(ctx, id); err != nil {
		return tokens.Record{}, err
	}
	r, found, synced, err := s.records.find(id)
	switch {
	case !synced:
		return s.Get(ctx, id)
	case !found:
		return tokens.Record{}, fmt.Errorf("token %s: %w", id, tokens.ErrNotFound)
	}
	return r.Clone(), err
}

// List implements [tokens.Store]. If it cannot decode a row, it fails with an error that names the key.
func (s *Store) List(ctx context.Context) (all []tokens.Record, err error) {
	err = s.records.list(ctx, func(_ string, r tokens.Record) { all = append(all, r.Clone()) })
	return all, err
}

// Create implements [tokens.Store].
func (s *Store) Create(ctx context.Context, r tokens.Record) (tokens.Record, error) {
	if err := ctx.Err(); err != nil {
		return tokens.Record{}, err
	}
	id := r.Token.ID()
	if err := r.Check(); err != nil {
		return tokens.Record{}, fmt.Errorf("create token %s: %w", id, err)
	}
	r.Created, r.UID, r.Version = time.Now(), rand.Text(), ""
	r = rows.NormalizedRecord(r)
	row, err := rows.EncodeRecord(r)
	if err != nil {
		return tokens.Record{}, err
	}
	key := tokensFolder + id
	r.Version, err = s.write(ctx, []clientv3.Cmp{s.kv.absent(key)}, []clientv3.Op{s.kv.put(key, row)})
	switch {
	case err != nil:
		return tokens.Record{}, fmt.Errorf("create token %s: %w", id, err)
	case r.Version == "":
		return tokens.Record{}, fmt.Errorf("create token %s: %w", id, s.refused(ctx, tokens.ErrExists))
	}
	return r, nil
}

// Update implements [tokens.Store].
func (s *Store) Update(ctx context.Context, id string, change func(*tokens.Record) error) (tokens.Record, error) {
	for {
		before, err := s.Get(ctx, id)
		if err != nil {
			return tokens.Record{}, err
		}
		after, err := before.Edit(change)
		if err != nil {
			return tokens.Record{}, err
		}
		op, err := s.putRecord(before, &after)
		if err != nil {
			return tokens.Record{}, err
		}
		after.Version, err = s.write(ctx, []clientv3.Cmp{s.kv.unchanged(tokensFolder+id, before.Version)}, []clientv3.Op{op})
		if err != nil {
			return tokens.Record{}, fmt.Errorf("update token %s: %w", id, err)
		}
		if after.Version != "" {
			return after, nil
		}
		if err := s.refused(ctx, nil); err != nil {
			return tokens.Record{}, err
		}
	}
}

// putRecord normalizes the record after a change and returns its write.
func (s *Store) putRecord(before tokens.Record, after *tokens.Record) (clientv3.Op, error) {
	after.Created, after.Version = before.Created, ""
	*after = rows.NormalizedRecord(*after)
	row, err := rows.EncodeRecord(*after)
	return s.kv.put(tokensFolder+after.Token.ID(), row), err
}

// refused returns why a transaction has written nothing: another schema, or otherwise err.
func (s *Store) refused(ctx context.Context, err error) error {
	want, _ := s.schema.get()
	s.schema.set(want, false)
	missing, schemaErr := s.prepareSchema(ctx)
	switch {
	case schemaErr != nil:
		return schemaErr
	case missing && err != nil: // the other conditions may hold
		return ErrReadOnly
	}
	return err
}

// Delete implements [tokens.Store].
func (s *Store) Delete(ctx context.Context, r tokens.Record) error {
	now, err := s.Get(ctx, r.Token.ID())
	switch {
	case err != nil:
		return fmt.Errorf("delete: %w", err)
	case now.UID != r.UID:
		return fmt.Errorf("delete token %s: %w: another token has its ID", r.Token.ID(), tokens.ErrConflict)
	case now.Version != r.Version:
		return fmt.Errorf("delete token %s: %w: version %q given, %q found", r.Token.ID(), tokens.ErrConflict, r.Version, now.Version)
	}
	key := tokensFolder + r.Token.ID()
	switch version, err := s.write(ctx, []clientv3.Cmp{s.kv.unchanged(key, r.Version)}, []clientv3.Op{s.kv.delete(key)}); {
	case err != nil:
		return fmt.Errorf("delete token %s: %w", r.Token.ID(), err)
	case version == "":
		if err := s.refused(ctx, nil); err != nil {
			return err
		}
		return s.Delete(ctx, r) // another change came first; returns ErrNotFound or ErrConflict
	}
	return nil
}

// Watch implements [tokens.Store].
func (s *Store) Watch(ctx context.Context) <-chan struct{} { return s.records.hints.Watch(ctx) }

// check returns an error if ctx has ended or id is not a token ID.
func check(ctx context.Context, id string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return tokens.CheckID(id)
}
