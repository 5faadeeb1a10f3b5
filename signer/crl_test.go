package signer_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/revocation"
)

// caWith returns a CA whose certificate has a key usage.
func caWith(t testing.TB, usage x509.KeyUsage) (*signer.CA, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubernetes"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: usage, BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := signer.NewCA([]*x509.Certificate{cert}, key)
	if err != nil {
		t.Fatal(err)
	}
	return ca, key
}

// issueLeaf returns a certificate of the CA.
func issueLeaf(t *testing.T, ca *x509.Certificate, key *ecdsa.PrivateKey, serial int64) *x509.Certificate {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "system:node:worker-1"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return leaf
}

// opensslVerify checks a certificate with OpenSSL against a revocation list, and returns what it prints.
func opensslVerify(t *testing.T, ca, leaf *x509.Certificate, crl []byte) (string, error) {
	t.Helper()
	dir := t.TempDir()
	for name, block := range map[string]*pem.Block{
		"ca.pem": {Type: "CERTIFICATE", Bytes: ca.Raw}, "leaf.pem": {Type: "CERTIFICATE", Bytes: leaf.Raw}, "crl.pem": {Type: "X509 CRL", Bytes: crl},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "openssl", "verify", "-crl_check", "-CAfile", "ca.pem", "-CRLfile", "crl.pem", "leaf.pem")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Catches a list that clients refuse, or that lacks a revoked certificate.
func TestCRL(t *testing.T) {
	ca, key := caWith(t, x509.KeyUsageCertSign|x509.KeyUsageCRLSign)
	now, cert := time.Now(), ca.Certificate()
	later := now.Add(time.Hour)
	der, err := ca.CRL([]revocation.Entry{
		{Node: "worker-1", Since: now, Serials: []revocation.Serial{{Number: "a1", Until: later}, {Number: "a2", Until: now.Add(-time.Hour)}}},
		{Node: "worker-2", Since: now, Serials: []revocation.Serial{{Number: "a1", Until: later}, {Number: "xyz", Until: later}}},
	}, now)
	if err != nil {
		t.Fatal(err)
	}
	list, err := x509.ParseRevocationList(der)
	if err != nil {
		t.Fatal(err)
	}
	if err := list.CheckSignatureFrom(cert); err != nil || len(list.RevokedCertificateEntries) != 1 || list.Number.Int64() != now.Unix() || list.NextUpdate.Before(now.Add(23*time.Hour)) {
		t.Errorf("got %d serial numbers, number %s, %v", len(list.RevokedCertificateEntries), list.Number, err)
	}
	if out, err := opensslVerify(t, cert, issueLeaf(t, cert, key, 0xa1), der); err == nil || !strings.Contains(out, "certificate revoked") {
		t.Errorf("revoked certificate: %v %s", err, out)
	}
	if out, err := opensslVerify(t, cert, issueLeaf(t, cert, key, 0xb1), der); err != nil {
		t.Errorf("another certificate: %v %s", err, out)
	}
	// Without the key usage extension, every usage is allowed.
	ca, _ = caWith(t, 0)
	if _, err := ca.CRL(nil, now); err != nil {
		t.Error(err)
	}
}

// kubeadm's CA may not sign revocation lists. The test shows that Go and OpenSSL refuse such a list, and catches a list
// that kubejoin makes nevertheless: a client that reads it would refuse every certificate.
func TestNoCRLOfKubeadmCA(t *testing.T) {
	usage := x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment
	ca, key := caWith(t, usage)
	if _, err := ca.CRL(nil, time.Now()); !errors.Is(err, signer.ErrNoCRL) {
		t.Errorf("got %v, want %v", err, signer.ErrNoCRL)
	}
	issuer := *ca.Certificate()
	issuer.KeyUsage |= x509.KeyUsageCRLSign
	der, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now(), NextUpdate: time.Now().Add(time.Hour)}, &issuer, key)
	if err != nil {
		t.Fatal(err)
	}
	list, err := x509.ParseRevocationList(der)
	if err != nil {
		t.Fatal(err)
	}
	if err := list.CheckSignatureFrom(ca.Certificate()); err == nil {
		t.Error("Go accepts the list")
	}
	if out, err := opensslVerify(t, ca.Certificate(), issueLeaf(t, ca.Certificate(), key, 2), der); err == nil || !strings.Contains(out, "key usage does not include CRL signing") {
		t.Errorf("OpenSSL: %v %s", err, out)
	}
}

// FuzzCRL makes a list of what anybody may have written into a ConfigMap. It catches an entry that prevents the list, so
// that nothing is revoked for its readers, a list that cannot be parsed, and one without a certificate of another entry.
func FuzzCRL(f *testing.F) {
	ca, _ := caWith(f, x509.KeyUsageCertSign|x509.KeyUsageCRLSign)
	now := time.Date(2026, 11, 23, 8, 0, 0, 0, time.UTC)
	other := revocation.Entry{Node: "worker-2", Since: now, Serials: []revocation.Serial{{Number: "a1", Until: now.Add(time.Hour)}}}
	for _, since := range []string{"2026-11-23T08:00:00Z", "0001-01-01T00:00:01Z", "9999-12-31T23:59:59-01:00"} {
		for _, number := range []string{"a1", "-a1", "0", "+1", "0x1", "1_0", "", strings.Repeat("f", 40), strings.Repeat("f", 500)} {
			f.Add([]byte(`{"since":"` + since + `","serials":[{"number":"` + number + `","until":"2026-11-23T09:00:00Z"}]}`))
		}
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		e, err := revocation.Decode("worker-1", value)
		if err != nil {
			t.Fatal(err)
		}
		der, err := ca.CRL([]revocation.Entry{e, other}, now)
		if err != nil {
			t.Fatalf("%q: %v", value, err)
		}
		list, err := x509.ParseRevocationList(der)
		if err != nil {
			t.Fatalf("%q: %v", value, err)
		}
		if err := list.CheckSignatureFrom(ca.Certificate()); err != nil {
			t.Fatalf("%q: %v", value, err)
		}
		var got []string
		for _, c := range list.RevokedCertificateEntries {
			got = append(got, c.SerialNumber.Text(16))
		}
		if !slices.Contains(got, "a1") || len(got) > 1+len(e.Serials) {
			t.Fatalf("%q: got serial numbers %q", value, got)
		}
	})
}
