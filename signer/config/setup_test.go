package config_test

import (
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
)

func newCA(t testing.TB) *signer.CA {
	t.Helper()
	return must.Value(signer.GenerateCA("etcd", time.Now(), 10*365*24*time.Hour))(t)
}

// decode returns the first certificate of a PEM response.
func decode(t testing.TB, chain []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(chain)
	if block == nil {
		t.Fatal("got no certificate")
		return nil // not reached; for the linter
	}
	return must.Value(x509.ParseCertificate(block.Bytes))(t)
}

// wantError checks that an error contains a text; an empty text means no error.
func wantError(t testing.TB, err error, text string) {
	t.Helper()
	if text == "" && err != nil || text != "" && (err == nil || !strings.Contains(err.Error(), text)) {
		t.Errorf("got %v, want %q", err, text)
	}
}
