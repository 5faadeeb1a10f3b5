package cluster_test

import (
	"crypto/x509"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/test/cluster"
)

// TestJoinBesideKCM shows that a node joins as it would anywhere: what kubejoin is then put in
// the place of is the real thing.
func TestJoinBesideKCM(t *testing.T) {
	cluster.NeedRoot(t)
	c := cluster.ForTest(t, cluster.Options{})
	if _, err := c.StartKCM(t.Context()); err != nil {
		t.Fatal(err)
	}
	create := exec.CommandContext(t.Context(), filepath.Join(c.Bin, "kubeadm"), "token", "create", "--print-join-command", "--kubeconfig", c.Kubeconfig())
	line, err := create.Output()
	if err != nil {
		t.Fatal(err)
	}
	args, err := cluster.JoinArgs(string(line))
	if err != nil {
		t.Fatal(err)
	}
	n, err := c.Join(t.Context(), "worker-1", args)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(n.Output(), "This node has joined the cluster") {
		t.Errorf("kubeadm says:\n%s", n.Output())
	}
	if out, err := c.Kubectl(t.Context(), "get", "node", "worker-1"); err != nil {
		t.Error(out, err)
	}
	certs, err := n.ClientCertificate()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := certs[0].Subject.String(), "CN=system:node:worker-1,O=system:nodes"; got != want {
		t.Errorf("the kubelet's certificate is for %s, want %s", got, want)
	}
	if _, err := certs[0].Verify(x509.VerifyOptions{Roots: c.CAPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Error(err)
	}
}
