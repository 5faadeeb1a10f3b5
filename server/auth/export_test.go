package auth

import (
	"crypto/x509"
	"net/http"
	"time"
)

// NewVerify returns the function with which [ClientCertificate.Cached] verifies chains.
func NewVerify() func(shown []*x509.Certificate, roots *x509.CertPool, now time.Time) error {
	return newVerified().verify
}

// CachedAndSizes returns c.Cached, and a function that counts its cached valid and invalid chains.
func CachedAndSizes(c ClientCertificate) (way Authenticate, known func() (good, bad int)) {
	v := newVerified()
	return func(r *http.Request) (User, error) { return c.authenticate(r, v) }, func() (good, bad int) { return len(v.good.Keys()), len(v.bad.Keys()) }
}
