package join

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
)

// TestJoinsWithCustomKubeletCredentials catches a kubelet.conf of 'kubejoin kubeconfig node' that kubeadm or the kubelet
// does not use: the machine would need TLS bootstrap again.
func TestJoinsWithCustomKubeletCredentials(t *testing.T) {
	harness.Parallel(t)
	cluster.NeedRoot(t)
	s := harness.PrepareSite(t, cluster.Options{})
	s.Start(t)
	args, _ := s.JoinArgs(t, "")
	file := filepath.Join(t.TempDir(), "kubelet.conf")
	if _, stderr, code := s.RunKubejoin(t, "kubeconfig", "node", "worker-1", "--output-file", file); code != 0 {
		t.Fatal(stderr)
	}
	content := must.Value(os.ReadFile(file))(t)
	node := must.Value(s.StartNodeWith("worker-1", content, args))(t)
	t.Cleanup(node.Stop)
	must.OK(t, node.WaitJoined(t.Context()))
	must.OK(t, node.WaitRegistered(t.Context()))
	check := exec.CommandContext(t.Context(), harness.Kubejoin(), "kubeconfig", "check", file, "--node", "worker-1")
	if out, err := check.CombinedOutput(); err != nil || !strings.Contains(string(out), "no findings") {
		t.Errorf("check: %v\n%s", err, out)
	}
	users := s.RunKubectl(t, "get", "csr", "--output=jsonpath={.items[*].spec.username}")
	// The kubelet renews its certificate when it starts, as itself.
	if !strings.Contains(users, "kubernetes-admin") || strings.Contains(users, "system:bootstrap:") {
		t.Errorf("certificates were requested by %q, want by the administrator, and not by a bootstrap token", users)
	}
}
