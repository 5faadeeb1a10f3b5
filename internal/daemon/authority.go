package daemon

import (
	"context"
	"crypto/x509"
	"fmt"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/kube/tokenwarning"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
)

// orNodes returns byCertificate if it is not nil, or if nodes may not rejoin. Otherwise it returns an authentication of nodes
// by the CAs of the authority. Only POST /v1/certificate and /v1/rejoin/key accept these certificates.
func (s *service) orNodes(byCertificate auth.Authenticate, authority *signer.Authority, t trust) auth.Authenticate {
	if byCertificate != nil || s.options.NodeRules.RejoinWindow <= 0 {
		return byCertificate
	}
	nodeCAs := func() *x509.CertPool {
		pool, err := (&server.Certificates{Authority: authority}).NodeCAs()
		if err != nil {
			return x509.NewCertPool()
		}
		return pool
	}
	return onlyNodes(auth.ClientCertificate{CAs: nodeCAs, Everybody: true, Revoked: t.checkRevoked}.Authenticate)
}

// admission returns the admission of node names. Without a cluster, node and ready are nil.
func (s *service) admission(own stores, node, ready func(ctx context.Context, name string) (string, error)) *admission.Nodes {
	o := s.options.NodeRules
	return &admission.Nodes{
		Tokens: own.tokens, Claims: own.claims, Node: node, Ready: ready,
		AllowExisting: o.AllowExisting && node != nil, Reserved: o.Reserved, Retention: o.SpentRetention, RejoinWindow: o.RejoinWindow, RejoinBudget: o.RejoinBudget,
		Logger: s.log, Registerer: s.registry,
	}
}

// otherSigner is how long after the last certificate of another signer readiness reports that signer.
const otherSigner = time.Hour

// watchOtherSigner returns a function to call for each certificate that another signer wrote. Readiness and token
// warnings then report the other signer, because it does not enforce the limits of tokens.
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
		return api.Notice(what + " at " + last.UTC().Format(time.RFC3339) + ": it ignores the limits of tokens; switch off one of the two signers (docs/security.md)")
	}
	s.check("only-signer", only)
	s.warnOf(tokenwarning.Check(only))
	return func(signerName, writer string) {
		mu.Lock()
		defer mu.Unlock()
		last, what = time.Now(), fmt.Sprintf("%s wrote a certificate of signer %s", writer, signerName)
	}
}
