package standalone

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
)

// TestStandaloneDiscoveryWorksWithKubeadm catches a join command or cluster-info of a standalone kubejoin that the real
// kubeadm refuses. kubeadm then contacts an API server that closes the connection.
func TestStandaloneDiscoveryWorksWithKubeadm(t *testing.T) {
	harness.Parallel(t)
	cluster.NeedRoot(t)
	dataDir := filepath.Join(t.TempDir(), "data")
	// A listener at the API server's address detects that kubeadm connects.
	api := must.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = api.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	arrived := make(chan struct{})
	go func() {
		if c, err := api.Accept(); err == nil {
			_ = c.Close()
			close(arrived)
			cancel()
		}
	}()
	p := harness.ServeStandalone(t, dataDir, "--api-server=https://"+api.Addr().String())
	args, _ := p.JoinArgs(t, "")
	if args[0] != p.Endpoint {
		t.Errorf("the join command names %s, want kubejoin at %s", args[0], p.Endpoint)
	}
	output, err := cluster.RunKubeadm(ctx, append(append([]string{"join"}, args...), "--node-name=worker-1", "--ignore-preflight-errors=all", "-v=5")...)
	if err == nil {
		t.Error("kubeadm join succeeded without an API server, want an error")
	}
	if want := "Cluster info signature and contents are valid and TLS certificate validates against pinned roots"; !strings.Contains(output, want) {
		t.Errorf("the output of kubeadm does not contain %q:\n%s", want, output)
	}
	select {
	case <-arrived:
	default:
		t.Errorf("kubeadm did not connect to the API server in cluster-info:\n%s", output)
	}
	p.CheckSecrets(t)
}

// TestStandaloneCertificatesFollowRFCs catches a generated CA or serving certificate that violates the RFCs, and TLS
// 1.2 by default.
func TestStandaloneCertificatesFollowRFCs(t *testing.T) {
	harness.Parallel(t)
	dataDir := filepath.Join(t.TempDir(), "data")
	p := harness.ServeStandalone(t, dataDir, "--tls-san=join.example.com")
	ca := must.Value(os.ReadFile(filepath.Join(dataDir, "ca.crt")))(t)
	root := harness.ParseLeaf(t, ca)
	harness.LintCertificate(t, root)
	if key, ok := root.PublicKey.(*ecdsa.PublicKey); !ok || key.Curve != elliptic.P256() || root.NotAfter.Before(time.Now().AddDate(9, 11, 0)) {
		t.Errorf("got a CA with %T that expires at %v, want ECDSA P-256 and ten years", root.PublicKey, root.NotAfter)
	}
	connection := must.Value(tls.Dial("tcp", p.Endpoint, &tls.Config{RootCAs: p.Roots, ServerName: "join.example.com"}))(t)
	defer func() { _ = connection.Close() }()
	harness.LintCertificate(t, connection.ConnectionState().PeerCertificates[0])
	if _, err := tls.Dial("tcp", p.Endpoint, &tls.Config{RootCAs: p.Roots, MaxVersion: tls.VersionTLS12}); err == nil {
		t.Error("a TLS 1.2 handshake succeeds, want an error")
	}
}

// TestStandaloneKeepsStateAcrossRestart catches a restart that loses or changes the CA, the operators or the tokens,
// and files that other users can read.
func TestStandaloneKeepsStateAcrossRestart(t *testing.T) {
	harness.Parallel(t)
	dataDir := filepath.Join(t.TempDir(), "data")
	p := harness.ServeStandalone(t, dataDir)
	args, token := p.JoinArgs(t, "")
	before := readAll(t, dataDir, "ca.pem", "operators.csv", "ca.crt")
	for _, name := range []string{"ca.pem", "ca.crt", "curlrc", "operators.csv", "kubejoin.db", "."} {
		info := must.Value(os.Stat(filepath.Join(dataDir, name)))(t)
		want := os.FileMode(0o600)
		switch name {
		case ".":
			want = 0o700
		case "ca.crt":
			want = 0o644
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %o, want %o", name, info.Mode().Perm(), want)
		}
	}
	p.Stop(20 * time.Second)
	if err := p.Err(); err != nil {
		t.Errorf("kubejoin exited with %v, want exit code 0", err)
	}
	p = harness.ServeStandalone(t, dataDir)
	if after := readAll(t, dataDir, "ca.pem", "operators.csv", "ca.crt"); after != before {
		t.Error("CA or operators changed after a restart, want them unchanged")
	}
	if _, err := clusterinfo.Discover(t.Context(), p.Endpoint, token, []string{args[len(args)-1]}); err != nil {
		t.Error(err)
	}
}

func readAll(t *testing.T, dir string, names ...string) string {
	t.Helper()
	var all strings.Builder
	for _, name := range names {
		content := must.Value(os.ReadFile(filepath.Join(dir, name)))(t)
		all.Write(content)
	}
	return all.String()
}

// Catches a page that --console=false does not switch off.
func TestConsoleIsSwitchedOff(t *testing.T) {
	harness.Parallel(t)
	for _, test := range []struct {
		flags  []string
		status int
	}{{nil, http.StatusOK}, {[]string{"--console=false"}, http.StatusNotFound}} {
		s := harness.ServeStandalone(t, filepath.Join(t.TempDir(), "data"), test.flags...)
		for _, path := range []string{"/console", "/console/app.js"} {
			if status, body, err := s.Get(t.Context(), path, ""); err != nil || status != test.status {
				t.Errorf("%s with %q: got %d %s (%v), want %d", path, test.flags, status, body, err, test.status)
			}
		}
	}
}
