package harness

import (
	"crypto/x509"
	"encoding/pem"
	"slices"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/certlint"
	"github.com/kubejoin/kubejoin/internal/testing/must"
)

// ParseLeaf parses the first certificate of a PEM chain.
func ParseLeaf(t *testing.T, chain []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(chain)
	if block == nil {
		t.Fatal("no certificate")
	}
	return must.Value(x509.ParseCertificate(block.Bytes))(t)
}

// CheckKubeletCertificate checks a client certificate of a kubelet from the cluster CA.
func CheckKubeletCertificate(t *testing.T, s *Site, leaf *x509.Certificate, node string, duration time.Duration) {
	t.Helper()
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: s.CAPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Errorf("%s: %v", node, err)
	}
	if leaf.Subject.CommonName != "system:node:"+node || !slices.Equal(leaf.Subject.Organization, []string{"system:nodes"}) || leaf.IsCA {
		t.Errorf("%s: subject %s, CA %v", node, leaf.Subject, leaf.IsCA)
	}
	// NotBefore is five minutes in the past. A duration of 8 hours or more includes these five minutes; a shorter
	// certificate lasts five minutes longer.
	want := duration
	if duration < 8*time.Hour {
		want += 5 * time.Minute
	}
	if got := leaf.NotAfter.Sub(leaf.NotBefore); got != want {
		t.Errorf("%s: certificate lasts %v, want %v", node, got, want)
	}
	LintCertificate(t, leaf)
}

// LintCertificate checks a certificate with zlint and openssl.
func LintCertificate(t *testing.T, leaf *x509.Certificate) {
	t.Helper()
	findings := must.Value(certlint.Check(leaf.Raw))(t)
	for _, finding := range findings {
		t.Error(finding)
	}
}
