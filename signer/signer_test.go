package signer_test

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/certlint"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	certificates "k8s.io/api/certificates/v1"
)

// said returns the decision in an error of an authority, and the failure that caused it.
func said(err error) (approval.Decision, error) {
	if no, found := errors.AsType[*approval.Error](err); found {
		return no.Decision, no.Err
	}
	return approval.Decision{}, err
}

func newCA(t testing.TB) *signer.CA {
	t.Helper()
	return must.Value(signer.GenerateCA("kubernetes", time.Now(), 10*365*24*time.Hour))(t)
}

// began is when the lifetime of all CA certificates in these tests begins, so that they expire at the same time. Otherwise, the
// one that expires last would sign.
var began = time.Now()

// caCertificate creates a CA certificate. Without a parent it is self-signed.
func caCertificate(t testing.TB, name string, key crypto.Signer, parent *x509.Certificate, parentKey crypto.Signer, change func(*x509.Certificate)) *x509.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(time.Now().UnixNano()),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             began.Add(-time.Hour),
		NotAfter:              began.Add(24 * time.Hour),
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
	der := must.Value(x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey))(t)
	return must.Get(x509.ParseCertificate(der))
}

// decode returns all certificates of a PEM response and lints the first one, the issued certificate.
func decode(t testing.TB, data []byte) []*x509.Certificate {
	t.Helper()
	var certs []*x509.Certificate
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		certs = append(certs, must.Get(x509.ParseCertificate(block.Bytes)))
	}
	if len(certs) == 0 {
		t.Fatal("got no certificate in the response")
	}
	lintCertificate(t, certs[0])
	return certs
}

// lintCertificate fails the test for each zlint finding.
func lintCertificate(t testing.TB, cert *x509.Certificate) {
	t.Helper()
	findings := must.Value(certlint.Check(cert.Raw))(t)
	for _, finding := range findings {
		t.Error(finding)
	}
}

var (
	clientUsages  = []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth}
	servingUsages = []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageServerAuth}
)
