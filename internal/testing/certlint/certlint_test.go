package certlint_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/certlint"
	"github.com/kubejoin/kubejoin/signer/issuance"
)

// authority makes certificates as they should be, and others.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func create(t *testing.T, template, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	template.SerialNumber, template.BasicConstraintsValid = big.NewInt(time.Now().UnixNano()), true
	template.NotBefore, template.NotAfter = time.Now(), time.Now().Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "ca"}, IsCA: true, KeyUsage: x509.KeyUsageCertSign}
	return authority{create(t, template, template, key, key), key}
}

func (a authority) issue(t *testing.T, change func(*x509.Certificate)) *x509.Certificate {
	t.Helper()
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "leaf"}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, SubjectKeyId: []byte{1}}
	if change != nil {
		change(template)
	}
	return create(t, template, a.cert, a.key, a.key)
}

// What is good has no findings, and what is not is found: by zlint, by openssl, or both.
func TestRecordsCheck(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	for name, test := range map[string]struct {
		cert *x509.Certificate
		want string // part of the findings; empty is none
	}{
		"good":               {cert: ca.issue(t, nil)},
		"a long node name":   {cert: ca.issue(t, func(c *x509.Certificate) { c.Subject.CommonName = strings.Repeat("x", 65) })},
		"key encipherment":   {cert: ca.issue(t, func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageKeyEncipherment })},
		"of another CA":      {cert: other.issue(t, nil), want: "openssl verify: 0 of 1 are good"},
		"no subject":         {cert: ca.issue(t, func(c *x509.Certificate) { c.Subject = pkix.Name{} }), want: "e_subject_empty_without_san"},
		"a name with spaces": {cert: ca.issue(t, func(c *x509.Certificate) { c.DNSNames = []string{" "} }), want: "e_ext_san_space_dns_name"},
		"a CA":               {cert: ca.issue(t, func(c *x509.Certificate) { c.IsCA = true; c.KeyUsage |= x509.KeyUsageCertSign }), want: "openssl x509"},
	} {
		t.Run(name, func(t *testing.T) {
			records := certlint.Records(t.TempDir())
			caFile := filepath.Join(t.TempDir(), "ca.pem")
			if err := os.WriteFile(caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw}), 0o600); err != nil {
				t.Fatal(err)
			}
			flag, keepCA := records.Flag(caFile)
			line, err := json.Marshal(issuance.Entry{
				Outcome: issuance.Issued, Certificate: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: test.cert.Raw})),
			})
			if err != nil {
				t.Fatal(err)
			}
			_, file, _ := strings.Cut(flag, "=")
			// The last line is one that a process was killed in.
			if err := os.WriteFile(file, append(append(line, '\n'), `{"outcome":"issu`...), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := keepCA(); err != nil {
				t.Fatal(err)
			}
			issued, findings, err := records.Check(t.Context())
			if err != nil || issued != 1 {
				t.Fatalf("%d issued: %v", issued, err)
			}
			if got := strings.Join(findings, "\n"); test.want == "" && got != "" || !strings.Contains(got, test.want) {
				t.Errorf("findings are %q, want %q", got, test.want)
			}
		})
	}
}

// Without the CA there is no second opinion, and that is an error.
func TestRecordsWithoutCA(t *testing.T) {
	ca := newAuthority(t)
	records := certlint.Records(t.TempDir())
	flag, keepCA := records.Flag(filepath.Join(t.TempDir(), "gone"))
	_, file, _ := strings.Cut(flag, "=")
	line, err := json.Marshal(issuance.Entry{
		Outcome: issuance.Issued, Certificate: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.issue(t, nil).Raw})),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append(line, '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := keepCA(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := records.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "the CA was not kept") {
		t.Errorf("error is %v", err)
	}
}
