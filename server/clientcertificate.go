package server

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
)

// A ClientCertificate knows one user by the certificate that the client shows in TLS, for which
// the server's [crypto/tls.Config] asks with tls.RequestClientCert.
type ClientCertificate struct {
	// CAs gives the certificates of those who issue it, and of nobody else: whose CA is there
	// can be the user. It is called for each request.
	CAs func() *x509.CertPool
	// Name is the common name that the certificate must have.
	Name string
}

// Authenticate is an [Authenticate]. Its error wraps [ErrForbidden] if a good certificate is
// another's.
func (c ClientCertificate) Authenticate(r *http.Request) (User, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return User{}, ErrNoCredentials
	}
	leaf := r.TLS.PeerCertificates[0]
	intermediates := x509.NewCertPool()
	for _, cert := range r.TLS.PeerCertificates[1:] {
		intermediates.AddCert(cert)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{
		Roots: c.CAs(), Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}); err != nil {
		return User{}, fmt.Errorf("%w: client certificate: %w", ErrBadCredentials, err)
	}
	if c.Name == "" || leaf.Subject.CommonName != c.Name {
		return User{}, fmt.Errorf("%w: client certificate of %q, want %q", ErrForbidden, leaf.Subject.CommonName, c.Name)
	}
	return User{Name: leaf.Subject.CommonName, Groups: leaf.Subject.Organization}, nil
}

// AnyOf is an [Authenticate] that knows whom one of several does.
func AnyOf(ways ...Authenticate) Authenticate {
	return func(r *http.Request) (User, error) {
		var errs []error
		for _, way := range ways {
			user, err := way(r)
			if err == nil {
				return user, nil
			}
			if !errors.Is(err, ErrNoCredentials) {
				errs = append(errs, err)
			}
		}
		if len(errs) == 0 {
			return User{}, ErrNoCredentials
		}
		return User{}, errors.Join(errs...)
	}
}
