// Package boltstore stores bootstrap tokens, claims, revocations, the issuance record and the CA rotation in one file. It
// is the default for installers and signers without a Kubernetes API. Only one process can use the file, so
// several replicas need tokens/secretstore instead.
//
// Package tokens/rowstore defines the rows.
package boltstore

import (
	"sync"

	"github.com/kubejoin/kubejoin/internal/batch"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
	"go.etcd.io/bbolt"
)

// A Store is a [tokens.Store] in one file, which it locks until Close. When a method returns, its change is on the disk.
// Concurrent changes share one fsync.
//
// The file contains the token secrets in clear text.
type Store struct {
	*rowstore.Store
	db    *bbolt.DB
	path  string
	hints map[string]*tokens.Hints // by folder

	sweeper sweeper

	commit sync.Mutex // held while a transaction writes
	broken error      // guarded by commit
	writes batch.Queue[struct{}, *write]
}

// newStore returns the Store in an open database.
func newStore(db *bbolt.DB, path string) *Store {
	s := &Store{db: db, path: path, hints: map[string]*tokens.Hints{}}
	for _, bucket := range rowBuckets {
		s.hints[string(bucket)+"/"] = &tokens.Hints{}
	}
	s.Store = rowstore.New(rowDB{s})
	return s
}

// Close unlocks and closes the file. Every later call fails.
func (s *Store) Close() error {
	s.commit.Lock()
	defer s.commit.Unlock()
	if s.broken != nil {
		return s.broken // db.Close could block forever, so the file stays locked until the process ends
	}
	return guard(s.path, s.db.Close)
}
