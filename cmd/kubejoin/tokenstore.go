package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kubejoin/kubejoin/internal/atomicfile"
	"github.com/kubejoin/kubejoin/internal/datadir"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/issuance/boltrecord"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	"k8s.io/client-go/kubernetes"
)

// Values of --token-store.
const (
	storeKubernetes = "kubernetes"
	storeFile       = "file"
)

// checkTokenStore refuses what the two stores cannot do, or not together.
func (o *serveOptions) checkTokenStore(fail func(flag, format string, args ...any)) {
	if !slices.Contains([]string{"", storeKubernetes, storeFile}, o.tokenStore) {
		fail("token-store", "%q given, want %s or %s", o.tokenStore, storeKubernetes, storeFile)
	}
	if o.tokenStore == storeFile && o.leaderElect && o.given("leader-elect") {
		fail("leader-elect", "with --token-store=file there is one replica: no other one has the tokens in its --data-dir; give one of the two flags")
	}
	if o.kubeconfig != "" && o.tokenStore != storeFile && o.given("data-dir") {
		fail("data-dir", "is for standalone use and for --token-store=file, and --kubeconfig keeps tokens in the cluster: give one of them")
	}
	if (o.webhookClientCA == "") != (o.webhookClientName == "") {
		fail("webhook-client-ca-file", "goes together with --webhook-client-name, and one of them is missing")
	}
}

// openTokens opens the store of the tokens of a cluster.
func (s *service) openTokens(ctx context.Context, client kubernetes.Interface) (tokens.Store, error) {
	if s.options.tokenStore == storeFile {
		s.options.leaderElect = false // its default is for those who share a store
		store, err := s.openFileStore()
		if err == nil && s.ca != nil {
			err = s.keepBundle(datadir.Dir(s.options.dataDir).Path(datadir.Bundle))
		}
		return store, err
	}
	store, err := secretstore.Open(ctx, client, s.log)
	if err != nil {
		return nil, err
	}
	s.check("tokens", func(ctx context.Context) error {
		if _, err := store.List(ctx); err != nil {
			return errors.New("the token Secrets have not been listed yet, see the log")
		}
		return nil
	})
	return store, nil
}

// openFileStore opens the store in --data-dir, and lets kube-apiserver ask about its tokens,
// which it cannot know otherwise. The store is the lock on the folder.
func (s *service) openFileStore() (*boltstore.Store, error) {
	dir := datadir.Dir(s.options.dataDir)
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
	if record.Cut() {
		s.log.Warn("the end of the issuance record could not be read: entries of certificates that have not left may be missing, or a disk has lost some")
	}
	s.check("tokens", func(ctx context.Context) error {
		// Any token will do, and none: this is whether the file can be read.
		if _, err := store.Get(ctx, "000000"); err != nil && !errors.Is(err, tokens.ErrNotFound) {
			s.log.Error("readiness", "check", "tokens", "error", err)
			return errors.New("the token file cannot be read, see the log")
		}
		return nil
	})
	return store, s.reviewTokens(dir)
}

// keepBundle keeps the CAs in --data-dir for clients of kubejoin.
func (s *service) keepBundle(file string) error {
	write := func(ca *signer.CA) error {
		bundle, _, err := ca.PEM()
		if err != nil {
			return err
		}
		return atomicfile.Write(file, bundle)
	}
	if err := write(s.ca.Get()); err != nil {
		return fmt.Errorf("CA for clients: %w", err)
	}
	s.caChanged = append(s.caChanged, write)
	return nil
}
