package test

import (
	"crypto/x509"
	"encoding/pem"
	"slices"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/certlint"
)

func parseLeaf(t *testing.T, chain []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(chain)
	if block == nil {
		t.Fatal("no certificate")
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return leaf
}

// checkKubeletCertificate is what a kubelet's client certificate from the cluster CA is to be.
func checkKubeletCertificate(t *testing.T, s *site, leaf *x509.Certificate, node string, duration time.Duration) {
	t.Helper()
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: s.CAPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Errorf("%s: %v", node, err)
	}
	if leaf.Subject.CommonName != "system:node:"+node || !slices.Equal(leaf.Subject.Organization, []string{"system:nodes"}) || leaf.IsCA {
		t.Errorf("%s: subject %s, CA %v", node, leaf.Subject, leaf.IsCA)
	}
	// From 8 hours on the certificate lasts for the duration, its first five minutes past;
	// a shorter one lasts five minutes more.
	want := duration
	if duration < 8*time.Hour {
		want += 5 * time.Minute
	}
	if got := leaf.NotAfter.Sub(leaf.NotBefore); got != want {
		t.Errorf("%s: certificate lasts %v, want %v", node, got, want)
	}
	lintCertificate(t, leaf)
}

// lintCertificate holds a certificate against RFC 5280 and those that amend it.
func lintCertificate(t *testing.T, leaf *x509.Certificate) {
	t.Helper()
	findings, err := certlint.Check(leaf.Raw)
	if err != nil {
		t.Fatal(err)
	}
	for _, finding := range findings {
		t.Error(finding)
	}
}
