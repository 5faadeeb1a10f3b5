package signer

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer/approval"
	certificates "k8s.io/api/certificates/v1"
)

// A CA is a certificate authority that can sign: a certificate, its private key, and the other trusted certificates.
// [NewCA], [LoadCA] and [GenerateCA] make a CA. [NewRemoteCA] makes a CA whose key is in another process. A CA is
// immutable and safe for concurrent use. It never prints its key.
type CA struct {
	issuer
	key    crypto.Signer // nil if the key is in another process
	bundle []*x509.Certificate
	remote *elsewhere // nil if the key is in this process
}

// An issuer is a certificate that signs.
type issuer struct {
	cert   *x509.Certificate
	chain  []byte              // PEM of the intermediates that are appended to an issued certificate
	limits []*x509.Certificate // cert and intermediates that limit the extended usages
}

// publicKey is implemented by every public key of the standard library.
type publicKey interface{ Equal(crypto.PublicKey) bool }

// NewCA makes a CA from its certificates and the private key of one of them. The certificate that matches the key
// signs. If several certificates match, the certificate that is already valid and expires last signs. The other
// certificates are only trusted, so that a CA can be replaced step by step. Every certificate must be a CA that may
// sign certificates. The signing certificate must be valid now.
func NewCA(certs []*x509.Certificate, key crypto.Signer) (*CA, error) {
	if key == nil {
		return nil, errors.New("no CA key given")
	}
	var public publicKey
	switch k := key.Public().(type) {
	case *rsa.PublicKey:
		public = k
	case *ecdsa.PublicKey:
		public = k
	case ed25519.PublicKey:
		public = k
	default:
		return nil, fmt.Errorf("CA key of type %T, want RSA, ECDSA or Ed25519", key)
	}
	ca, found, err := newCA(certs, func(cert *x509.Certificate) bool { return public.Equal(cert.PublicKey) })
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("the CA key matches none of the %d certificates given", len(certs))
	}
	ca.key = key
	return ca, nil
}

// newCA makes a CA without a key from its certificates, and returns those of them that match the key, the best first.
// The first one signs.
func newCA(certs []*x509.Certificate, matches func(*x509.Certificate) bool) (*CA, []*x509.Certificate, error) {
	ca, now := &CA{}, time.Now()
	var found []*x509.Certificate
	for i, cert := range certs {
		if err := checkCA(cert); err != nil {
			return nil, nil, fmt.Errorf("certificate %d of %d: %w", i+1, len(certs), err)
		}
		if slices.ContainsFunc(ca.bundle, cert.Equal) {
			continue
		}
		ca.bundle = append(ca.bundle, cert)
		if matches(cert) {
			found = append(found, cert)
		}
	}
	if len(found) == 0 {
		return ca, nil, nil
	}
	slices.SortStableFunc(found, func(a, b *x509.Certificate) int {
		if begun(a, now) != begun(b, now) {
			if begun(a, now) {
				return -1
			}
			return 1
		}
		return b.NotAfter.Compare(a.NotAfter)
	})
	cert := found[0]
	if !begun(cert, now) {
		return nil, nil, fmt.Errorf("the CA is not valid yet: %s is valid from %s, the time is %s; check the clock of this machine and of the machine that created the CA", cert.Subject,
			cert.NotBefore.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	if !now.Before(cert.NotAfter) {
		return nil, nil, fmt.Errorf("%w: %s expired at %s, the time is %s; renew it with the same key: docs/operate.md#renew-an-expired-ca", ErrExpiredCA, cert.Subject,
			cert.NotAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	ca.issuer = newIssuer(cert, ca.bundle)
	return ca, found, nil
}

func newIssuer(cert *x509.Certificate, bundle []*x509.Certificate) issuer {
	made := issuer{cert: cert}
	// Clients need the certificates between an issued certificate and the root. The root is not appended: a client that
	// trusts the root already has it.
	path := slices.DeleteFunc(chainOf(cert, bundle), selfSigned)
	for _, cert := range path {
		made.chain = append(made.chain, encodeCertificate(cert.Raw)...)
	}
	// Extended usages of the CA, or of an intermediate, limit the certificates below it (crypto/x509 and other
	// implementations enforce that).
	for _, cert := range append([]*x509.Certificate{cert}, path...) {
		if len(cert.ExtKeyUsage)+len(cert.UnknownExtKeyUsage) > 0 && !slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageAny) {
			made.limits = append(made.limits, cert)
		}
	}
	return made
}

func begun(cert *x509.Certificate, now time.Time) bool { return !now.Before(cert.NotBefore) }

// checkUsages returns an error if clients would not accept certificates with these usages of a profile.
func (ca issuer) checkUsages(usages []certificates.KeyUsage) error {
	_, wanted, _ := approval.X509Usages(usages) // no error: a profile has known usages
	for _, cert := range ca.limits {
		for _, usage := range wanted {
			if !slices.Contains(cert.ExtKeyUsage, usage) {
				return fmt.Errorf("the extended key usage of CA %q excludes certificates for %s, so clients would not accept them; want a CA without extended key usage", cert.Subject, safetext.List(usages, "and"))
			}
		}
	}
	return nil
}

// checkCA returns an error if a certificate may not sign others (RFC 5280, sections 4.2.1.3 and 4.2.1.9). Without a
// key usage extension every usage is allowed.
func checkCA(cert *x509.Certificate) error {
	switch {
	case cert == nil:
		return errors.New("missing certificate")
	case !cert.BasicConstraintsValid || !cert.IsCA:
		return fmt.Errorf("%q is not a CA: want basic constraints with CA set", cert.Subject)
	case cert.KeyUsage != 0 && cert.KeyUsage&x509.KeyUsageCertSign == 0:
		return fmt.Errorf("%q may not sign certificates: want key usage \"certificate signing\"", cert.Subject)
	}
	return nil
}

func selfSigned(cert *x509.Certificate) bool {
	return bytes.Equal(cert.RawIssuer, cert.RawSubject) && cert.CheckSignatureFrom(cert) == nil
}

// Certificate returns the certificate that signs. It must not be changed. If the key is in another process, it is the
// certificate that signed last or that [CA.SignsWith] has set.
func (ca *CA) Certificate() *x509.Certificate { return ca.signs().cert }

// signs returns the certificate that signs, with its chain.
func (ca *CA) signs() issuer {
	if ca.remote != nil {
		if last := ca.remote.last.Load(); last != nil {
			return *last
		}
	}
	return ca.issuer
}

// Bundle returns every trusted certificate once, in the order given. The certificates must not be changed.
func (ca *CA) Bundle() []*x509.Certificate { return slices.Clone(ca.bundle) }

// Without returns the CA without the trusted certificates that drop selects. It fails if one of them signs.
func (ca *CA) Without(drop func(*x509.Certificate) bool) (*CA, error) {
	if signs := ca.Certificate(); drop(signs) {
		return nil, fmt.Errorf("%s is out of use", ca)
	}
	if !slices.ContainsFunc(ca.bundle, drop) {
		return ca, nil
	}
	left := *ca
	left.bundle = slices.DeleteFunc(ca.Bundle(), drop)
	return &left, nil
}

// Secret returns 32 bytes for one purpose that only holders of the CA's key know. Secret returns the same bytes in
// every process with this key. The error means that the key is in another process or cannot be exported, for example
// because it is in a hardware module.
func (ca *CA) Secret(purpose string) ([]byte, error) {
	if ca.remote != nil {
		return nil, errElsewhere
	}
	key, err := x509.MarshalPKCS8PrivateKey(ca.key)
	if err != nil {
		return nil, fmt.Errorf("key of the CA: %w", err)
	}
	mac := hmac.New(sha256.New, key)
	_, _ = mac.Write([]byte(purpose)) // never fails
	return mac.Sum(nil), nil
}

// Fixed returns a source of a CA that does not change, for [NewSigner].
func Fixed(ca *CA) func() (*CA, error) { return func() (*CA, error) { return ca, nil } }

// String returns the subject of the certificate that signs.
func (ca CA) String() string {
	if ca.cert == nil {
		return "<no CA>"
	}
	return "CA " + ca.signs().cert.Subject.String()
}

// Format prints String for every verb. Otherwise fmt would print the private key, which is in the struct.
func (ca CA) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, ca.String()) }

// LogValue returns String.
func (ca CA) LogValue() slog.Value { return slog.StringValue(ca.String()) }
