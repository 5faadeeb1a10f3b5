package test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Who erases what a token is good for, or replaces its Secret, does not make it good for more:
// its claims know. What cannot be read is good for nothing.
func TestErasedLimits(t *testing.T) {
	t.Parallel()
	s := newSite(t, cluster.Options{})
	l := keepLedger(t, s.Cluster)
	for name, erase := range map[string]func(token tokens.Token, secret string){
		"annotated": func(_ tokens.Token, secret string) {
			s.kubectl(t, "-n", "kube-system", "annotate", "secret", secret, "kubejoin.io/nodes-", "kubejoin.io/max-nodes-")
		},
		"uncounted": func(_ tokens.Token, secret string) {
			s.kubectl(t, "-n", "kube-system", "annotate", "secret", secret, "kubejoin.io/nodes-")
		},
		"replaced": func(token tokens.Token, _ string) { s.kubectl(t, "replace", "-f", s.plain(t, token, nil)) },
		"made-anew": func(token tokens.Token, _ string) {
			s.kubectl(t, "replace", "--force", "-f", s.plain(t, token, nil))
		},
		"made-anew-for-one": func(token tokens.Token, _ string) {
			s.kubectl(t, "replace", "--force", "-f", s.plain(t, token, map[string]string{"kubejoin.io/max-nodes": "1"}))
		},
	} {
		token := s.mint(t, tokens.Limits{MaxNodes: 1})
		secret := "bootstrap-token-" + token.ID()
		s.registers(t, token, name)
		l.checkClaims(t, s)
		before := s.tokenUID(t, secret)
		erase(token, secret)
		if anew := s.tokenUID(t, secret) != before; anew != (name == "made-anew" || name == "made-anew-for-one") {
			t.Errorf("%s: the Secret is a new one: %v", name, anew)
		}
		s.refuses(t, token, name+"-2", "TokenSpent", name+" took it")
		s.cli(t, "token", "delete", token.ID())
	}

	// Where there is room, what was erased is put back when the token is used.
	token := s.mint(t, tokens.Limits{MaxNodes: 2})
	s.registers(t, token, "first")
	s.kubectl(t, "-n", "kube-system", "annotate", "secret", "bootstrap-token-"+token.ID(), "kubejoin.io/nodes-", "kubejoin.io/max-nodes-")
	s.registers(t, token, "second")
	l.checkClaims(t, s)
	s.tells(t, []string{"token", "list", "-o", "wide"}, token.ID(), "spent", "2/2", "first,second")
	s.refuses(t, token, "third", "TokenSpent", "for 2 nodes and 2 have joined with it")

	s.kubectl(t, "-n", "kube-system", "annotate", "--overwrite", "secret", "bootstrap-token-"+token.ID(), "kubejoin.io/max-nodes=many")
	s.refuses(t, token, "fourth", "TokenLimitsMalformed", `kubejoin.io/max-nodes: "many" given, want 1 to 1000`)
	s.tells(t, []string{"token", "list", "-o", "wide"}, token.ID(), "invalid", `"many" given`)
	unused := s.mint(t, tokens.Limits{})
	s.kubectl(t, "-n", "kube-system", "annotate", "secret", "bootstrap-token-"+unused.ID(), "kubejoin.io/max-nodes=many")
	s.refuses(t, unused, "fifth", "TokenLimitsMalformed", `"many" given`)
}

// registers gets a certificate for a node and makes its Node, as a kubelet does. The claim knows.
func (s *site) registers(t *testing.T, token tokens.Token, node string) {
	t.Helper()
	if err := request(t.Context(), asToken(t, s.Cluster, token.ID()), node, certificates.KubeAPIServerClientKubeletSignerName, node); err != nil {
		t.Fatal(err)
	}
	s.issued(t, node)
	if _, err := s.Client().CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.tells(t, []string{"claim", "list"}, node+" ", token.ID(), "yes")
}

// plain is a manifest of a token's Secret with these annotations alone, such as an operator has
// in a file.
func (s *site) plain(t *testing.T, token tokens.Token, annotations map[string]string) string {
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
	file := filepath.Join(s.dir, token.ID()+".json")
	if err := os.WriteFile(file, manifest, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func (s *site) tokenUID(t *testing.T, secret string) string {
	t.Helper()
	return s.kubectl(t, "-n", "kube-system", "get", "secret", secret, "-o", "jsonpath={.metadata.uid}")
}
