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
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/rotation"
	certificates "k8s.io/api/certificates/v1"
)

var notRotating = &rotationState{now: func() rotating { return rotating{} }}

// A CA may have name constraints, so that no client accepts its certificates. Catches a /readyz that does not report this.
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
		must.Value(s.loadCA(CA{CertFile: certFile, KeyFile: keyFile}, time.Hour, notRotating, noEvents))(t)
		check := s.checks[len(s.checks)-1]
		err := check.Ready(t.Context())
		var notice api.Notice
		if check.Name != "cluster-ca" || errors.As(err, &notice) != (test.want != "") || !strings.Contains(string(notice), test.want) || err != nil && notice == "" {
			t.Errorf("%s: check %s returns %v, want a notice with %q", name, check.Name, err, test.want)
		}
	}
}

// A host that missed a rotation still has the replaced CA, and somebody else may have its key. kubejoin must neither sign with
// this CA nor trust its certificates, even if a bundle contains it with the new CA.
func TestRefusesCAThatARotationReplaced(t *testing.T) {
	old := must.Value(signer.GenerateCA("kubernetes", time.Now(), 10*365*24*time.Hour))(t)
	fresh := must.Value(signer.GenerateCA("kubernetes-2", time.Now(), 10*365*24*time.Hour))(t)
	r := must.Value(rotation.New(rotation.Cluster, old.Bundle(), fresh.Bundle(), nil, time.Now()))(t)
	trusted := func(c *signer.CA, pool *x509.CertPool) bool {
		_, err := c.Certificate().Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
		return err == nil
	}
	state := func(stage rotation.Stage, ended time.Time) rotating {
		r.Stage, r.Ended = stage, ended
		return newRotating(r)
	}
	for name, test := range map[string]struct {
		signs, also *signer.CA
		rotating    rotating
		want        *x509.Certificate // nil means none
		trusted     int
	}{
		"before the end":  {old, fresh, state(rotation.Switch, time.Time{}), old.Certificate(), 2},
		"left behind":     {old, old, state(rotation.Finish, time.Now()), nil, 0},
		"still trusts it": {fresh, old, state(rotation.Finish, time.Now()), fresh.Certificate(), 1},
		"aborted":         {fresh, old, state(rotation.Prepare, time.Now()), nil, 1},
	} {
		file := filepath.Join(t.TempDir(), "ca.pem")
		certs, key, err := test.signs.PEM()
		must.OK(t, err)
		must.OK(t, os.WriteFile(file, slices.Concat(certs, test.also.BundlePEM(), key), 0o600))
		s := newService(Options{TLS: TLS{CertFile: "tls.crt"}, CA: CA{CertFile: file, KeyFile: file, Duration: time.Hour}}, slog.New(slog.DiscardHandler), nil)
		state := &rotationState{now: func() rotating { return test.rotating }}
		inFiles := must.Value(s.loadCA(s.options.CA, time.Hour, state, noEvents))(t)
		clients := filepath.Join(filepath.Dir(file), "clients.pem")
		must.OK(t, os.WriteFile(clients, slices.Concat(certs, test.also.BundlePEM()), 0o600))
		cas := must.Value(s.openCAs("client-ca", "client-ca-file", clients))(t)
		signers := must.Value(s.signers(inFiles, nil))(t)()
		ca, err := signers[certificates.KubeAPIServerClientKubeletSignerName].CA()
		ready := s.checks[len(s.checks)-1].Ready(t.Context())
		for what, err := range map[string]error{"signer": err, "readiness": ready} {
			if test.want == nil && (err == nil || !strings.Contains(err.Error(), file)) || test.want != nil && err != nil {
				t.Errorf("%s: %s: got %v, want an error with %s: %t", name, what, err, file, test.want == nil)
			}
		}
		if err == nil && (!ca.Certificate().Equal(test.want) || len(ca.Bundle()) != test.trusted) {
			t.Errorf("%s: got %s and %d trusted, want %s and %d", name, ca, len(ca.Bundle()), test.want.Subject, test.trusted)
		}
		trusting := state.trusting(cas.Get)
		for _, one := range []*signer.CA{test.signs, test.also} {
			if want := !test.rotating.replaced(one.Certificate()); trusted(one, trusting()) != want {
				t.Errorf("%s: clients of %s are accepted: %t, want %t", name, one, !want, want)
			}
		}
		if pool := trusting(); pool != trusting() {
			t.Errorf("%s: each request makes a pool", name)
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
	must.Value(s.loadSigners(nil, noEvents))(t)
	check := s.checks[len(s.checks)-1]
	want := "within 90 days, and cannot sign after that; replace " + filepath.Join(dir, "ca.crt") + " and " + filepath.Join(dir, "ca.key")
	var notice api.Notice
	if err := check.Ready(t.Context()); !errors.As(err, &notice) || !strings.HasSuffix(string(notice), want) {
		t.Errorf("%s: %v, want %q", check.Name, err, want)
	}
}
