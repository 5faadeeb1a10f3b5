package test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
)

func standalone(t *testing.T, dataDir string, flags ...string) *program {
	t.Helper()
	return serve(t, t.TempDir(), filepath.Join(dataDir, "ca.crt"), filepath.Join(dataDir, "curlrc"), append([]string{"--data-dir=" + dataDir}, flags...)...)
}

// The real kubeadm finds what it needs with the line that the standalone server gives, and
// stops where there is no API server.
func TestStandaloneDiscovery(t *testing.T) {
	t.Parallel()
	cluster.NeedRoot(t)
	dataDir := filepath.Join(t.TempDir(), "data")
	// Who stands at the API server's address sees kubeadm come by.
	api, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = api.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	arrived := make(chan struct{})
	go func() {
		if c, err := api.Accept(); err == nil {
			_ = c.Close()
			close(arrived)
			cancel()
		}
	}()
	p := standalone(t, dataDir, "--api-server=https://"+api.Addr().String())
	args, _ := p.join(t, "")
	if args[0] != p.address {
		t.Errorf("the join command names %s, want kubejoin at %s", args[0], p.address)
	}
	output, err := cluster.RunKubeadm(ctx, append(append([]string{"join"}, args...), "--node-name=worker-1", "--ignore-preflight-errors=all", "-v=5")...)
	if err == nil {
		t.Error("a join without an API server succeeded")
	}
	if want := "Cluster info signature and contents are valid and TLS certificate validates against pinned roots"; !strings.Contains(output, want) {
		t.Errorf("kubeadm did not say %q:\n%s", want, output)
	}
	select {
	case <-arrived:
	default:
		t.Errorf("kubeadm did not go on to the API server that cluster-info names:\n%s", output)
	}
	p.checkSecrets(t)
}

// A token that is not the server's is not let in by kubeadm.
func TestStandaloneRefusesForeignToken(t *testing.T) {
	t.Parallel()
	dataDir := filepath.Join(t.TempDir(), "data")
	p := standalone(t, dataDir)
	args, token := p.join(t, "")
	pins := []string{args[len(args)-1]}
	if _, err := clusterinfo.Discover(t.Context(), p.address, token, pins); err != nil {
		t.Fatalf("with the right token: %v", err)
	}
	forged, err := tokens.New(token.ID(), tokens.Generate().RevealSecret())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := clusterinfo.Discover(t.Context(), p.address, forged, pins); err == nil {
		t.Error("discovery passes with another secret")
	}
}

// What the standalone server makes for itself, its CA and its serving certificate, is as the
// RFCs have it.
func TestStandaloneCertificates(t *testing.T) {
	t.Parallel()
	dataDir := filepath.Join(t.TempDir(), "data")
	p := standalone(t, dataDir, "--tls-san=join.example.com")
	ca, err := os.ReadFile(filepath.Join(dataDir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	root := parseLeaf(t, ca)
	lintCertificate(t, root)
	if key, ok := root.PublicKey.(*ecdsa.PublicKey); !ok || key.Curve != elliptic.P256() || root.NotAfter.Before(time.Now().AddDate(9, 11, 0)) {
		t.Errorf("the CA has a %T and ends at %v, want ECDSA P-256 and ten years", root.PublicKey, root.NotAfter)
	}
	connection, err := tls.Dial("tcp", p.address, &tls.Config{RootCAs: p.roots, ServerName: "join.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	lintCertificate(t, connection.ConnectionState().PeerCertificates[0])
	if _, err := tls.Dial("tcp", p.address, &tls.Config{RootCAs: p.roots, MaxVersion: tls.VersionTLS12}); err == nil {
		t.Error("TLS 1.2 is served")
	}
}

// Every token whose join command was answered is there after a kill -9 in the middle.
func TestStandaloneKeepsTokensWhenKilled(t *testing.T) {
	t.Parallel()
	dataDir := filepath.Join(t.TempDir(), "data")
	p := standalone(t, dataDir)
	bearer := p.bearer(t)
	var mu sync.Mutex
	acknowledged := map[string]tokens.Token{}
	enough := make(chan struct{})
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for {
				r, err := http.NewRequestWithContext(t.Context(), "POST", "https://"+p.address+"/v1/token/print-join-command", nil)
				if err != nil {
					t.Error(err)
					return
				}
				r.Header.Set("Authorization", "Bearer "+bearer)
				response, err := p.http.Do(r)
				if err != nil {
					return // killed
				}
				line := make([]byte, 4096)
				n, _ := response.Body.Read(line)
				_ = response.Body.Close()
				args, err := cluster.JoinArgs(string(line[:n]))
				if err != nil {
					return // killed in the middle of the answer
				}
				token, err := tokens.Parse(args[2])
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				acknowledged[token.ID()] = token
				if len(acknowledged) == 200 {
					close(enough)
				}
				mu.Unlock()
			}
		})
	}
	<-enough
	p.kill(t)
	clients.Wait()

	p = standalone(t, dataDir)
	args, _ := p.join(t, "")
	pin := args[len(args)-1]
	status, info, err := p.get(t.Context(), "/api/v1/namespaces/kube-public/configmaps/cluster-info", "")
	if err != nil || status != 200 {
		t.Fatal(status, err)
	}
	for id := range acknowledged {
		if !strings.Contains(info, `"`+clusterinfo.SignatureKey(id)+`"`) {
			t.Errorf("token %s was acknowledged and is lost", id)
		}
	}
	for _, token := range acknowledged { // one of them whole
		if _, err := clusterinfo.Discover(t.Context(), p.address, token, []string{pin}); err != nil {
			t.Error(err)
		}
		break
	}
	t.Logf("%d tokens acknowledged before the kill", len(acknowledged))
}

// A second start finds everything again: the CA, the operator, the tokens.
func TestStandaloneStartsAgain(t *testing.T) {
	t.Parallel()
	dataDir := filepath.Join(t.TempDir(), "data")
	p := standalone(t, dataDir)
	args, token := p.join(t, "")
	before := readAll(t, dataDir, "ca.pem", "operators.csv", "ca.crt")
	for _, name := range []string{"ca.pem", "ca.crt", "curlrc", "operators.csv", "kubejoin.db", "."} {
		info, err := os.Stat(filepath.Join(dataDir, name))
		if err != nil {
			t.Fatal(err)
		}
		if want := map[bool]os.FileMode{true: 0o700, false: 0o600}[info.IsDir()]; info.Mode().Perm() != want {
			t.Errorf("%s has mode %o, want %o", name, info.Mode().Perm(), want)
		}
	}
	p.Stop(20 * time.Second)
	if err := p.Err(); err != nil {
		t.Errorf("stopped with %v, want exit code 0", err)
	}
	p = standalone(t, dataDir)
	if after := readAll(t, dataDir, "ca.pem", "operators.csv", "ca.crt"); after != before {
		t.Error("CA or operators have changed")
	}
	if _, err := clusterinfo.Discover(t.Context(), p.address, token, []string{args[len(args)-1]}); err != nil {
		t.Error(err)
	}
}

func readAll(t *testing.T, dir string, names ...string) string {
	t.Helper()
	var all strings.Builder
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		all.Write(content)
	}
	return all.String()
}

// The second process on one folder says why it cannot start, and names the first.
func TestStandaloneTwiceOnOneFolder(t *testing.T) {
	t.Parallel()
	dataDir := filepath.Join(t.TempDir(), "data")
	p := standalone(t, dataDir)
	second := exec.CommandContext(t.Context(), binary, "serve", "--data-dir="+dataDir, "--listen=127.0.0.1:0")
	output, err := second.CombinedOutput()
	if err == nil {
		t.Fatal("the second process started")
	}
	for _, want := range []string{"kubejoin.db", itoa(p.PID())} {
		if !strings.Contains(string(output), want) {
			t.Errorf("the second process does not name %s:\n%s", want, output)
		}
	}
	p.join(t, "") // the first is unharmed
}
