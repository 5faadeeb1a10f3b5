package limits

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestErasedLimitsStillHold erases the limits of a token, or replaces its Secret. It catches a token that then admits more
// nodes, although its claims still exist.
func TestErasedLimitsStillHold(t *testing.T) {
	harness.Parallel(t)
	s := harness.NewSite(t, cluster.Options{})
	l := harness.NewLedger(t, s.Cluster)
	replaced := s.CreateToken(t, tokens.Limits{MaxNodes: 1})
	register(t, s, replaced, "only")
	checkClaims(t, l, s)
	s.RunKubectl(t, "replace", "--force", "-f", plainManifest(t, s, replaced, map[string]string{"kubejoin.io/max-nodes": "1"}))
	checkDenied(t, s, replaced, "another", "TokenSpent", "only has joined with it")
	s.CLI(t, "token", "delete", replaced.ID())

	// If the limit is not reached, kubejoin restores the erased annotations when the token is used.
	token := s.CreateToken(t, tokens.Limits{MaxNodes: 2})
	register(t, s, token, "first")
	s.RunKubectl(t, "-n", "kube-system", "annotate", "secret", "bootstrap-token-"+token.ID(), "kubejoin.io/nodes-", "kubejoin.io/max-nodes-")
	register(t, s, token, "second")
	checkClaims(t, l, s)
	s.WaitOutput(t, []string{"token", "list", "-o", "wide"}, token.ID(), "spent", "2/2", "first,second")
	checkDenied(t, s, token, "third", "TokenSpent", "it allows 2 nodes, and 2 have joined with it")
}

// register requests a certificate for a node and creates its Node, as a kubelet does. It waits until the claim records
// the Node.
func register(t *testing.T, s *harness.Site, token tokens.Token, node string) {
	t.Helper()
	must.OK(t, harness.CreateRequest(t.Context(), harness.AsToken(t, s.Cluster, token.ID()), node, certificates.KubeAPIServerClientKubeletSignerName, node))
	s.WaitIssued(t, node)
	must.Value(s.Client().CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{}))(t)
	s.WaitOutput(t, []string{"claim", "list"}, node+" ", token.ID(), "yes")
}

// plainManifest writes a manifest of the token's Secret with only these annotations, as an operator may store it, and
// returns its path.
func plainManifest(t *testing.T, s *harness.Site, token tokens.Token, annotations map[string]string) string {
	t.Helper()
	manifest := must.Value(json.Marshal(corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-" + token.ID(), Annotations: annotations},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": token.ID(), "token-secret": token.RevealSecret(), "usage-bootstrap-authentication": "true", "auth-extra-groups": tokens.DefaultGroup,
		},
	}))(t)
	file := filepath.Join(s.WorkDir, token.ID()+".json")
	must.OK(t, os.WriteFile(file, manifest, 0o600))
	return file
}
