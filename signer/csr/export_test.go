package csr

import (
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	certificates "k8s.io/api/certificates/v1"
)

// Cached returns the request of an object as the controller reads it from the cache.
func Cached(csr *certificates.CertificateSigningRequest) (approval.Request, error) {
	if _, err := strip(csr); err != nil {
		return approval.Request{}, err
	}
	return Request(csr)
}

// Wanted reports whether a controller with all features enabled would handle the object.
func Wanted(csr *certificates.CertificateSigningRequest) bool {
	signers := signer.FixedSigners(map[string]signer.Signer{certificates.KubeletServingSignerName: {}})
	h := &handler{Controller: Controller{Authority: &signer.Authority{Signers: signers}, Approve: true, Sign: true}}
	return h.needsWork(csr)
}
