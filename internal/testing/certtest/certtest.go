// Package certtest creates certificates for tests.
package certtest

import (
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
)

// Issue returns a certificate with a new key, and sets its Leaf. If issuer is nil, the certificate is self-signed. If
// the template lacks them, Issue sets a serial number, and a validity from a minute ago to an hour from now.
func Issue(t testing.TB, template *x509.Certificate, issuer *tls.Certificate) *tls.Certificate {
	t.Helper()
	if template.SerialNumber == nil {
		template.SerialNumber = big.NewInt(time.Now().UnixNano())
	}
	if template.NotAfter.IsZero() {
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	}
	key := csrtest.NewKey()
	if issuer == nil {
		issuer = &tls.Certificate{Leaf: template, PrivateKey: key}
	}
	der := must.Value(x509.CreateCertificate(rand.Reader, template, issuer.Leaf, key.Public(), issuer.PrivateKey))(t)
	leaf := must.Value(x509.ParseCertificate(der))(t)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// CA returns the certificate of a CA.
func CA(t testing.TB, name string) *tls.Certificate {
	t.Helper()
	return Issue(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil)
}

// Serving returns the certificate of a server at an IP address.
func Serving(t testing.TB, ca *tls.Certificate, ip string) tls.Certificate {
	t.Helper()
	return ServingFrom(t, ca, ip, time.Now().Add(-time.Minute))
}

// ServingFrom is like [Serving], with a validity of one hour from begin.
func ServingFrom(t testing.TB, ca *tls.Certificate, ip string, begin time.Time) tls.Certificate {
	t.Helper()
	return *Issue(t, &x509.Certificate{
		NotBefore: begin, NotAfter: begin.Add(time.Hour),
		IPAddresses: []net.IP{net.ParseIP(ip)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, ca)
}

// Cross returns a cross certificate: the CA old has signed the subject and the key of the CA fresh.
func Cross(t testing.TB, old, fresh *x509.Certificate, oldKey crypto.PrivateKey) *x509.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), RawSubject: fresh.RawSubject, SubjectKeyId: fresh.SubjectKeyId,
		NotBefore: fresh.NotBefore, NotAfter: fresh.NotAfter, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der := must.Value(x509.CreateCertificate(rand.Reader, template, old, fresh.PublicKey, oldKey))(t)
	return must.Value(x509.ParseCertificate(der))(t)
}
