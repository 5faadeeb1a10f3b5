package auth

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/kubejoin/kubejoin/internal/foreign"
)

// A ClientCertificate knows one user, or everybody, by the certificate that the client shows in TLS, for which
// the server's [crypto/tls.Config] asks with tls.RequestClientCert.
type ClientCertificate struct {
	// CAs gives the certificates of those who issue it, and of nobody else: whose CA is there
	// can be the user. It is called for each request.
	CAs func() *x509.CertPool
	// Name is the common name that the certificate must have. Empty is nobody's.
	Name string
	// Everybody knows all users whom the CAs have issued a certificate to, as an API server does
	// with its --client-ca-file, and Name is not asked.
	Everybody bool
}

// Authenticate is an [Authenticate]. Its error wraps [ErrForbidden] if a good certificate is
// another's.
func (c ClientCertificate) Authenticate(r *http.Request) (User, error) {
	return c.authenticate(r, nil)
}

// Cached returns an Authenticate that caches verification results for seconds, per chain and pool of CAs. Busy
// clients send many requests with one certificate. Caching does not extend the validity of a certificate.
func (c ClientCertificate) Cached() Authenticate {
	known := newVerified()
	return func(r *http.Request) (User, error) { return c.authenticate(r, known) }
}

func (c ClientCertificate) authenticate(r *http.Request, known *verified) (User, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return User{}, ErrNoCredentials
	}
	if err := known.verify(r.TLS.PeerCertificates, c.CAs(), time.Now()); err != nil {
		return User{}, fmt.Errorf("%w: client certificate: %w", ErrBadCredentials, err)
	}
	leaf := r.TLS.PeerCertificates[0]
	if c.Everybody && leaf.Subject.CommonName == "" {
		return User{}, fmt.Errorf("%w: client certificate without a common name", ErrBadCredentials)
	}
	if !c.Everybody && (c.Name == "" || leaf.Subject.CommonName != c.Name) {
		return User{}, fmt.Errorf("%w: client certificate of %.100q, want %q", ErrForbidden, foreign.Redact(leaf.Subject.CommonName), c.Name)
	}
	return User{Name: leaf.Subject.CommonName, Groups: leaf.Subject.Organization}, nil
}

// AnyOf is an [Authenticate] that knows whom one of several does, also where another refuses what it found:
// [HeaderOrCertificate] does not. If none does, and one of them could not judge, nor can it.
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
		for _, err := range errs {
			if !errors.Is(err, ErrBadCredentials) && !errors.Is(err, ErrForbidden) {
				return User{}, err
			}
		}
		if len(errs) == 0 {
			return User{}, ErrNoCredentials
		}
		return User{}, errors.Join(errs...)
	}
}

// HeaderOrCertificate is an [Authenticate] that goes by the Authorization header of a request that
// has one, and by the client's certificate otherwise: a header that is not accepted is refused,
// whatever certificate there is beside it. Either may be nil, which accepts nothing.
func HeaderOrCertificate(header, certificate Authenticate) Authenticate {
	return func(r *http.Request) (User, error) {
		switch _, given := r.Header["Authorization"]; {
		case given && header == nil:
			return User{}, fmt.Errorf("%w: no bearer tokens are", ErrBadCredentials)
		case given:
			user, err := header(r)
			if errors.Is(err, ErrNoCredentials) {
				err = fmt.Errorf("%w: nothing that is known in the Authorization header", ErrBadCredentials)
			}
			return user, err
		case certificate == nil:
			return User{}, ErrNoCredentials
		}
		return certificate(r)
	}
}
