package main

import (
	"crypto/x509"
	"net/netip"
	"sync/atomic"

	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
)

// giveCertificates answers POST /v1/certificate, by an authority that others may share.
func (s *service) giveCertificates(authority *signer.Authority) {
	s.api.Certificates = &server.Certificates{Authority: authority, ClientCertificate: s.byCertificate}
}

// ownCAs are those of the CA that signs, as it is now.
func (s *service) ownCAs() func() *x509.CertPool {
	var pool atomic.Pointer[x509.CertPool]
	follow := func(ca *signer.CA) error {
		pool.Store(poolOf(ca))
		return nil
	}
	_ = follow(s.ca.Get()) // never fails
	s.caChanged = append(s.caChanged, follow)
	return pool.Load
}

// poolOf has every certificate of a CA; of nil it has none, and trusts nobody.
func poolOf(ca *signer.CA) *x509.CertPool {
	pool := x509.NewCertPool()
	if ca != nil {
		for _, c := range ca.Bundle() {
			pool.AddCert(c)
		}
	}
	return pool
}

// Service addresses where nobody has said which: those of kubeadm and of kube-apiserver.
var usualServices = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.0.0.0/24")}

// standaloneAuthority is the authority where there is no cluster: there are no Nodes, and a claim is
// all that is known of a name. apiServer is the host of the API server.
func (s *service) standaloneAuthority(store *boltstore.Store, apiServer string) *signer.Authority {
	o := s.options
	services := o.serving.servicePrefix
	if len(services) == 0 {
		services = usualServices
	}
	facts := standaloneFacts{
		Standalone: signer.Standalone{
			Claims: store.Claims(), DNSSuffixes: s.scope().DNSSuffixes,
			Keep: approval.Reserved{
				Prefixes: services, APIServer: []string{apiServer},
				Source: "--service-cluster-ip-range or what is usual, --api-server, --advertise, --tls-san and kubejoin's certificate",
			},
		},
		ownHosts: s.ownHosts,
	}
	return s.authority(facts, &signer.NodeAdmission{
		Tokens: store, Claims: store.Claims(), Reserved: o.reservedNodeNames, Retention: o.spentRetention,
		Logger: s.log, Registerer: s.registry,
	})
}
