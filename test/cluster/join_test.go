package cluster_test

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/test/cluster"
)

// Nodes join with kube-controller-manager and without kubejoin. Catches a harness that differs from a real cluster.
func TestNodesJoinWithKubeControllerManager(t *testing.T) {
	cluster.NeedRoot(t)
	c := cluster.ForTest(t, cluster.Options{ServerTLSBootstrap: true})
	if _, err := c.StartKCM(t.Context()); err != nil {
		t.Fatal(err)
	}
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
	n, err := c.Join(t.Context(), "worker-3", args)
	if err != nil {
		t.Fatal(err)
	}
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
	line, err := create.Output()
	if err != nil {
		t.Fatal(err)
	}
	args, err := cluster.JoinArgs(string(line))
	if err != nil {
		t.Fatal(err)
	}
	return args
}

// Catches a join that succeeds, or fails without a cause, when nothing signs cluster-info.
func TestJoinNeedsSignedClusterInfo(t *testing.T) {
	cluster.NeedRoot(t)
	c := cluster.ForTest(t, cluster.Options{})
	args := joinArgs(t, c)
	// kubeadm retries for minutes. Cancel the join once kubeadm has logged the reason.
	const reason = "could not find a JWS signature"
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	go func() {
		for ctx.Err() == nil && !strings.Contains(c.Logs(), reason) {
			time.Sleep(50 * time.Millisecond)
		}
		cancel()
	}()
	if _, err := c.Join(ctx, "worker-1", append(args, "--v=3")); err == nil {
		t.Error("the node joined, want an error")
	} else if !strings.Contains(err.Error(), reason) {
		t.Errorf("got error %v, want the missing signature in it", err)
	}
}

func TestRunKubeadm(t *testing.T) {
	cluster.NeedRoot(t)
	tests := map[string]struct {
		args    []string
		output  string
		failure string
	}{
		"version":    {[]string{"version", "-o", "short"}, "v1.", ""},
		"wrong flag": {[]string{"join", "--no-such-flag"}, "unknown flag", "exit status"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			output, err := cluster.RunKubeadm(t.Context(), tt.args...)
			if !strings.Contains(output, tt.output) {
				t.Errorf("got output\n%s\nwant %q in it", output, tt.output)
			}
			if tt.failure == "" && err != nil || tt.failure != "" && (err == nil || !strings.Contains(err.Error(), tt.failure)) {
				t.Errorf("got error %v, want %q", err, tt.failure)
			}
		})
	}
}

// Catches a kubeadm that goes on after its context has ended, or whose output is lost then.
func TestRunKubeadmEndsWithContext(t *testing.T) {
	cluster.NeedRoot(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	go func() { // cancel once kubeadm connects, to a server that does not respond
		if _, err := l.Accept(); err == nil {
			cancel()
		}
	}()
	output, err := cluster.RunKubeadm(ctx, "join", l.Addr().String(), "--token", "waz2bg.0123456789abcdee",
		"--discovery-token-unsafe-skip-ca-verification", "--ignore-preflight-errors=all", "--v=3")
	if want := "Waiting for the cluster-info ConfigMap"; !strings.Contains(output, want) {
		t.Errorf("got output\n%s\nwant %q in it", output, want)
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want that the context ended", err)
	}
}

func TestJoinArgs(t *testing.T) {
	tests := map[string]struct {
		line string
		want string // joined by |; none is an error
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
