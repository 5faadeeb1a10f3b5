package access

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestManyRevocations has 10,000 revoked nodes in the ConfigMaps. It catches a ConfigMap that the policy does not read, a
// limit of the cost of its expressions that the number of entries exceeds, and entries that kubejoin does not list.
func TestManyRevocations(t *testing.T) {
	harness.Parallel(t)
	s := harness.NewSite(t, cluster.Options{})
	const many = 10_000
	if err := cluster.FillRevocations(t.Context(), s.Client(), "kubejoin-system", many); err != nil {
		t.Fatal(err)
	}
	s.RunKubectl(t, "apply", "-f", harness.RepositoryFile(t, "deploy/revocation.yaml"))
	ca, err := signer.LoadCA(s.CAFile(), s.CAKeyFile())
	if err != nil {
		t.Fatal(err)
	}
	write := func(node string) func() error {
		createNode(t, s, node)
		client := withPair(t, s, clientCertificate(t, ca, "system:node:"+node, "system:nodes"))
		return func() error {
			_, err := client.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, []byte(`{"metadata":{"annotations":{"example.com/seen":"yes"}}}`), metav1.PatchOptions{})
			return err
		}
	}
	for i := range 20 { // in all ConfigMaps
		node := fmt.Sprintf("gone-%d", i*(many-1)/19)
		waitForbidden(t, node, "kubejoin has revoked this certificate of node "+node, write(node))
	}
	valid, last := write("worker-1"), write("worker-2")
	waitAllowed(t, "a node that is not revoked", valid)
	if got := strings.Count(s.CLI(t, "revoke", "list"), "gone-"); got != many {
		t.Errorf("kubejoin lists %d revocations, want %d", got, many)
	}
	s.CLI(t, "revoke", "worker-2")
	waitForbidden(t, "one more revoked node", "kubejoin has revoked this certificate of node worker-2", last)
	if err := valid(); err != nil {
		t.Errorf("a node that is not revoked: %v", err)
	}
}
