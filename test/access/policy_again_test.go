package access

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestPolicyAppliedAgain deletes the policy and applies it again. After that and until it restarts, kube-apiserver
// evaluates the policy with the ConfigMaps from the time of the deletion (kubernetes/kubernetes 130887). The test catches a
// check in docs/revocation.md that does not show this, and a Kubernetes version for which the page is wrong.
func TestPolicyAppliedAgain(t *testing.T) {
	harness.Parallel(t)
	s := harness.NewSite(t, cluster.Options{})
	file := harness.RepositoryFile(t, "deploy/revocation.yaml")
	s.RunKubectl(t, "apply", "-f", file)
	ca := must.Value(signer.LoadCA(s.CAFile(), s.CAKeyFile()))(t)
	write := func(node string) func() error {
		createNode(t, s, node)
		client := withPair(t, s, clientCertificate(t, ca, "system:node:"+node, "system:nodes"))
		return func() error {
			_, err := client.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, []byte(`{"metadata":{"annotations":{"example.com/seen":"yes"}}}`), metav1.PatchOptions{})
			return err
		}
	}
	check := regexp.MustCompile("(?s)<!-- run by TestPolicyAppliedAgain -->\n```sh\n(.*?)```").FindSubmatch(harness.ReadFile(t, harness.RepositoryFile(t, "docs/revocation.md")))
	if check == nil {
		t.Fatal("docs/revocation.md has no check of the policy")
	}
	denied := func(node string) bool {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "sh", "-euc", strings.ReplaceAll(string(check[1]), "worker-7", node))
		cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig(), "PATH="+s.Bin+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if err != nil && !strings.Contains(string(out), "kubejoin has revoked") {
			t.Fatalf("%s: %v %s", node, err, out)
		}
		return err != nil
	}
	first, second := write("worker-1"), write("worker-2")
	s.CLI(t, "revoke", "worker-1")
	waitForbidden(t, "the revoked node", "kubejoin has revoked", first)
	if !denied("worker-1") || denied("worker-2") {
		t.Error("the check does not tell a revoked node from another one")
	}

	s.RunKubectl(t, "delete", "-f", file)
	waitAllowed(t, "the revoked node without the policy", first)
	s.RunKubectl(t, "apply", "-f", file)
	waitForbidden(t, "the node that was revoked before", "kubejoin has revoked", first)
	s.CLI(t, "revoke", "worker-2")
	for range 50 {
		if err := second(); err != nil {
			t.Fatalf("a node revoked since then: %v; docs/revocation.md says that it is not denied", err)
		}
	}
	if denied("worker-2") {
		t.Error("the check does not show that the policy is not in force")
	}
	s.StopAPIServer()
	must.OK(t, s.StartAPIServer(t.Context()))
	waitForbidden(t, "the node after a restart of kube-apiserver", "kubejoin has revoked", second)
	if !denied("worker-2") {
		t.Error("the check does not show that the policy is in force again")
	}
}
