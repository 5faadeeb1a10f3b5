package test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A node joins by a line that was printed when no API server was asked: what was written then is
// applied, and its limits hold. Nobody signs cluster-info again.
func TestJoinByOfflineToken(t *testing.T) {
	t.Parallel()
	cluster.NeedRoot(t)
	s := prepare(t, cluster.Options{Setup: cluster.WithoutClusterInfo}, "--controllers=*,-bootstrap-signer")
	dir := filepath.Join(s.dir, "offline")
	line := tool(t, "token", "create", "--offline", "--ca-file="+s.CAFile(), "--api-server="+s.Server(),
		"--max-nodes=1", "--certificate-duration=3h", "--ttl=1h", "--out-dir="+dir)
	args, err := cluster.JoinArgs(line)
	if err != nil {
		t.Fatal(err)
	}
	token, err := tokens.Parse(args[2])
	if err != nil {
		t.Fatal(err)
	}
	s.known.add("the offline token", token.RevealSecret())
	s.kubectl(t, "apply", "-f", dir)
	s.start(t)
	before := s.kubectl(t, "-n", "kube-public", "get", "cm", "cluster-info", "-o", "jsonpath={.data}")

	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	node, err := s.Join(ctx, "worker-1", args)
	if err != nil {
		t.Fatal(err)
	}
	chain, err := node.ClientCertificate()
	if err != nil {
		t.Fatal(err)
	}
	checkKubeletCertificate(t, s, chain[0], node.Name, 3*time.Hour)
	second, err := s.StartNode("worker-2", args)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.WaitKubelet(ctx, "TokenSpent"); err != nil {
		t.Error(err)
	}
	if _, err := s.Client().CoreV1().Nodes().Get(ctx, "worker-2", metav1.GetOptions{}); err == nil {
		t.Error("a second node has joined on a token for one")
	}
	if after := s.kubectl(t, "-n", "kube-public", "get", "cm", "cluster-info", "-o", "jsonpath={.data}"); after != before {
		t.Errorf("cluster-info has changed:\n%s\n%s", before, after)
	}
	content, err := os.ReadFile(filepath.Join(dir, "cluster-info.yaml"))
	if err != nil || strings.Contains(string(content), token.RevealSecret()) {
		t.Errorf("cluster-info.yaml holds the token's secret, or nothing: %v", err)
	}
}
