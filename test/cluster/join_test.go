package cluster_test

import (
	"crypto/x509"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
)

// Nodes join with kube-controller-manager, without kubejoin. Catches a harness that differs from a real cluster.
func TestNodesJoinWithKubeControllerManager(t *testing.T) {
	cluster.NeedRoot(t)
	c := cluster.ForTest(t, cluster.Options{ServerTLSBootstrap: true})
	must.Value(c.StartKCM(t.Context()))(t)
	args := joinArgs(t, c)
	discovery := append([]string{"join", "phase", "preflight", "--ignore-preflight-errors=all"}, args...)
	if output, err := cluster.RunKubeadm(t.Context(), discovery...); err != nil || !strings.Contains(output, "Reading configuration") {
		t.Errorf("discovery only: %v\n%s", err, output)
	}
	var wg sync.WaitGroup
	for _, name := range []string{"worker-1", "worker-2"} {
		wg.Go(func() {
			n, err := c.Join(t.Context(), name, args)
			if err != nil {
				t.Error(err)
				return
			}
			checkNode(t, c, n)
		})
	}
	wg.Wait()

	// Each node has its own files, which disappear when it stops.
	n := must.Value(c.Join(t.Context(), "worker-3", args))(t)
	n.Stop()
	if _, err := n.ClientCertificate(); err == nil {
		t.Error("got a certificate of a stopped node, want an error")
	}
}

func checkNode(t *testing.T, c *cluster.Cluster, n *cluster.Node) {
	t.Helper()
	if !strings.Contains(n.Output(), "This node has joined the cluster") {
		t.Errorf("got output of kubeadm\n%s\nwant that the node has joined", n.Output())
	}
	if out, err := c.Kubectl(t.Context(), "get", "node", n.Name); err != nil {
		t.Error(out, err)
	}
	// The kubelet requests a serving certificate as soon as the Node has addresses.
	if out, err := c.Kubectl(t.Context(), "wait", "--for=create", "csr", "--field-selector=spec.signerName=kubernetes.io/kubelet-serving", "--timeout=3m"); err != nil {
		t.Error(out, err)
	}
	certs, err := n.ClientCertificate()
	if err != nil {
		t.Error(err)
		return
	}
	if got, want := certs[0].Subject.String(), "CN=system:node:"+n.Name+",O=system:nodes"; got != want {
		t.Errorf("got kubelet certificate for %s, want %s", got, want)
	}
	_, err = certs[0].Verify(x509.VerifyOptions{Roots: c.CAPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		t.Error(err)
	}
}

// joinArgs creates a token with kubeadm and returns the arguments of its join command.
func joinArgs(t *testing.T, c *cluster.Cluster) []string {
	t.Helper()
	create := exec.CommandContext(t.Context(), filepath.Join(c.Bin, "kubeadm"), "token", "create", "--print-join-command", "--kubeconfig", c.Kubeconfig())
	line := must.Value(create.Output())(t)
	return must.Value(cluster.JoinArgs(string(line)))(t)
}

func TestJoinArgs(t *testing.T) {
	tests := map[string]struct {
		line string
		want string // arguments joined by |; empty: an error
	}{
		"a worker's line":  {"kubeadm join h:1 --token t --discovery-token-ca-cert-hash sha256:ab \n", "h:1|--token|t|--discovery-token-ca-cert-hash|sha256:ab"},
		"empty":            {"", ""},
		"an error instead": {"no token kubeadm join", ""},
		"no endpoint":      {"kubeadm join", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			args, err := cluster.JoinArgs(tt.line)
			if got := strings.Join(args, "|"); got != tt.want || (err == nil) != (tt.want != "") {
				t.Errorf("JoinArgs(%q) = %q, %v; want %q", tt.line, got, err, tt.want)
			}
		})
	}
}
