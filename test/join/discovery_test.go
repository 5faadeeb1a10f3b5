package join

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	"k8s.io/apimachinery/pkg/util/version"
)

// anonymousForbidden allows anonymous requests to health checks and to cluster-info, where RBAC then denies them.
// kubeadm accepts a 403 there, but not a 401.
const anonymousForbidden = `apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous:
  enabled: true
  conditions:
  - path: /livez
  - path: /readyz
  - path: /healthz
  - path: ` + harness.ClusterInfoPath + "\n"

// TestJoinsByDiscoveryURL runs the command of docs/install.md on a machine that already trusts the cluster CA, while
// anonymous users cannot read cluster-info. It catches a discovery file that contains a credential, or that kubeadm cannot
// use.
func TestJoinsByDiscoveryURL(t *testing.T) {
	harness.Parallel(t)
	cluster.NeedRoot(t)
	authentication := filepath.Join(t.TempDir(), "authentication.yaml")
	must.OK(t, os.WriteFile(authentication, []byte(anonymousForbidden), 0o600))
	s := harness.NewSite(t, cluster.Options{TrustedHosts: true, APIServerFlags: []string{"--authentication-config=" + authentication}})
	s.RunKubectl(t, "-n", "kube-public", "delete", "rolebinding", "kubeadm:bootstrap-signer-clusterinfo")
	harness.Wait(t, "403 for anonymous users", func() error {
		if status, _ := anonymous(t, s, s.Server()+harness.ClusterInfoPath); status != 403 {
			return fmt.Errorf("status %d, want 403", status)
		}
		return nil
	})
	if status, _ := anonymous(t, s, s.Server()+"/api"); status != 401 {
		t.Fatalf("precondition: got status %d for an anonymous request to the API server, want 401", status)
	}
	file := "https://" + s.Endpoint + "/v1/cluster-info"
	status, kubeconfig := anonymous(t, s, file)
	if status != 200 {
		t.Fatalf("%s: got status %d, want 200", file, status)
	}
	server, cas, err := clusterinfo.ParseKubeconfig([]byte(kubeconfig)) // refuses a kubeconfig with a credential
	if err != nil || server != s.Server() || len(cas) != 1 {
		t.Fatalf("%s: got server %s with %d CAs, %v, want %s with 1 CA", file, server, len(cas), err, s.Server())
	}
	// kubeadm accepts gzip, like every Go client. Wait until the response is large enough for gzip.
	harness.Wait(t, "the discovery file to be compressed", func() error {
		r, err := http.NewRequestWithContext(t.Context(), "GET", file, nil)
		if err != nil {
			return err
		}
		r.Header.Set("Accept-Encoding", "gzip")
		response, err := s.Program.HTTP.Do(r)
		if err != nil {
			return err
		}
		if err := response.Body.Close(); err != nil || response.Header.Get("Content-Encoding") != "gzip" {
			return fmt.Errorf("got headers %v, want Content-Encoding: gzip", response.Header)
		}
		return nil
	})
	_, token := s.JoinArgs(t, "?maxNodes=1&ttl=1h")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	documented := regexp.MustCompile(`(?m)^kubeadm join (--discovery-file .*)$`).
		FindSubmatch(harness.ReadFile(t, harness.RepositoryFile(t, "docs/install.md")))
	if documented == nil {
		t.Fatal("docs/install.md has no kubeadm join --discovery-file")
	}
	args := strings.NewReplacer("join.example.com:9443", s.Endpoint, "ID.SECRET", token.Reveal()).Replace(string(documented[1]))
	if v := version.MustParseGeneric(s.Version); v.AtLeast(version.MustParseGeneric("1.37")) {
		// From 1.37 on, kubeadm reports the status of an error and does not read its body.
		lost := must.Value(s.StartNode("worker-2", strings.Fields(strings.Replace(args, "/v1/cluster-info", "/v1/missing", 1))))(t)
		if err := lost.WaitJoined(ctx); err == nil || !strings.Contains(lost.Output(), "received status 404") {
			t.Errorf("got %v for a missing discovery file, want status 404\n%s", err, lost.Output())
		}
	}
	node := must.Value(s.Join(ctx, "worker-1", strings.Fields(args)))(t)
	chain := must.Value(node.ClientCertificate())(t)
	harness.CheckKubeletCertificate(t, s, chain[0], node.Name, 365*24*time.Hour)
	if !strings.Contains(node.Output(), "Could not access the cluster-info ConfigMap for refreshing") {
		t.Errorf("kubeadm read cluster-info from the API server, want a refusal:\n%s", node.Output())
	}
	s.CheckSecrets(t)
}
