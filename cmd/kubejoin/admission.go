package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/tokenwarning"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	"k8s.io/client-go/kubernetes"
)

// Values of --existing-nodes.
const (
	denyExisting  = "deny"
	allowExisting = "allow"
)

// checkAdmission refuses flags about node names that cannot be meant.
func (o *serveOptions) checkAdmission(fail func(flag, format string, args ...any)) {
	if !slices.Contains([]string{denyExisting, allowExisting}, o.existingNodes) {
		fail("existing-nodes", "%q given, want %s or %s", o.existingNodes, denyExisting, allowExisting)
	}
	for _, pattern := range o.reservedNodeNames {
		if err := tokens.CheckNodePattern(pattern); err != nil {
			fail("reserved-node-names", "%v", err)
		}
	}
	if o.spentRetention < time.Minute {
		fail("spent-token-retention", "%s given, want 1m or more: a node fetches its certificate with the token", o.spentRetention)
	}
}

// openClaims opens the claims that belong to the tokens of store.
func openClaims(ctx context.Context, s *service, client kubernetes.Interface, store tokens.Store) (tokens.Claims, error) {
	if file, ok := store.(*boltstore.Store); ok {
		return file.Claims(), nil
	}
	claims, err := secretstore.OpenClaims(ctx, client, secretstore.ClaimNamespace, s.log)
	if err != nil {
		return nil, fmt.Errorf("claims: %w", err)
	}
	return claims, nil
}

// admission holds the names of nodes.
func (s *service) admission(store tokens.Store, claims tokens.Claims, nodes *csr.Nodes) *signer.NodeAdmission {
	o := s.options
	lease := ""
	if o.tokenStore != storeFile && o.leaseNamespace == secretstore.ClaimNamespace {
		// Without leader election, too: another replica may elect, or this one after a restart.
		lease = o.leaseName
	}
	return &signer.NodeAdmission{
		Tokens: store, Claims: claims, Node: nodes.Node, Ready: nodes.Ready,
		AllowExisting: o.existingNodes == allowExisting, Reserved: o.reservedNodeNames, Lease: lease, Retention: o.spentRetention,
		Logger: s.log, Registerer: s.registry,
	}
}

// otherSigner is how long it is said that another signer was at work.
const otherSigner = time.Hour

// watchOtherSigner has readiness warn of certificates that another signer wrote: no limit of a
// token holds for them.
func (s *service) watchOtherSigner() func(signerName, writer string) {
	var mu sync.Mutex
	var last time.Time
	var what string
	only := func(context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		if last.IsZero() || time.Since(last) > otherSigner {
			return nil
		}
		return server.Notice(what + " at " + last.UTC().Format(time.RFC3339) + ": limits of tokens do not hold for what it signs; switch one of the two off (docs/security-model.md)")
	}
	s.check("only-signer", only)
	s.warnOf(tokenwarning.Check(only))
	return func(signerName, writer string) {
		mu.Lock()
		defer mu.Unlock()
		last, what = time.Now(), fmt.Sprintf("%s wrote a certificate of signer %s", writer, signerName)
	}
}
