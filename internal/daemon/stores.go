package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/internal/host/datadir"
	"github.com/kubejoin/kubejoin/internal/loop"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/issuance/rowrecord"
	"github.com/kubejoin/kubejoin/signer/revocation/rowlist"
	"github.com/kubejoin/kubejoin/signer/rotation/rowstate"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	"github.com/kubejoin/kubejoin/tokens/cleaner"
	"github.com/kubejoin/kubejoin/tokens/etcdstore"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
)

// A stores is the storage of tokens, claims and revocations.
type stores struct {
	tokens tokens.Store
	claims tokens.Claims
	// revocationRows are nil if revocations are in ConfigMaps.
	revocationRows rowlist.Rows
	rotationRows   rowstate.Rows
	// etcd is nil with other stores.
	etcd *etcdstore.Store
	// record is the issuance record, and dropper reports its dropped entries. Both are nil if tokens are in Secrets.
	record  issuance.Store
	dropper dropper
	// reviewer authenticates kube-apiserver, which cannot read tokens in kubejoin's own store; nil if tokens are in Secrets.
	reviewer auth.Authenticate
}

// openTokens opens the stores of tokens and claims: Secrets and Leases, or kubejoin's own store.
func (c *connection) openTokens() (stores, error) {
	if c.OwnTokens {
		return c.openOwnStores()
	}
	var store *secretstore.Store
	rules, err := c.loadTokenLimits(func() { store.RulesChanged() })
	if err != nil {
		return stores{}, err
	}
	if store, err = secretstore.OpenWithRules(c.watch, c.client, rules, c.log); err != nil {
		return stores{}, err
	}
	c.check("tokens", func(ctx context.Context) error {
		if _, err := store.List(ctx); err != nil {
			return errors.New("kubejoin has not listed the token Secrets yet; see the log")
		}
		return nil
	})
	claims, err := secretstore.OpenClaims(c.watch, c.client, store, secretstore.ClaimNamespace, c.log)
	if err != nil {
		return stores{}, fmt.Errorf("claims: %w", err)
	}
	return stores{tokens: store, claims: claims}, nil
}

// openOwnStores opens the store in DataDir or in etcd, and reads the bearer token of kube-apiserver.
func (s *service) openOwnStores() (own stores, err error) {
	dir := datadir.Dir(s.options.DataDir)
	if err := dir.Open(); err != nil {
		return own, err
	}
	if s.options.Etcd != nil {
		own, err = s.openEtcd()
	} else {
		own, err = s.openFile(dir)
	}
	if err != nil {
		return own, err
	}
	own.reviewer, err = reviewer(dir)
	return own, err
}

// openFile opens the store in DataDir, and locks the folder.
func (s *service) openFile(dir datadir.Dir) (stores, error) {
	if err := dir.CheckStore(); err != nil {
		return stores{}, err
	}
	store, err := boltstore.OpenRetaining(dir.Path(datadir.Store), s.options.IssuanceRetention)
	if err != nil {
		return stores{}, err
	}
	s.closers = append(s.closers, store.Close)
	s.check("tokens", func(ctx context.Context) error {
		// Reading any token ID shows whether the file is readable.
		if _, err := store.Get(ctx, "000000", tokens.Live); err != nil && !errors.Is(err, tokens.ErrNotFound) {
			s.log.Error("readiness check failed", "check", "tokens", "error", err)
			return errors.New("kubejoin cannot read the token file; see the log")
		}
		return nil
	})
	return stores{
		tokens: store, claims: store.Claims(), revocationRows: store.Revocations(), rotationRows: store.Rotations(),
		record: rowrecord.New(store.Issued()), dropper: store,
	}, nil
}

// etcdReadyTimeout is how long readiness waits for etcd.
const etcdReadyTimeout = 2 * time.Second

// openEtcd opens the store in etcd. It waits for etcdReadyTimeout at most. It refuses a store that an interrupted copy left
// incomplete, because tokens are missing.
func (s *service) openEtcd() (stores, error) {
	config := *s.options.Etcd
	config.Logger = s.log
	store, err := etcdstore.Open(context.Background(), config)
	if err != nil {
		return stores{}, err
	}
	s.closers = append(s.closers, store.Close)
	ctx, cancel := context.WithTimeout(context.Background(), etcdReadyTimeout)
	defer cancel()
	switch err := store.Ready(ctx); {
	case errors.Is(err, etcdstore.ErrIncomplete):
		return stores{}, err
	case err != nil:
		s.log.Warn("waiting for etcd", "servers", config.Endpoints)
	}
	s.check("tokens", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, etcdReadyTimeout)
		defer cancel()
		if err := store.Ready(ctx); err != nil {
			s.log.Error("readiness check failed", "check", "tokens", "error", err)
			return errors.New("kubejoin cannot read etcd; see the log")
		}
		return nil
	})
	s.check("etcd-writes", func(context.Context) error {
		if err := store.Refusing(); err != nil {
			s.log.Warn("etcd refuses writes", "error", err)
			// Reads and deletions still work.
			return api.Notice("etcd refuses writes, for example because it has no space; see the log")
		}
		return nil
	})
	return stores{
		tokens: store, claims: store.Claims(), revocationRows: store.Revocations(), rotationRows: store.Rotations(), etcd: store,
		record: rowrecord.NewWithoutCertificates(store.Issued()), dropper: store.Issued(),
	}, nil
}

// cleaners returns the controllers that delete from the stores. claims is the claim cleaner with its access to Nodes.
func (s *service) cleaners(own stores, claims cleaner.Claims) (controllers []func(context.Context) error) {
	if s.options.Controllers[TokenCleaner] {
		loop := cleaner.Tokens{Store: own.tokens, Logger: s.log, Registerer: s.registry}
		controllers = append(controllers, loop.Run)
	}
	if s.options.Controllers[ClaimCleaner] {
		claims.Store, claims.Tokens, claims.RejoinWindow = own.claims, own.tokens, s.options.NodeRules.RejoinWindow
		claims.Logger, claims.Registerer = s.log, s.registry
		controllers = append(controllers, claims.Run)
	}
	if own.etcd != nil {
		controllers = append(controllers, s.sweepRecord(own.etcd.Issued()))
	}
	return controllers
}

// sweepEvery is how often the leader deletes due entries of the issuance record in etcd.
const sweepEvery = 10 * time.Minute

// sweepRecord returns a controller that deletes entries of the issuance record in etcd. The file store deletes due
// entries when it adds new ones.
func (s *service) sweepRecord(record *rowstore.Issued) func(context.Context) error {
	return loop.Loop{
		Name: "issuance-record", Sweep: sweepEvery, Logger: s.log, Registerer: s.registry,
		Step: func(ctx context.Context) (time.Time, error) {
			_, err := record.Sweep(ctx, time.Now(), s.options.IssuanceRetention)
			return time.Time{}, err
		},
	}.Run
}
