package daemon

import (
	"context"
	"crypto/x509"
	"fmt"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/tokenwarning"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// newAuthority creates the authority that decides on every certificate.
func (s *service) newAuthority(facts approval.Facts, nodes *admission.Nodes) (*signer.Authority, error) {
	signers, err := s.signers()
	return &signer.Authority{
		Facts:  facts,
		Nodes:  nodes,
		Record: s.record(),

		Revocations: s.revocations,
		// Users without a rate limit have no certificate limit either.
		Unthrottled: s.options.Limits.UserRate.QPS < 0,
		MaxLifetime: s.maxLifetime,
		Signers:     signers,
	}, err
}

// giveCertificates enables POST /v1/certificate and /v1/rejoin/key.
func (s *service) giveCertificates(authority *signer.Authority) {
	s.api.Certificates = &server.Certificates{Authority: authority, ClientCertificate: s.byCertificate, RejoinEvent: s.rejoinEvent}
	if s.byCertificate == nil && s.options.NodeRules.RejoinWindow > 0 {
		// No other route accepts these certificates.
		nodeCAs := func() *x509.CertPool {
			pool, err := s.api.Certificates.NodeCAs()
			if err != nil {
				return x509.NewCertPool()
			}
			return pool
		}
		s.api.Certificates.ClientCertificate = onlyNodes(auth.ClientCertificate{CAs: nodeCAs, Everybody: true, Revoked: s.checkRevoked}.Authenticate)
	}
}

// rejoinEvent creates an Event on a Node that has rejoined, or may not.
func (s *service) rejoinEvent(node string, refused bool, reason, message string) {
	kind := corev1.EventTypeNormal
	if refused {
		kind = corev1.EventTypeWarning
		message = "A machine with a key of this node may not rejoin: " + message
	}
	// kubectl describe shows Events that have the name as UID, as those of kubelets.
	s.eventOn(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)}, kind, reason, message)
}

// admission returns the admission of node names on the cluster.
func (c *cluster) admission() *admission.Nodes {
	o := c.options.NodeRules
	return &admission.Nodes{
		Tokens: c.tokens, Claims: c.claims, Node: c.nodes.Node, Ready: c.nodes.Ready,
		AllowExisting: o.AllowExisting, Reserved: o.Reserved, Retention: o.SpentRetention, RejoinWindow: o.RejoinWindow, RejoinBudget: o.RejoinBudget,
		Logger: c.log, Registerer: c.registry,
	}
}

// otherSigner is how long readiness reports another signer after its last certificate.
const otherSigner = time.Hour

// watchOtherSigner returns a function to call for each certificate that another signer wrote. Readiness and token
// warnings then report it, because that signer does not enforce the limits of tokens.
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
