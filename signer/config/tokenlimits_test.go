package config_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/config"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/cluster-bootstrap/token/api"
)

const limitsHead = "apiVersion: kubejoin.io/v1alpha1\nkind: TokenLimits\n"

func TestParseTokenLimits(t *testing.T) {
	rules := must.Value(config.ParseTokenLimits("limits.yaml", []byte(limitsHead+`rules:
- name: all
  match: {}
  role: worker
- name: scaler
  match: {description: "scaler *", groups: ["system:bootstrappers:a"], labels: {app: scaler, example.com/x: ""}}
  maxNodes: 3
  nodeNames: [a, "b-*"]
  certificateDuration: 24h
  rejoin: deny
`)))(t)
	want := tokens.Limits{MaxNodes: 3, NodeNames: []string{"a", "b-*"}, CertificateDuration: 24 * time.Hour, Rejoin: "deny"}
	if len(rules) != 2 || !rules[0].Worker || !rules[0].Limits.IsZero() || rules[1].Worker || !rules[1].Limits.Equal(want) ||
		rules[1].Description != "scaler *" || rules[1].Groups[0] != "system:bootstrappers:a" || !maps.Equal(rules[1].Labels, map[string]string{"app": "scaler", "example.com/x": ""}) {
		t.Errorf("got %+v", rules)
	}
	if _, err := config.LoadTokenLimits(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want the missing file", err)
	}
}

func TestTokenLimitsMistakes(t *testing.T) {
	for content, want := range map[string]string{
		"":            "limits.yaml:1: rules: missing",
		"rules: []\n": "limits.yaml:3: rules: the list is empty",
		"rules: [{name: a, maxNodes: 1}]\nx: 1\n":                                                  "limits.yaml:4: unknown field \"x\"",
		"rules: [{maxNodes: 1}]\n":                                                                 "rules[0].name: missing",
		"rules: [{name: A_b, maxNodes: 1}]":                                                        `rules[0].name: "A_b" given, want at most 63 characters`,
		"rules:\n- {name: a, maxNodes: 1}\n- {name: a, maxNodes: 2}":                               "limits.yaml:5: rules[1].name: duplicate rule \"a\", first defined in line 4",
		"rules: [{name: a}]":                                                                       "rules[0]: no limit given, want at least one of maxNodes",
		"rules: [{name: a, match: {}}]":                                                            "rules[0]: no limit given",
		"rules: [{name: a, maxNodes: 0}]":                                                          `rules[0].maxNodes: "0" given, want 1 to 1000 nodes`,
		"rules: [{name: a, maxNodes: 1001}]":                                                       `rules[0].maxNodes: "1001" given`,
		"rules: [{name: a, maxNodes: many}]":                                                       `rules[0].maxNodes: "many" given`,
		"rules: [{name: a, maxNode: 1}]":                                                           `unknown field "maxNode", want one of name, match, maxNodes`,
		"rules: [{name: a, nodeNames: [Worker]}]":                                                  `rules[0].nodeNames: node name "Worker"`,
		"rules: [{name: a, nodeNames: []}]":                                                        "rules[0]: no limit given",
		"rules: [{name: a, nodeNames: [a, a]}]":                                                    `rules[0].nodeNames: "a" is given twice`,
		"rules: [{name: a, certificateDuration: 1m}]":                                              `rules[0].certificateDuration: "1m" given`,
		"rules: [{name: a, certificateDuration: 24h0.5s}]":                                         "rules[0].certificateDuration: \"24h0.5s\" given, want whole seconds",
		"rules: [{name: a, rejoin: allow}]":                                                        `rules[0].rejoin: "allow" given, want deny`,
		"rules: [{name: a, role: control-plane}]":                                                  `rules[0].role: "control-plane" given, want worker`,
		"rules: [{name: a, maxNodes: 1, match: {groups: [system:masters]}}]":                       "rules[0].match.groups[0]: bootstrap group \"system:masters\" is invalid",
		"rules: [{name: a, maxNodes: 1, match: {labels: {a: b, a: c}}}]":                           `rules[0].match.labels: "a": "c" given, want labels`,
		"rules: [{name: a, maxNodes: 1, match: {labels: {a: true}}}]":                              `rules[0].match.labels: "a": "true" given, want labels`,
		"rules: [{name: a, maxNodes: 1, match: {labels: {}}}]":                                     "rules[0].match.labels: a mapping given, want labels",
		"rules: [{name: a, maxNodes: 1, match: {labels: [a]}}]":                                    "rules[0].match.labels: a list given, want labels",
		"rules: [{name: a, maxNodes: 1, match: {labels: {\"a b\": c}}}]":                           `rules[0].match.labels: "a b": "c" given: `,
		"rules: [{name: a, maxNodes: 1, match: {labels: {a: \"x\\u001b[2J\"}}}]":                   `rules[0].match.labels: "a": "x\x1b[2J" given: `,
		"rules: [{name: a, maxNodes: 1, match: {description: " + strings.Repeat("a", 1025) + "}}]": "rules[0].match.description: 1025 bytes given",
		"rules: [{name: a, maxNodes: 1, match: }]":                                                 "rules[0].match: nothing given, want the fields description, groups, labels",
		"rules: [7]": `rules[0]: "7" given, want the fields`,
	} {
		rules, err := config.ParseTokenLimits("limits.yaml", []byte(limitsHead+content))
		if all := (config.Errors)(nil); !errors.As(err, &all) || !strings.Contains(err.Error(), want) || rules != nil {
			t.Errorf("%q: got %v, %v, want %s", content, rules, err, want)
		}
	}
	if _, err := config.ParseTokenLimits("limits.yaml", []byte("apiVersion: kubejoin.io/v1alpha1\nkind: SignerConfiguration\nsigners: []\n")); err == nil || !strings.Contains(err.Error(), `kind: "SignerConfiguration" given, want TokenLimits`) {
		t.Errorf("got %v, want another kind", err)
	}
}

// The tokens have the form in which the programs write them: Cluster API in bootstrap/kubeadm/internal/controllers/token.go,
// vCluster in cmd/vclusterctl/cmd/token/create.go, and scripts as in the documentation of Kubernetes.
func TestTokensOfOtherPrograms(t *testing.T) {
	page := string(must.Value(os.ReadFile("../../docs/token-limits.md"))(t))
	rulesIn := func(section string) []tokens.LimitRule {
		t.Helper()
		_, text, _ := strings.Cut(page, "\n## "+section+"\n")
		_, text, found := strings.Cut(text, "```yaml\n")
		text, _, _ = strings.Cut(text, "```")
		if !found {
			t.Fatalf("no rules in section %s", section)
		}
		return must.Value(config.ParseTokenLimits(section, []byte(text)))(t)
	}
	const group, providers = "system:bootstrappers:kubeadm:default-node-token", "token generated by cluster-api-bootstrap-provider-kubeadm"
	vcluster := func(nodeType string) map[string]string {
		return map[string]string{"vcluster.loft.sh/token": "true", "vcluster.loft.sh/token-node-type": nodeType}
	}
	for _, test := range []struct {
		name, section string
		labels        map[string]string
		data          map[string]string
		want          tokens.Limits
		by            map[string]string
	}{
		{
			name: "Machine or MachinePool", section: "Cluster API", data: map[string]string{"description": providers, "auth-extra-groups": group, "usage-bootstrap-signing": "true"},
			want: tokens.Limits{MaxNodes: 1, CertificateDuration: 720 * time.Hour}, by: map[string]string{"max-nodes": "cluster-api", "certificate-duration": "cluster-api"},
		},
		{name: "kubeadm", section: "Cluster API", data: map[string]string{"description": "The default bootstrap token generated by 'kubeadm init'.", "auth-extra-groups": group}},
		{
			name: "private node", section: "Virtual clusters", labels: vcluster("worker"), data: map[string]string{"description": providers, "auth-extra-groups": group, "usage-bootstrap-signing": "true"},
			want: tokens.Limits{MaxNodes: 10, NodeNames: []string{"gpu-*"}}, by: map[string]string{"max-nodes": "vcluster-workers", "node-names": "vcluster-workers"},
		},
		{name: "control plane", section: "Virtual clusters", labels: vcluster("control-plane"), data: map[string]string{"description": providers, "auth-extra-groups": group}},
		{name: "openssl rand", section: "Scripts", want: tokens.Limits{MaxNodes: 20}, by: map[string]string{"max-nodes": "all"}},
		{
			name: "openssl rand, with a label", section: "Scripts", labels: map[string]string{"app": "flex"}, data: map[string]string{"auth-extra-groups": "system:bootstrappers:flex"},
			want: tokens.Limits{MaxNodes: 1, NodeNames: []string{"flex-*"}}, by: map[string]string{"max-nodes": "flex", "node-names": "flex"},
		},
	} {
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-3fa9c1", Labels: test.labels, UID: "u"}, Type: api.SecretTypeBootstrapToken,
			Data: map[string][]byte{"token-id": []byte("3fa9c1"), "token-secret": []byte("8d41c0a97be25f63"), "usage-bootstrap-authentication": []byte("true")},
		}
		for key, value := range test.data {
			secret.Data[key] = []byte(value)
		}
		rules := rulesIn(test.section)
		store := must.Value(secretstore.OpenWithRules(t.Context(), fake.NewClientset(secret), func() []tokens.LimitRule { return rules }, nil))(t)
		r := must.Value(store.Get(t.Context(), "3fa9c1", tokens.Live))(t)
		if got := r.Limits.Strictest(); !got.Equal(test.want) || !maps.Equal(r.Limits.LimitedBy(), test.by) || r.ProblemText() != "" {
			t.Errorf("%s: got %+v by %v, want %+v by %v", test.name, got, r.Limits.LimitedBy(), test.want, test.by)
		}
	}
}

// A token that leaves no space for the names that a rule lets it count admits nobody, and says why.
func TestRuleThatDoesNotFitToken(t *testing.T) {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-3fa9c1", Annotations: map[string]string{}},
		Type:       api.SecretTypeBootstrapToken,
		Data:       map[string][]byte{"token-id": []byte("3fa9c1"), "token-secret": []byte("8d41c0a97be25f63"), "usage-bootstrap-authentication": []byte("true")},
	}
	var names []string
	for i := range 20 {
		names = append(names, strings.Repeat("a", 200)+string(rune('a'+i))+"*")
	}
	secret.Annotations["kubejoin.io/node-names"] = strings.Join(names, ",")
	rules := []tokens.LimitRule{{Rule: tokens.Rule{Name: "many", Limits: tokens.Limits{MaxNodes: 1000}}}}
	store := must.Value(secretstore.OpenWithRules(t.Context(), fake.NewClientset(secret), func() []tokens.LimitRule { return rules }, nil))(t)
	if r := must.Value(store.Get(t.Context(), "3fa9c1", tokens.Live))(t); r.Limits.Problem == nil || !strings.Contains(r.ProblemText(), "node-names") {
		t.Errorf("got %+v, want a problem with node-names", r.Limits)
	}
}
