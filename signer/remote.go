package signer

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kubejoin/kubejoin/signer/approval"
)

// An Order asks a signer process to sign a request that was already decided and admitted.
type Order struct {
	Request approval.Request
	// Made is when the order was made.
	Made time.Time
	// NotAfter is the expiration that [Profile.Validity] returns. The certificate may expire earlier.
	NotAfter time.Time
}

// notBefore returns the same start of the validity as [Validity].
func (o Order) notBefore() time.Time { return o.Made.Add(-backdate).UTC().Truncate(time.Second) }

// A Remote signs for a CA whose key is in another process. Package signer/remote has an implementation.
type Remote interface {
	// Sign returns the certificate of an order in PEM, without its chain. The caller retries the request after an
	// error. Sign limits its own time.
	Sign(ctx context.Context, o Order) ([]byte, error)
	// Discarded is called for each certificate from Sign that does not match its order.
	Discarded(o Order, why error)
}

// ErrOrderRefused is wrapped by the error of a [Remote] that refuses an order by its policy. A retry fails until an operator
// changes the policy.
var ErrOrderRefused = errors.New("the signer process refuses the request")

// elsewhere is a Remote with the CA certificates that it may sign with.
type elsewhere struct {
	Remote
	issuers []issuer
	last    atomic.Pointer[issuer] // the issuer that signed last; nil if none has signed
}

var errElsewhere = errors.New("the key of the CA is elsewhere (--cluster-signing-key-url): want --cluster-signing-key-file")

// NewRemoteCA makes a CA whose key is in another process. Any of certs may sign, so that the other process can change
// the key. Until the first certificate is issued or [CA.SignsWith] is called, [CA.Certificate] returns the valid
// certificate that expires last.
func NewRemoteCA(certs []*x509.Certificate, remote Remote) (*CA, error) {
	ca, found, err := newCA(certs, func(*x509.Certificate) bool { return true })
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, errors.New("no CA certificate given")
	}
	ca.remote = &elsewhere{Remote: remote}
	for _, cert := range found {
		ca.remote.issuers = append(ca.remote.issuers, newIssuer(cert, ca.bundle))
	}
	return ca, nil
}

// latest returns when the last certificate that may sign expires.
func (e *elsewhere) latest() (end time.Time) {
	for _, by := range e.issuers {
		if by.cert.NotAfter.After(end) {
			end = by.cert.NotAfter
		}
	}
	return end
}

// SignsWith records which certificate the other process signs with. It does nothing if the key is in this
// process, or if cert is not a certificate of the CA.
func (ca *CA) SignsWith(cert *x509.Certificate) {
	if ca.remote == nil {
		return
	}
	for i := range ca.remote.issuers {
		if by := &ca.remote.issuers[i]; by.cert.Equal(cert) {
			ca.remote.last.Store(by)
		}
	}
}

// LoadRemoteCA is [NewRemoteCA] for the certificates in a file. Like [LoadCA], it refuses a file that every user may write.
func LoadRemoteCA(certFile string, remote Remote) (*CA, error) {
	certs, err := loadCertificates(certFile)
	if err != nil {
		return nil, err
	}
	ca, err := NewRemoteCA(certs, remote)
	if err != nil {
		return nil, fmt.Errorf("CA certificate %s: %w", certFile, err)
	}
	return ca, nil
}

// issue orders a certificate from the other process, and checks every field of it.
func (e *elsewhere) issue(ctx context.Context, o Order) (issued, error) {
	certificate, err := e.Sign(ctx, o)
	if err != nil {
		return issued{}, err
	}
	done, err := e.check(o, certificate)
	if err != nil {
		e.Discarded(o, err)
		return issued{}, fmt.Errorf("the certificate of the signer process differs from the request and was discarded: %w", err)
	}
	return done, nil
}

func (e *elsewhere) check(o Order, certificate []byte) (issued, error) {
	want := expected{csr: o.Request.CSR, usages: o.Request.Usages, notBefore: o.notBefore(), notAfter: o.NotAfter, remote: true}
	cert, err := want.check(certificate)
	if err != nil {
		return issued{}, err
	}
	for i := range e.issuers {
		by := &e.issuers[i]
		if !bytes.Equal(cert.RawIssuer, by.cert.RawSubject) || cert.CheckSignatureFrom(by.cert) != nil {
			continue
		}
		if cert.NotAfter.After(by.cert.NotAfter) {
			return issued{}, fmt.Errorf("valid to %s, after the CA expires at %s", cert.NotAfter, by.cert.NotAfter)
		}
		if err := by.checkUsages(o.Request.Usages); err != nil {
			return issued{}, err
		}
		e.last.Store(by)
		own := encodeCertificate(cert.Raw) // only the checked certificate, without other data in the response
		return issued{chain: append(own, by.chain...), own: len(own), cert: cert, ca: by.cert}, nil
	}
	return issued{}, fmt.Errorf("issuer %q: none of the %d CAs here has signed it", cert.Issuer, len(e.issuers))
}

// SignOrder signs the order of another process, which has decided and admitted the request. It makes all checks of the
// signer s, but does not use its rules, Facts, Nodes or Revocations, and has no rate limits. It returns the certificate
// in PEM without its chain. The caller has compared o.Made with the clock. The certificate is valid from the start that
// the order implies. It expires when the order says, or earlier if the profile or the CA requires that. Like
// [Authority.Sign], it records certificates and refusals, and returns the same errors.
func (a *Authority) SignOrder(ctx context.Context, s Signer, o Order) ([]byte, error) {
	done, err := a.signOrder(s, o)
	if recordErr := a.record(ctx, o.Request, approval.Decision{}, done, err); recordErr != nil {
		return nil, recordErr
	}
	if err != nil {
		return nil, err
	}
	return done.chain[:done.own], nil
}

func (a *Authority) signOrder(s Signer, o Order) (issued, error) {
	v, err := s.validate(o.Request)
	if err != nil {
		return issued{}, err
	}
	ca, err := s.CA()
	if err != nil {
		return issued{}, fmt.Errorf("signer %s: %w", s.name, err)
	}
	if err := ca.checkUsages(o.Request.Usages); err != nil {
		return issued{}, err
	}
	notAfter := o.NotAfter.UTC().Truncate(time.Second)
	for _, at := range []time.Time{o.Made, a.now()} { // the profile's limit counts from the earlier of the two times
		_, end, err := s.profile.Validity(ca.cert.NotAfter, maxCALifetime, at)
		if err != nil {
			return issued{}, err
		}
		if end.Before(notAfter) {
			notAfter = end
		}
	}
	if !notAfter.After(a.now()) {
		return issued{}, approval.Refuse("the certificate would end at %s, want a time in the future", notAfter.UTC().Format(time.RFC3339))
	}
	return ca.issue(v.checked.Request(), o.notBefore(), notAfter)
}
