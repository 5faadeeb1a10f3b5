package limits

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestErasedLimitsStillHold erases the limits of a token, or replaces its Secret. It catches a token that then admits
// more nodes although its claims exist, or one with malformed limits that admits any.
func TestErasedLimitsStillHold(t *testing.T) {
	harness.Parallel(t)
	s := harness.NewSite(t, cluster.Options{})
	l := harness.NewLedger(t, s.Cluster)
	for name, erase := range map[string]func(token tokens.Token, secret string){
		"annotated": func(_ tokens.Token, secret string) {
			s.RunKubectl(t, "-n", "kube-system", "annotate", "secret", secret, "kubejoin.io/nodes-", "kubejoin.io/max-nodes-")
		},
		"uncounted": func(_ tokens.Token, secret string) {
			s.RunKubectl(t, "-n", "kube-system", "annotate", "secret", secret, "kubejoin.io/nodes-")
		},
		"replaced": func(token tokens.Token, _ string) { s.RunKubectl(t, "replace", "-f", plainManifest(t, s, token, nil)) },
		"recreated": func(token tokens.Token, _ string) {
			s.RunKubectl(t, "replace", "--force", "-f", plainManifest(t, s, token, nil))
		},
		"recreated-for-one": func(token tokens.Token, _ string) {
			s.RunKubectl(t, "replace", "--force", "-f", plainManifest(t, s, token, map[string]string{"kubejoin.io/max-nodes": "1"}))
		},
	} {
		token := s.CreateToken(t, tokens.Limits{MaxNodes: 1})
		secret := "bootstrap-token-" + token.ID()
		register(t, s, token, name)
		checkClaims(t, l, s)
		before := tokenUID(t, s, secret)
		erase(token, secret)
		if created := tokenUID(t, s, secret) != before; created != (name == "recreated" || name == "recreated-for-one") {
			t.Errorf("%s: got a new Secret: %v, want %v", name, created, !created)
		}
		checkDenied(t, s, token, name+"-2", "TokenSpent", name+" has joined with it")
		s.CLI(t, "token", "delete", token.ID())
	}

	// If the limit is not reached, kubejoin restores the erased annotations when the token is used.
	token := s.CreateToken(t, tokens.Limits{MaxNodes: 2})
	register(t, s, token, "first")
	s.RunKubectl(t, "-n", "kube-system", "annotate", "secret", "bootstrap-token-"+token.ID(), "kubejoin.io/nodes-", "kubejoin.io/max-nodes-")
	register(t, s, token, "second")
	checkClaims(t, l, s)
	s.WaitOutput(t, []string{"token", "list", "-o", "wide"}, token.ID(), "spent", "2/2", "first,second")
	checkDenied(t, s, token, "third", "TokenSpent", "it allows 2 nodes, and 2 have joined with it")

	s.RunKubectl(t, "-n", "kube-system", "annotate", "--overwrite", "secret", "bootstrap-token-"+token.ID(), "kubejoin.io/max-nodes=many")
	checkDenied(t, s, token, "fourth", "TokenLimitsMalformed", `kubejoin.io/max-nodes: "many" given, want 1 to 1000`)
	s.WaitOutput(t, []string{"token", "list", "-o", "wide"}, token.ID(), "invalid", `"many" given`)
	unused := s.CreateToken(t, tokens.Limits{})
	s.RunKubectl(t, "-n", "kube-system", "annotate", "secret", "bootstrap-token-"+unused.ID(), "kubejoin.io/max-nodes=many")
	checkDenied(t, s, unused, "fifth", "TokenLimitsMalformed", `"many" given`)
}

// register requests a certificate for a node and creates its Node, as a kubelet does. It waits until the claim records
// the Node.
func register(t *testing.T, s *harness.Site, token tokens.Token, node string) {
	t.Helper()
	if err := harness.CreateRequest(t.Context(), harness.AsToken(t, s.Cluster, token.ID()), node, certificates.KubeAPIServerClientKubeletSignerName, node); err != nil {
		t.Fatal(err)
	}
	s.WaitIssued(t, node)
	if _, err := s.Client().CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.WaitOutput(t, []string{"claim", "list"}, node+" ", token.ID(), "yes")
}

// plainManifest writes a manifest of the token's Secret with only these annotations, as an operator may keep it, and
// returns its path.
func plainManifest(t *testing.T, s *harness.Site, token tokens.Token, annotations map[string]string) string {
	t.Helper()
	manifest, err := json.Marshal(corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-" + token.ID(), Annotations: annotations},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": token.ID(), "token-secret": token.RevealSecret(), "usage-bootstrap-authentication": "true", "auth-extra-groups": tokens.DefaultGroup,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(s.WorkDir, token.ID()+".json")
	if err := os.WriteFile(file, manifest, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func tokenUID(t *testing.T, s *harness.Site, secret string) string {
	t.Helper()
	return s.RunKubectl(t, "-n", "kube-system", "get", "secret", secret, "-o", "jsonpath={.metadata.uid}")
}
