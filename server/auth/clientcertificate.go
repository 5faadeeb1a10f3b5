package auth

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer/revocation"
)

// A ClientCertificate authenticates the TLS client certificates of one user or of all users. The server's
// [crypto/tls.Config] must request them with tls.RequestClientCert.
type ClientCertificate struct {
	// CAs returns the CAs that issue client certificates. Every CA in the pool can issue a certificate for the user,
	// so the pool must hold no other CAs. The server calls it for each request.
	CAs func() *x509.CertPool
	// Name is the common name that the certificate must have. An empty Name matches no certificate.
	Name string
	// Revoked returns an error if the certificate must not be accepted although it is valid, usually a [*Revoked].
	// The server calls it for each request. Nil accepts all certificates.
	Revoked func(ctx context.Context, leaf *x509.Certificate) error
	// Everybody accepts every user with a certificate of the CAs, as kube-apiserver does with --client-ca-file. Name
	// is ignored then.
	Everybody bool
}

// Authenticate is an [Authenticate]. Its error wraps [ErrForbidden] if the certificate is valid but belongs to
// another user.
func (c ClientCertificate) Authenticate(r *http.Request) (User, error) {
	return c.authenticate(r, nil)
}

// Cached returns an Authenticate that caches verification results for a few seconds, per chain and pool of CAs.
// Busy clients send many requests with one certificate. Caching does not extend the validity of a certificate.
func (c ClientCertificate) Cached() Authenticate {
	known := newVerified()
	return func(r *http.Request) (User, error) { return c.authenticate(r, known) }
}

func (c ClientCertificate) authenticate(r *http.Request, known *verified) (User, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return User{}, ErrNoCredentials
	}
	if err := known.verify(r.TLS.PeerCertificates, c.CAs(), time.Now()); err != nil {
		return User{}, Hint(ErrBadCredentials, fmt.Sprintf("client certificate: %v", err))
	}
	leaf := r.TLS.PeerCertificates[0]
	if c.Everybody && leaf.Subject.CommonName == "" {
		return User{}, fmt.Errorf("%w: client certificate without a common name", ErrBadCredentials)
	}
	if !c.Everybody && (c.Name == "" || leaf.Subject.CommonName != c.Name) {
		return User{}, fmt.Errorf("%w: client certificate of %.100q, want %q", ErrForbidden, safetext.Redact(leaf.Subject.CommonName), c.Name)
	}
	if c.Revoked != nil {
		err := c.Revoked(r.Context(), leaf)
		if revoked := (*Revoked)(nil); errors.As(err, &revoked) {
			revoked.User = leaf.Subject.CommonName
		}
		if err != nil {
			return User{}, err
		}
	}
	return User{
		Name: leaf.Subject.CommonName, Groups: leaf.Subject.Organization,
		Extra: map[string][]string{revocation.CredentialIDKey: {revocation.FingerprintOf(leaf).CredentialID()}},
	}, nil
}

// A Revoked is the error of an [Authenticate] for a credential that is valid but revoked.
type Revoked struct {
	// Message says in one sentence that the credential is revoked, and why.
	Message string
	// User is the name of the user whose credential it is.
	User string
}

// Error returns Message.
func (r *Revoked) Error() string { return r.Message }

// Unwrap returns [ErrForbidden].
func (r *Revoked) Unwrap() error { return ErrForbidden }

// AnyOf returns an [Authenticate] that accepts a request if one of the given functions accepts it, even if another
// function refuses its credential. ([HeaderOrCertificate] is stricter.) If no function accepts the request and one
// could not decide, the error is the error of this function.
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

// HeaderOrCertificate returns an [Authenticate] that uses the Authorization header if the request has one, and the
// client certificate otherwise. It refuses a request whose header is not accepted, even if its certificate is valid.
// Either argument may be nil: then its kind of credential is never accepted.
func HeaderOrCertificate(header, certificate Authenticate) Authenticate {
	return func(r *http.Request) (User, error) {
		switch _, given := r.Header["Authorization"]; {
		case given && header == nil:
			return User{}, Hint(ErrBadCredentials, "this server accepts no bearer tokens")
		case given:
			user, err := header(r)
			if errors.Is(err, ErrNoCredentials) {
				err = fmt.Errorf("%w: unsupported Authorization header", ErrBadCredentials)
			}
			return user, err
		case certificate == nil:
			return User{}, Hint(ErrNoCredentials, "this server accepts no client certificates: it runs without --client-ca-file")
		}
		return certificate(r)
	}
}
