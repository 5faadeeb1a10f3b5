package daemon

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
)

// Catches a CA with name constraints whose certificates no client accepts, while /readyz only says ok.
func TestNoticesCAThatClientsRefuse(t *testing.T) {
	made, err := signer.GenerateCA("kubernetes", time.Now(), 10*365*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := *made.Certificate()
	template.PublicKey, template.PermittedDNSDomains, template.SubjectKeyId = key.Public(), []string{"example.com"}, nil
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
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
	certPEM, keyPEM, err := ca.PEM()
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile := filepath.Join(t.TempDir(), "ca.crt"), filepath.Join(t.TempDir(), "ca.key")
	for file, content := range map[string][]byte{certFile: certPEM, keyFile: keyPEM} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		options Options
		want    string // part of the notice
	}{
		"kubejoin's own names":   {Options{Listen: "127.0.0.1:9443"}, `"localhost"`},
		"no names":               {Options{TLS: TLS{CertFile: "tls.crt"}}, ""},
		"names that it permits":  {Options{TLS: TLS{CertFile: "tls.crt"}, Serving: Serving{Scope: approval.ServingScope{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, DNSSuffixes: []string{"node.example.com"}}}}, ""},
		"names that it does not": {Options{TLS: TLS{CertFile: "tls.crt"}, Serving: Serving{Scope: approval.ServingScope{DNSSuffixes: []string{"example.org"}}}}, "node.example.org"},
	} {
		s := newService(test.options, slog.New(slog.DiscardHandler), nil)
		if err := s.loadCA(certFile, keyFile, time.Hour); err != nil {
			t.Fatal(err)
		}
		check := s.api.Status.Checks[len(s.api.Status.Checks)-1]
		err := check.Ready(t.Context())
		var notice server.Notice
		if check.Name != "cluster-ca" || errors.As(err, &notice) != (test.want != "") || !strings.Contains(string(notice), test.want) || err != nil && notice == "" {
			t.Errorf("%s: check %s returns %v, want a notice with %q", name, check.Name, err, test.want)
		}
	}
}
