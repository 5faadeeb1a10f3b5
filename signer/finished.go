package signer

import (
	"bytes"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/signer/approval"
	certificates "k8s.io/api/certificates/v1"
)

// expected is what a finished certificate must be.
type expected struct {
	csr       *x509.CertificateRequest
	usages    []certificates.KeyUsage
	serial    *big.Int
	notBefore time.Time
	notAfter  time.Time
	ca        *x509.Certificate
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

// check parses a finished certificate and says what is wrong with it: it is the last look before
// the certificate leaves. It trusts nothing of what made it but crypto/x509, which has verified the
// signature with the CA's public key and would not have returned it otherwise.
func (want expected) check(certificate []byte) (*x509.Certificate, error) {
	block, rest := pem.Decode(certificate)
	if block == nil || block.Type != certificateBlock || len(rest) > 0 {
		return nil, errors.New("it is something else than one certificate in PEM")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
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
		return nil, errors.New("public key is not the one of the request")
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
		return nil, errors.New("basic constraints do not say that it is no CA")
	case !cert.NotBefore.Equal(want.notBefore) || !cert.NotAfter.Equal(want.notAfter):
		return nil, fmt.Errorf("valid from %s to %s, want %s to %s", cert.NotBefore, cert.NotAfter, want.notBefore, want.notAfter)
	case cert.NotAfter.After(want.ca.NotAfter):
		return nil, fmt.Errorf("valid to %s, the CA only to %s", cert.NotAfter, want.ca.NotAfter)
	case cert.SerialNumber.Cmp(want.serial) != 0:
		return nil, errors.New("serial number is not the one given")
	case !bytes.Equal(cert.RawIssuer, want.ca.RawSubject):
		return nil, fmt.Errorf("issuer is %q, want %q", cert.Issuer, want.ca.Subject)
	}
	for _, ext := range cert.Extensions {
		if !slices.ContainsFunc(allowedExtensions, ext.Id.Equal) {
			return nil, fmt.Errorf("extension %s, which nobody asked for", ext.Id)
		}
	}
	return cert, nil
}
