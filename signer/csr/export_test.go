package csr

import (
	"github.com/kubejoin/kubejoin/signer/approval"
	certificates "k8s.io/api/certificates/v1"
)

// Request is an object as it is decided upon, after it has gone through the cache.
func Request(csr *certificates.CertificateSigningRequest) (approval.Request, error) {
	if _, err := strip(csr); err != nil {
		return approval.Request{}, err
	}
	return request(csr)
}

// Wanted reports whether a controller that does everything would take the object up.
func Wanted(csr *certificates.CertificateSigningRequest) bool {
	h := &handler{Controller: Controller{Approve: true}}
	return h.wanted(csr)
}
