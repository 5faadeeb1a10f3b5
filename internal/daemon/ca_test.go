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

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
)

// Catches a CA with name constraints whose certificates no client accepts, while /readyz only says ok.
func TestNoticesCAThatClientsRefuse(t *testing.T) {
	made := must.Value(signer.GenerateCA("kubernetes", time.Now(), 10*365*24*time.Hour))(t)
	key := must.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := *made.Certificate()
	template.PublicKey, template.PermittedDNSDomains, template.SubjectKeyId = key.Public(), []string{"example.com"}, nil
	der := must.Value(x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key))(t)
	cert := must.Value(x509.ParseCertificate(der))(t)
	ca := must.Value(signer.NewCA([]*x509.Certificate{cert}, key))(t)
	certPEM, keyPEM, err := ca.PEM()
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile := filepath.Join(t.TempDir(), "ca.crt"), filepath.Join(t.TempDir(), "ca.key")
	for file, content := range map[string][]byte{certFile: certPEM, keyFile: keyPEM} {
		must.OK(t, os.WriteFile(file, content, 0o600))
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
		must.OK(t, s.loadCA(CA{CertFile: certFile, KeyFile: keyFile}, time.Hour))
		check := s.api.Status.Checks[len(s.api.Status.Checks)-1]
		err := check.Ready(t.Context())
		var notice server.Notice
		if check.Name != "cluster-ca" || errors.As(err, &notice) != (test.want != "") || !strings.Contains(string(notice), test.want) || err != nil && notice == "" {
			t.Errorf("%s: check %s returns %v, want a notice with %q", name, check.Name, err, test.want)
		}
	}
}

// The notice about the separate CA of a signer names the files to replace, because 'kubejoin ca' does not rotate it.
func TestNoticeNamesFilesOfSignerCA(t *testing.T) {
	certs, key, err := must.Value(signer.GenerateCA("separate", time.Now(), 80*24*time.Hour))(t).PEM()
	must.OK(t, err)
	dir := t.TempDir()
	for name, content := range map[string][]byte{"ca.crt": certs, "ca.key": key, "signers.yaml": []byte(`apiVersion: kubejoin.io/v1alpha1
kind: SignerConfiguration
signers:
- name: example.com/a
  ca: {certFile: ca.crt, keyFile: ca.key}
  duration: {default: 1h}
  usages: [client auth]
  subject: {commonNames: [a]}
`)} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	s := newService(Options{SignerConfig: filepath.Join(dir, "signers.yaml")}, slog.New(slog.DiscardHandler), nil)
	must.OK(t, s.loadSigners())
	check := s.api.Status.Checks[len(s.api.Status.Checks)-1]
	want := "within 90 days, and cannot sign after that; replace " + filepath.Join(dir, "ca.crt") + " and " + filepath.Join(dir, "ca.key")
	var notice server.Notice
	if err := check.Ready(t.Context()); !errors.As(err, &notice) || !strings.HasSuffix(string(notice), want) {
		t.Errorf("%s: %v, want %q", check.Name, err, want)
	}
}
