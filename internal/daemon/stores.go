package daemon

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubejoin/kubejoin/internal/datadir"
	"github.com/kubejoin/kubejoin/signer/issuance/boltrecord"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
)

// openTokens opens the tokens of the cluster and their claims: Secrets and Leases, or a file.
func (c *cluster) openTokens() (tokens.Store, tokens.Claims, error) {
	if c.TokensInFile {
		store, err := c.openFileStore()
		if err != nil {
			return nil, nil, err
		}
		if c.ca != nil {
			err = c.keepBundle()
		}
		return store, store.Claims(), err
	}
	store, err := secretstore.Open(c.watch, c.client, c.log)
	if err != nil {
		return nil, nil, err
	}
	c.check("tokens", func(ctx context.Context) error {
		if _, err := store.List(ctx); err != nil {
			return errors.New("the token Secrets have not been listed yet, see the log")
		}
		return nil
	})
	claims, err := secretstore.OpenClaims(c.watch, c.client, secretstore.ClaimNamespace, c.log)
	if err != nil {
		return nil, nil, fmt.Errorf("claims: %w", err)
	}
	return store, claims, nil
}

// openFileStore opens the store in DataDir, and answers kube-apiserver about its tokens. The store locks
// the folder.
func (s *service) openFileStore() (*boltstore.Store, error) {
	dir := datadir.Dir(s.options.DataDir)
	if err := dir.Open(); err != nil {
		return nil, err
	}
	store, err := boltstore.Open(dir.Path(datadir.Store))
	if err != nil {
		return nil, err
	}
	s.closers = append(s.closers, store.Close)
	record := boltrecord.New(store.Issued())
	s.kept, s.api.Issued = record, record
	if record.Truncated() {
		s.log.Warn("the end of the issuance record could not be read: entries of certificates that have not left may be missing, or a disk has lost some")
	}
	s.check("tokens", func(ctx context.Context) error {
		// Any ID shows whether the file can be read.
		if _, err := store.Get(ctx, "000000"); err != nil && !errors.Is(err, tokens.ErrNotFound) {
			s.log.Error("readiness", "check", "tokens", "error", err)
			return errors.New("the token file cannot be read, see the log")
		}
		return nil
	})
	return store, s.reviewTokens(dir)
}
