package join

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestJoinsByOfflineToken applies the manifests of 'token create --offline'. It catches a join command that does not work
// with these manifests, a limit that does not hold, and manifests that still need a signature.
func TestJoinsByOfflineToken(t *testing.T) {
	harness.Parallel(t)
	cluster.NeedRoot(t)
	s := harness.PrepareSite(t, cluster.Options{Setup: cluster.WithoutClusterInfo}, "--controllers=*,-bootstrap-signer")
	dir := filepath.Join(s.WorkDir, "offline")
	line := tool(t, "token", "create", "--offline", "--ca-file="+s.CAFile(), "--api-server="+s.Server(),
		"--max-nodes=1", "--certificate-duration=3h", "--ttl=1h", "--output-dir="+dir)
	args := must.Value(cluster.JoinArgs(line))(t)
	token := must.Value(tokens.Parse(args[2]))(t)
	s.Secrets.Add("the offline token", token.RevealSecret())
	s.RunKubectl(t, "apply", "-f", dir)
	s.Start(t)
	before := s.RunKubectl(t, "-n", "kube-public", "get", "cm", "cluster-info", "-o", "jsonpath={.data}")

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	node := must.Value(s.Join(ctx, "worker-1", args))(t)
	chain := must.Value(node.ClientCertificate())(t)
	harness.CheckKubeletCertificate(t, s, chain[0], node.Name, 3*time.Hour)
	second := must.Value(s.StartNode("worker-2", args))(t)
	if err := second.WaitKubelet(ctx, "TokenSpent"); err != nil {
		t.Error(err)
	}
	if _, err := s.Client().CoreV1().Nodes().Get(ctx, "worker-2", metav1.GetOptions{}); err == nil {
		t.Error("a second node joined with a token for one node")
	}
	if after := s.RunKubectl(t, "-n", "kube-public", "get", "cm", "cluster-info", "-o", "jsonpath={.data}"); after != before {
		t.Errorf("cluster-info changed: got\n%s\nwant\n%s", after, before)
	}
	content, err := os.ReadFile(filepath.Join(dir, "cluster-info.yaml"))
	if err != nil || strings.Contains(string(content), token.RevealSecret()) {
		t.Errorf("cluster-info.yaml contains the token's secret, or cannot be read: %v", err)
	}
}
