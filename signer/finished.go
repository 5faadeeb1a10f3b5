package signer

import (
	"bytes"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	certificates "k8s.io/api/certificates/v1"
)

// expected describes what a finished certificate must be.
type expected struct {
	csr       *x509.CertificateRequest
	usages    []certificates.KeyUsage
	serial    *big.Int
	notBefore time.Time
	notAfter  time.Time
	ca        *x509.Certificate
	// remote is set if another process has signed. It chooses the serial number and may shorten the validity. The caller
	// checks the issuer and its signature.
	remote bool
}

// Extensions that a finished certificate may have (RFC 5280, section 4.2.1).
var allowedExtensions = []asn1.ObjectIdentifier{
	{2, 5, 29, 14}, // subject key identifier
	{2, 5, 29, 15}, // key usage
	{2, 5, 29, 17}, // subject alternative name
	{2, 5, 29, 19}, // basic constraints
	{2, 5, 29, 35}, // authority key identifier
	{2, 5, 29, 37}, // extended key usage
}

// check parses a finished certificate and returns an error if it is not as expected. It is the last check before the
// certificate is returned. It trusts only crypto/x509, which created the certificate and verified the signature with
// the CA's public key. Without remote, crypto/x509 did both in this process.
func (want expected) check(certificate []byte) (*x509.Certificate, error) {
	der, err := pemfile.One(certificate, pemfile.Certificate)
	if err != nil {
		return nil, fmt.Errorf("not a single certificate in PEM: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	usage, extended, err := approval.X509Usages(want.usages)
	if err != nil {
		return nil, err
	}
	subject, err := asn1.Marshal(want.csr.Subject.ToRDNSequence())
	if err != nil {
		return nil, fmt.Errorf("subject: %w", err)
	}
	public, ok := cert.PublicKey.(publicKey)
	switch {
	case !ok || !public.Equal(want.csr.PublicKey):
		return nil, errors.New("public key differs from that of the request")
	case !bytes.Equal(cert.RawSubject, subject):
		return nil, fmt.Errorf("subject is %q, want %q", cert.Subject, want.csr.Subject)
	case !slices.Equal(cert.DNSNames, want.csr.DNSNames):
		return nil, fmt.Errorf("DNS names are %q, want %q", cert.DNSNames, want.csr.DNSNames)
	case !slices.EqualFunc(cert.IPAddresses, want.csr.IPAddresses, net.IP.Equal):
		return nil, fmt.Errorf("IP addresses are %q, want %q", cert.IPAddresses, want.csr.IPAddresses)
	case !slices.Equal(cert.EmailAddresses, want.csr.EmailAddresses):
		return nil, fmt.Errorf("email addresses are %q, want %q", cert.EmailAddresses, want.csr.EmailAddresses)
	case !slices.EqualFunc(cert.URIs, want.csr.URIs, func(a, b *url.URL) bool { return a.String() == b.String() }):
		return nil, fmt.Errorf("URIs are %q, want %q", cert.URIs, want.csr.URIs)
	case cert.KeyUsage != usage:
		return nil, fmt.Errorf("key usage is %b, want %b", cert.KeyUsage, usage)
	case !slices.Equal(cert.ExtKeyUsage, extended) || len(cert.UnknownExtKeyUsage) > 0:
		return nil, fmt.Errorf("extended key usage is %v %v, want %v", cert.ExtKeyUsage, cert.UnknownExtKeyUsage, extended)
	case !cert.BasicConstraintsValid || cert.IsCA:
		return nil, errors.New("basic constraints are missing or allow a CA")
	case !cert.NotBefore.Equal(want.notBefore) || !cert.NotAfter.Equal(want.notAfter) && !(want.remote && cert.NotAfter.Before(want.notAfter)):
		return nil, fmt.Errorf("valid from %s to %s, want %s to %s", cert.NotBefore, cert.NotAfter, want.notBefore, want.notAfter)
	case want.remote && cert.SerialNumber.Sign() <= 0:
		return nil, errors.New("serial number is not positive")
	case want.remote:
	case cert.NotAfter.After(want.ca.NotAfter):
		return nil, fmt.Errorf("valid to %s, after the CA expires at %s", cert.NotAfter, want.ca.NotAfter)
	case cert.SerialNumber.Cmp(want.serial) != 0:
		return nil, errors.New("serial number differs from the requested one")
	case !bytes.Equal(cert.RawIssuer, want.ca.RawSubject):
		return nil, fmt.Errorf("issuer is %q, want %q", cert.Issuer, want.ca.Subject)
	}
	for _, ext := range cert.Extensions {
		if !slices.ContainsFunc(allowedExtensions, ext.Id.Equal) {
			return nil, fmt.Errorf("unexpected extension %s", ext.Id)
		}
	}
	// crypto/x509 drops names of unknown kinds, so the comparisons above do not see them.
	if err := pkcs10.CheckNames(cert.Extensions); err != nil {
		return nil, fmt.Errorf("names: %v", err) // not an approval.Error, because this says nothing about the request
	}
	if len(cert.UnhandledCriticalExtensions) > 0 {
		return nil, fmt.Errorf("critical extensions %v have parts that crypto/x509 does not know", cert.UnhandledCriticalExtensions)
	}
	return cert, nil
}
