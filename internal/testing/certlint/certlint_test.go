package certlint_test

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/certlint"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
	"github.com/kubejoin/kubejoin/signer/issuance"
)

func issue(t *testing.T, ca *tls.Certificate, change func(*x509.Certificate)) *x509.Certificate {
	t.Helper()
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "leaf"}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, SubjectKeyId: []byte{1}, BasicConstraintsValid: true}
	if change != nil {
		change(template)
	}
	return certtest.Issue(t, template, ca).Leaf
}

// A good certificate must have no findings. zlint or openssl must find each defect.
func TestRecordsCheck(t *testing.T) {
	need.Programs(t, "openssl")
	ca, other := certtest.CA(t, "ca"), certtest.CA(t, "ca")
	for name, test := range map[string]struct {
		cert *x509.Certificate
		want string // part of the findings; empty means no findings
	}{
		"good":               {cert: issue(t, ca, nil)},
		"a long node name":   {cert: issue(t, ca, func(c *x509.Certificate) { c.Subject.CommonName = strings.Repeat("x", 65) })},
		"key encipherment":   {cert: issue(t, ca, func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageKeyEncipherment })},
		"of another CA":      {cert: issue(t, other, nil), want: "openssl verify: 0 of 1 are good"},
		"no subject":         {cert: issue(t, ca, func(c *x509.Certificate) { c.Subject = pkix.Name{} }), want: "e_subject_empty_without_san"},
		"a name with spaces": {cert: issue(t, ca, func(c *x509.Certificate) { c.DNSNames = []string{" "} }), want: "e_ext_san_space_dns_name"},
		"a CA":               {cert: issue(t, ca, func(c *x509.Certificate) { c.IsCA = true; c.KeyUsage |= x509.KeyUsageCertSign }), want: "openssl x509"},
	} {
		t.Run(name, func(t *testing.T) {
			records := certlint.Records(t.TempDir())
			caFile := filepath.Join(t.TempDir(), "ca.pem")
			must.OK(t, os.WriteFile(caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Leaf.Raw}), 0o600))
			flag, keepCA := records.Flag(caFile)
			line := must.Value(json.Marshal(issuance.Entry{
				Outcome: issuance.Issued, Certificate: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: test.cert.Raw})),
			}))(t)
			_, file, _ := strings.Cut(flag, "=")
			// The last line is incomplete, as if the process was killed.
			must.OK(t, os.WriteFile(file, append(append(line, '\n'), `{"outcome":"issu`...), 0o600))
			must.OK(t, keepCA())
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

// Without the CA, openssl cannot verify the certificates, which must be an error.
func TestRecordsWithoutCA(t *testing.T) {
	need.Programs(t, "openssl")
	ca := certtest.CA(t, "ca")
	records := certlint.Records(t.TempDir())
	flag, keepCA := records.Flag(filepath.Join(t.TempDir(), "gone"))
	_, file, _ := strings.Cut(flag, "=")
	line := must.Value(json.Marshal(issuance.Entry{
		Outcome: issuance.Issued, Certificate: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: issue(t, ca, nil).Raw})),
	}))(t)
	must.OK(t, os.WriteFile(file, append(line, '\n'), 0o600))
	must.OK(t, keepCA())
	if _, _, err := records.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "the CA was not kept") {
		t.Errorf("error is %v", err)
	}
}
