package joinformat_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"testing"
	"time"
)

type testCA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newCA(t *testing.T, name string) testCA {
	t.Helper()
	ca := testCA{}
	ca.cert, ca.key = ca.issue(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	return ca
}

func (ca testCA) issue(t *testing.T, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	parent, signer := ca.cert, ca.key
	if parent == nil {
		parent, signer = template, key
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	if template.NotBefore.IsZero() {
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// serving is a certificate for a server at an address.
func (ca testCA) serving(t *testing.T, ip string) tls.Certificate {
	t.Helper()
	return ca.servingIn(t, ip, 0)
}

// servingIn is one whose hour begins so much later, or earlier.
func (ca testCA) servingIn(t *testing.T, ip string, later time.Duration) tls.Certificate {
	t.Helper()
	begin := time.Now().Add(later - time.Minute)
	cert, key := ca.issue(t, &x509.Certificate{
		NotBefore: begin, NotAfter: begin.Add(time.Hour),
		IPAddresses: []net.IP{net.ParseIP(ip)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}
