package csr

import (
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	certificates "k8s.io/api/certificates/v1"
)

// Cached is what an object asks for after it has gone through the cache.
func Cached(csr *certificates.CertificateSigningRequest) (approval.Request, error) {
	if _, err := strip(csr); err != nil {
		return approval.Request{}, err
	}
	return Request(csr)
}

// Wanted reports whether a controller that does everything would take the object up.
func Wanted(csr *certificates.CertificateSigningRequest) bool {
	signers := signer.FixedSigners(map[string]signer.Signer{certificates.KubeletServingSignerName: {}})
	h := &handler{Controller: Controller{Authority: &signer.Authority{Signers: signers}, Approve: true, Sign: true}}
	return h.needsWork(csr)
}

// Asking is how many questions have no answer yet.
func (n *Nodes) Asking() int { return int(n.inFlight.Load()) }

// FewQuestions are asked one by one.
const FewQuestions = fewLookups
