package signer_test

import (
	"crypto/elliptic"
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
)

// A client that trusts only the old CA must accept certificates of the new CA, within the limits of the new CA.
func TestCrossSign(t *testing.T) {
	now := time.Now()
	for name, test := range map[string]struct {
		fresh func(*x509.Certificate)
		usage x509.ExtKeyUsage // usage of the issued certificate
		want  string
	}{
		"a CA":                 {nil, x509.ExtKeyUsageServerAuth, ""},
		"without key usages":   {func(c *x509.Certificate) { c.KeyUsage = 0 }, x509.ExtKeyUsageServerAuth, ""},
		"longer than this one": {func(c *x509.Certificate) { c.NotAfter = now.Add(1000 * 24 * time.Hour) }, x509.ExtKeyUsageServerAuth, ""},
		"with a usage":         {func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }, x509.ExtKeyUsageServerAuth, "incompatible key usage"},
		"with names": {func(c *x509.Certificate) {
			c.PermittedDNSDomainsCritical, c.PermittedDNSDomains = true, []string{"example.com"}
		}, x509.ExtKeyUsageServerAuth, "not permitted"},
	} {
		oldKey, key := csrtest.Ed25519(), csrtest.ECDSA(elliptic.P256())
		old := caCertificate(t, "old", oldKey, nil, nil, nil)
		fresh := caCertificate(t, "new", key, nil, nil, test.fresh)
		cross := must.Value(must.Value(signer.NewCA([]*x509.Certificate{old}, oldKey))(t).CrossSign(fresh))(t)
		if string(cross.AuthorityKeyId) != string(old.SubjectKeyId) || string(cross.SubjectKeyId) != string(fresh.SubjectKeyId) || cross.NotAfter.After(old.NotAfter) || cross.SerialNumber.Cmp(fresh.SerialNumber) == 0 {
			t.Errorf("%s: got key IDs %x and %x, serial number %d, until %s", name, cross.AuthorityKeyId, cross.SubjectKeyId, cross.SerialNumber, cross.NotAfter)
		}
		leaf := caCertificate(t, "leaf", csrtest.NewKey(), fresh, key, func(c *x509.Certificate) {
			c.IsCA, c.KeyUsage, c.DNSNames, c.ExtKeyUsage = false, x509.KeyUsageDigitalSignature, []string{"node.test"}, []x509.ExtKeyUsage{test.usage}
		})
		roots, between := x509.NewCertPool(), x509.NewCertPool()
		roots.AddCert(old)
		between.AddCert(cross)
		_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{test.usage}})
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
	key := csrtest.NewKey()
	none := must.Value(signer.NewCA([]*x509.Certificate{caCertificate(t, "old", key, nil, nil, func(c *x509.Certificate) { c.MaxPathLenZero = true })}, key))(t)
	if _, err := none.CrossSign(caCertificate(t, "new", csrtest.NewKey(), none.Certificate(), key, nil)); err == nil || !strings.Contains(err.Error(), "has path length 0") {
		t.Errorf("path length 0: got %v, want a refusal", err)
	}
	leaf := caCertificate(t, "leaf", csrtest.NewKey(), none.Certificate(), key, func(c *x509.Certificate) { c.IsCA = false })
	if _, err := newCA(t).CrossSign(leaf); err == nil || !strings.Contains(err.Error(), "is not a CA") {
		t.Errorf("no CA: got %v, want a refusal", err)
	}
}
