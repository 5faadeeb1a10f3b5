package signer

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	certificates "k8s.io/api/certificates/v1"
)

// The signer never returns a certificate that differs from the request, regardless of the library that created it.
func TestRejectsIssuedCertificateThatDiffersFromRequest(t *testing.T) {
	now := time.Now().UTC().Truncate(time.Second)
	ca, err := GenerateCA("kubernetes", now, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	newKey := func() *ecdsa.PrivateKey {
		return must.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	}
	key := newKey()
	uri := &url.URL{Scheme: "spiffe", Host: "example.com", Path: "/worker-1"}
	der := must.Value(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject:  pkix.Name{CommonName: "system:node:worker-1", Organization: []string{"system:nodes"}},
		DNSNames: []string{"worker-1"}, IPAddresses: []net.IP{net.IPv4(192, 0, 2, 1)}, EmailAddresses: []string{"a@example.com"}, URIs: []*url.URL{uri},
	}, key))(t)
	csr := must.Value(pkcs10.Parse(pem.EncodeToMemory(&pem.Block{Type: pkcs10.BlockType, Bytes: der})))(t)
	type parts struct {
		want     expected
		template x509.Certificate
		key      *ecdsa.PrivateKey
		by       *CA
		pem      func([]byte) []byte
	}
	for name, test := range map[string]struct {
		change func(*parts)
		says   string // part of the error; empty: accepted
	}{
		"as it was meant":      {func(*parts) {}, ""},
		"another key":          {func(p *parts) { p.key = newKey() }, "public key differs from that of the request"},
		"another subject":      {func(p *parts) { p.template.Subject.CommonName = "system:node:worker-2" }, "subject is"},
		"another group":        {func(p *parts) { p.template.Subject.Organization = []string{"system:masters"} }, "subject is"},
		"another DNS name":     {func(p *parts) { p.template.DNSNames = []string{"worker-2"} }, "DNS names are"},
		"one more DNS name":    {func(p *parts) { p.template.DNSNames = []string{"worker-1", "kubernetes"} }, "DNS names are"},
		"another address":      {func(p *parts) { p.template.IPAddresses = []net.IP{net.IPv4(192, 0, 2, 2)} }, "IP addresses are"},
		"another email":        {func(p *parts) { p.template.EmailAddresses = nil }, "email addresses are"},
		"another URI":          {func(p *parts) { p.template.URIs = []*url.URL{{Scheme: "spiffe", Host: "example.com"}} }, "URIs are"},
		"one more key usage":   {func(p *parts) { p.template.KeyUsage |= x509.KeyUsageCertSign }, "key usage is"},
		"one key usage less":   {func(p *parts) { p.template.KeyUsage = 0 }, "key usage is"},
		"another extended one": {func(p *parts) { p.template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }, "extended key usage is"},
		"one more extended": {func(p *parts) {
			p.template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
		}, "extended key usage is"},
		"no extended one":         {func(p *parts) { p.template.ExtKeyUsage = nil }, "extended key usage is"},
		"an unknown extended one": {func(p *parts) { p.template.UnknownExtKeyUsage = []asn1.ObjectIdentifier{{1, 2, 3}} }, "extended key usage is"},
		"a CA":                    {func(p *parts) { p.template.IsCA = true }, "basic constraints"},
		"no basic constraints":    {func(p *parts) { p.template.BasicConstraintsValid = false }, "basic constraints"},
		"begins sooner":           {func(p *parts) { p.template.NotBefore = now.Add(-time.Second) }, "valid from"},
		"begins later":            {func(p *parts) { p.template.NotBefore = now.Add(time.Second) }, "valid from"},
		"ends later":              {func(p *parts) { p.template.NotAfter = p.template.NotAfter.Add(time.Second) }, "valid from"},
		"ends sooner":             {func(p *parts) { p.template.NotAfter = p.template.NotAfter.Add(-time.Second) }, "valid from"},
		"outlives its CA":         {func(p *parts) { p.want.notAfter = now.Add(25 * time.Hour); p.template.NotAfter = p.want.notAfter }, "after the CA expires"},
		"another serial number":   {func(p *parts) { p.template.SerialNumber = big.NewInt(1) }, "serial number"},
		"another CA":              {func(p *parts) { p.by, err = GenerateCA("other", now, 48*time.Hour) }, "issuer is"},
		"one more extension": {func(p *parts) {
			p.template.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 2, 3}, Value: []byte{5, 0}}}
		}, "extension 1.2.3"},
		"an OCSP server URL": {func(p *parts) { p.template.OCSPServer = []string{"http://example.com"} }, "extension 1.3.6.1.5.5.7.1.1"},
		"a revocation list":  {func(p *parts) { p.template.CRLDistributionPoints = []string{"http://example.com"} }, "extension 2.5.29.31"},
		"two certificates":   {func(p *parts) { p.pem = func(one []byte) []byte { return append(one, one...) } }, "not a single certificate"},
		"another block": {func(p *parts) {
			p.pem = func([]byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: pkcs10.BlockType, Bytes: der}) }
		}, "not a single certificate"},
		"nothing":                  {func(p *parts) { p.pem = func([]byte) []byte { return nil } }, "not a single certificate"},
		"what is no certificate":   {func(p *parts) { p.pem = func([]byte) []byte { return encodeCertificate(der) } }, "x509: "},
		"usages that nobody knows": {func(p *parts) { p.want.usages = []certificates.KeyUsage{"cert sign"} }, "is not supported"},
	} {
		t.Run(name, func(t *testing.T) {
			p := parts{
				want: expected{
					csr: csr, usages: []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
					serial: newSerial(), notBefore: now, notAfter: now.Add(time.Hour), ca: ca.cert,
				},
				key: key, by: ca, pem: func(one []byte) []byte { return one },
			}
			p.template = x509.Certificate{
				Subject: csr.Subject, SerialNumber: p.want.serial, NotBefore: p.want.notBefore, NotAfter: p.want.notAfter,
				DNSNames: csr.DNSNames, IPAddresses: csr.IPAddresses, EmailAddresses: csr.EmailAddresses, URIs: csr.URIs,
				KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true,
			}
			test.change(&p)
			made := must.Value(x509.CreateCertificate(rand.Reader, &p.template, p.by.cert, p.key.Public(), p.by.key))(t)
			cert, err := p.want.check(p.pem(encodeCertificate(made)))
			switch {
			case test.says == "" && (err != nil || cert == nil):
				t.Errorf("got %v, want no error", err)
			case test.says != "" && (err == nil || cert != nil || !strings.Contains(err.Error(), test.says)):
				t.Errorf("got %v, want an error with %q", err, test.says)
			}
		})
	}
}
