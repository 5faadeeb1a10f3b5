// Package boltstore stores bootstrap tokens, claims, revocations and the issuance record in one file. It is the
// default for installers and signers without a Kubernetes API. Only one process can use the file, so
// several replicas need tokens/secretstore instead.
//
// Package tokens defines what a token means, and signer/issuance/boltrecord what an entry of the
// issuance record means.
package boltstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/batch"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/internal/rows"
	"go.etcd.io/bbolt"
)

// A Store is a [tokens.Store] in one file, which it locks until Close. A change is on the disk when the
// method that makes it returns. Concurrent changes share one fsync.
//
// Until Close there may be a second file with the same name and the suffix "-journal". It contains the
// entries that [Issued] has not yet imported into the first file. After a crash, keep both files together.
//
// The file contains the token secrets in clear text.
type Store struct {
	db     *bbolt.DB
	path   string
	hints  tokens.Hints
	claims Claims
	issued Issued

	revocations Revocations

	commit sync.Mutex // held while a transaction writes
	broken error      // guarded by commit
	writes batch.Queue[struct{}, *write]

	listed listing[tokens.Record]
}

var _ tokens.Store = (*Store)(nil)

// Close unlocks and closes the file. Every later call fails.
func (s *Store) Close() error {
	err := s.issued.close()
	s.commit.Lock()
	defer s.commit.Unlock()
	if s.broken != nil {
		return s.broken // db.Close could block forever, so the file stays locked until the process ends
	}
	return errors.Join(err, guard(s.path, s.db.Close))
}

// Get implements [tokens.Store].
func (s *Store) Get(ctx context.Context, id string) (tokens.Record, error) {
	if err := check(ctx, id); err != nil {
		return tokens.Record{}, err
	}
	var r tokens.Record
	err := s.read(func(tx *bbolt.Tx) (err error) {
		r, err = get(tx, id)
		return err
	})
	return r, err
}

// Find implements [tokens.Store]. It never lags.
func (s *Store) Find(ctx context.Context, id string) (tokens.Record, error) { return s.Get(ctx, id) }

// List implements [tokens.Store]. It never lags. If it cannot decode a row, it fails with an error that
// names the row: only kubejoin writes this file, so the file must be damaged.
func (s *Store) List(ctx context.Context) ([]tokens.Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var all []tokens.Record
	err := s.read(func(tx *bbolt.Tx) (err error) {
		all, err = s.listed.list(tx.Bucket(tokensBucket), decodeRow)
		return err
	})
	for i, r := range all {
		all[i] = r.Clone()
	}
	return all, err
}

// Create implements [tokens.Store].
func (s *Store) Create(ctx context.Context, r tokens.Record) (tokens.Record, error) {
	if err := ctx.Err(); err != nil {
		return tokens.Record{}, err
	}
	if err := r.Check(); err != nil {
		return tokens.Record{}, fmt.Errorf("create token %s: %w", r.Token.ID(), err)
	}
	r.Created, r.UID = time.Now(), rand.Text()
	return s.create(r)
}

// Restore stores a record of another store, with its Created and UID. The error wraps [tokens.ErrExists] if there is a
// record with its ID.
func (s *Store) Restore(ctx context.Context, r tokens.Record) error {
	if err := errors.Join(ctx.Err(), r.Check()); err != nil {
		return fmt.Errorf("restore token %s: %w", r.Token.ID(), err)
	}
	_, err := s.create(r)
	return err
}

func (s *Store) create(r tokens.Record) (tokens.Record, error) {
	r.Version = "1"
	r = rows.NormalizedRecord(r)
	return r, s.write(&s.hints, func(tx *bbolt.Tx) error {
		switch _, err := get(tx, r.Token.ID()); {
		case err == nil:
			return fmt.Errorf("create token %s: %w", r.Token.ID(), tokens.ErrExists)
		case !errors.Is(err, tokens.ErrNotFound):
			return err
		}
		return put(tx, r)
	})
}

// Update implements [tokens.Store].
func (s *Store) Update(ctx context.Context, id string, change func(*tokens.Record) error) (tokens.Record, error) {
	for {
		before, err := s.Get(ctx, id)
		if err != nil {
			return tokens.Record{}, err
		}
		// Edit runs outside the transaction, so that change can use the store.
		after, err := editRecord(before, change)
		if err != nil {
			return tokens.Record{}, err
		}
		err = s.write(&s.hints, func(tx *bbolt.Tx) error {
			if err := unchanged(tx, before); err != nil {
				return err
			}
			return put(tx, after)
		})
		switch {
		case err == nil:
			return after, nil
		case !errors.Is(err, tokens.ErrConflict):
			return tokens.Record{}, err
		}
	}
}

// editRecord returns a record as it is stored after a change.
func editRecord(before tokens.Record, change func(*tokens.Record) error) (tokens.Record, error) {
	after, err := before.Edit(change)
	if err != nil {
		return tokens.Record{}, err
	}
	version, err := strconv.ParseUint(before.Version, 10, 64)
	if err != nil {
		return tokens.Record{}, fmt.Errorf("update token %s: version: %w", before.Token.ID(), err)
	}
	after.Created, after.Version = before.Created, strconv.FormatUint(version+1, 10)
	return rows.NormalizedRecord(after), nil
}

// Delete implements [tokens.Store].
func (s *Store) Delete(ctx context.Context, r tokens.Record) error {
	if err := check(ctx, r.Token.ID()); err != nil {
		return err
	}
	return s.write(&s.hints, func(tx *bbolt.Tx) error {
		if err := unchanged(tx, r); err != nil {
			return fmt.Errorf("delete: %w", err)
		}
		return tx.Bucket(tokensBucket).Delete([]byte(r.Token.ID()))
	})
}

// Watch implements [tokens.Store].
func (s *Store) Watch(ctx context.Context) <-chan struct{} { return s.hints.Watch(ctx) }

// check returns an error if ctx has ended or id is not a token ID.
func check(ctx context.Context, id string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return tokens.CheckID(id)
}

// unchanged returns an error that wraps ErrNotFound or ErrConflict if r is not the stored record.
func unchanged(tx *bbolt.Tx, r tokens.Record) error {
	now, err := get(tx, r.Token.ID())
	switch {
	case err != nil:
		return err
	case now.UID != r.UID:
		return fmt.Errorf("token %s: %w: another token has its ID", r.Token.ID(), tokens.ErrConflict)
	case now.Version != r.Version:
		return fmt.Errorf("token %s: %w: version %q given, %q found", r.Token.ID(), tokens.ErrConflict, r.Version, now.Version)
	}
	return nil
}
