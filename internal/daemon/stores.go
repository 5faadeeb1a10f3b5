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

// openTokens opens the stores of tokens and claims: Secrets and Leases, or a file.
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
			return errors.New("kubejoin has not listed the token Secrets yet; see the log")
		}
		return nil
	})
	claims, err := secretstore.OpenClaims(c.watch, c.client, secretstore.ClaimNamespace, c.log)
	if err != nil {
		return nil, nil, fmt.Errorf("claims: %w", err)
	}
	return store, claims, nil
}

// openFileStore opens the store in DataDir, and enables token reviews for kube-apiserver. The store locks the folder.
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
		s.log.Warn("issuance journal truncated; entries of certificates that were never delivered may be missing, or the disk has lost data")
	}
	s.check("tokens", func(ctx context.Context) error {
		// Reading any token ID shows whether the file is readable.
		if _, err := store.Get(ctx, "000000"); err != nil && !errors.Is(err, tokens.ErrNotFound) {
			s.log.Error("readiness check failed", "check", "tokens", "error", err)
			return errors.New("kubejoin cannot read the token file; see the log")
		}
		return nil
	})
	return store, s.reviewTokens(dir)
}
