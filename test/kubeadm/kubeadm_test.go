package kubeadm

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/test/harness"
)

// TestWorkerJoinsAndServesLogs joins a machine to a cluster of the real kubeadm init, with kubejoin as the only signer.
// kube-apiserver verifies the serving certificates of kubelets, so without kubejoin there are no logs.
func TestWorkerJoinsAndServesLogs(t *testing.T) {
	harness.Parallel(t)
	before := takeStock(t)
	c := ForTest(t)
	control := addMachine(t, c, "control-1")
	if err := c.Init(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	kubectl := func(args ...string) string {
		t.Helper()
		output, err := c.Kubectl(t.Context(), args...)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(output)
	}

	harness.Wait(t, "logs without a serving certificate", func() error {
		_, err := c.Kubectl(t.Context(), "--namespace=kube-system", "logs", "etcd-control-1")
		if err == nil {
			t.Fatal("kube-apiserver returns the logs of a kubelet without a serving certificate")
		}
		if strings.Contains(err.Error(), "tls: internal error") {
			return nil
		}
		return err
	})
	const image = "ghcr.io/kubejoin/kubejoin:test"
	if err := control.ImportProgram(t.Context(), image, buildStatic(t)); err != nil {
		t.Fatal(err)
	}
	if err := c.Install(t.Context(), image); err != nil {
		t.Fatal(err)
	}
	if err := c.HandOver(t.Context()); err != nil {
		t.Fatal(err)
	}
	line, err := c.JoinCommand(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	worker := addMachine(t, c, "worker-1")
	if got := kubectl("--namespace=kube-system", "get", "pod", "kube-apiserver-control-1", "--output=yaml"); !strings.Contains(got, "--kubelet-certificate-authority=") {
		t.Error("kube-apiserver does not verify kubelets")
	}
	if err := worker.Join(t.Context(), line); err != nil {
		t.Fatal(err)
	}

	if err := c.RunPod(t.Context(), worker, "hello", "Hello from worker-1"); err != nil {
		t.Fatal(err)
	}
	if got := kubectl("logs", "hello"); got != "Hello from worker-1" {
		t.Errorf("logs: %q", got)
	}
	if got := kubectl("exec", "hello", "--", "pause", "-once", "inside"); got != "inside" {
		t.Errorf("exec: %q", got)
	}
	checkServingCertificate(t, control, worker)
	requests := kubectl("get", "csr", "--output", `jsonpath={range .items[?(@.spec.username=="system:node:worker-1")]}{.spec.signerName} {.status.conditions[*].reason} {.metadata.managedFields[?(@.subresource=="status")].manager}{"\n"}{end}`)
	if want := "kubernetes.io/kubelet-serving"; !strings.HasPrefix(requests, want) || !strings.HasSuffix(requests, " kubejoin") {
		t.Errorf("want one request for %s that kubejoin signed, got %q", want, requests)
	}

	running := processesOf(c)
	if err := c.Delete(); err != nil {
		t.Error(err)
	}
	before.compare(t, c.name, running)
}

func addMachine(t *testing.T, c *Cluster, name string) *Machine {
	t.Helper()
	m, err := c.AddMachine(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// buildStatic builds a kubejoin that runs in an image without a C library. The one of the harness has the race detector.
func buildStatic(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubejoin")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", file, "./cmd/kubejoin")
	cmd.Dir, cmd.Env = harness.RepositoryFile(t, "."), append(os.Environ(), "CGO_ENABLED=0")
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building kubejoin: %v\n%s", err, output)
	}
	return file
}

func checkServingCertificate(t *testing.T, control, worker *Machine) {
	t.Helper()
	ca, err := control.ReadFile(t.Context(), "/etc/kubernetes/pki/ca.crt")
	if err != nil {
		t.Fatal(err)
	}
	chain, err := worker.ReadFile(t.Context(), "/var/lib/kubelet/pki/kubelet-server-current.pem")
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	block, _ := pem.Decode(chain)
	if block == nil {
		t.Fatal("no certificate")
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{worker.Name, worker.Address} {
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); err != nil {
			t.Error(err)
		}
	}
	harness.LintCertificate(t, leaf)
}
