package signer_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/certlint"
	"github.com/kubejoin/kubejoin/signer"
	certificates "k8s.io/api/certificates/v1"
)

// Keys of a size that takes long to make, made once.
var (
	rsa2048 = sync.OnceValue(func() *rsa.PrivateKey { return must(rsa.GenerateKey(rand.Reader, 2048)) })
	rsa1024 = sync.OnceValue(func() *rsa.PrivateKey { return must(rsa.GenerateKey(rand.Reader, 1024)) })
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func newKey(curve elliptic.Curve) crypto.Signer { return must(ecdsa.GenerateKey(curve, rand.Reader)) }

func newEd25519() crypto.Signer {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	return must(key, err)
}

// csrPEM makes a request; key nil is a new P-256 key.
func csrPEM(t testing.TB, template *x509.CertificateRequest, key crypto.Signer) []byte {
	t.Helper()
	if key == nil {
		key = newKey(elliptic.P256())
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func newCSR(t testing.TB, template *x509.CertificateRequest, key crypto.Signer) *x509.CertificateRequest {
	t.Helper()
	csr, err := signer.ParseCSR(csrPEM(t, template, key))
	if err != nil {
		t.Fatal(err)
	}
	return csr
}

func nodeSubject(name string) pkix.Name {
	return pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}}
}

func newCA(t testing.TB) *signer.CA {
	t.Helper()
	ca, err := signer.GenerateCA("kubernetes", time.Now(), 10*365*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// caCertificate makes a CA certificate; parent nil is self-signed.
func caCertificate(t testing.TB, name string, key crypto.Signer, parent *x509.Certificate, parentKey crypto.Signer, change func(*x509.Certificate)) *x509.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(time.Now().UnixNano()),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	if change != nil {
		change(template)
	}
	if parent == nil {
		parent, parentKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	if err != nil {
		t.Fatal(err)
	}
	return must(x509.ParseCertificate(der))
}

// decode reads all certificates of a PEM answer. The first one, which was issued, has to be in
// order.
func decode(t testing.TB, data []byte) []*x509.Certificate {
	t.Helper()
	var certs []*x509.Certificate
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		certs = append(certs, must(x509.ParseCertificate(block.Bytes)))
	}
	if len(certs) == 0 {
		t.Fatal("no certificate in the answer")
	}
	lintCertificate(t, certs[0])
	return certs
}

// lintCertificate fails the test for what zlint has against a certificate.
func lintCertificate(t testing.TB, cert *x509.Certificate) {
	t.Helper()
	findings, err := certlint.Check(cert.Raw)
	if err != nil {
		t.Fatal(err)
	}
	for _, finding := range findings {
		t.Error(finding)
	}
}

var (
	clientUsages  = []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth}
	servingUsages = []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageServerAuth}
)
