package nodeproperties

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
)

func taint(text string) corev1.Taint {
	rest, effect, _ := strings.Cut(text, ":")
	key, value, _ := strings.Cut(rest, "=")
	return corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)}
}

func node(labels map[string]string, taints ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1", UID: "u1", Labels: labels}}
	for _, t := range taints {
		n.Spec.Taints = append(n.Spec.Taints, taint(t))
	}
	return n
}

const (
	joining  = tokens.JoiningTaint + ":NoSchedule"
	notReady = "node.kubernetes.io/not-ready:NoSchedule"
)

// Catches a Node that escapes its labels and taints by one conflict. Also catches a label or taint that changes its value, and a
// taint of others that goes.
func TestPlan(t *testing.T) {
	all := tokens.NodeProperties{Labels: "a/b~c=d,e=", Taints: "f=g:NoExecute,h:NoSchedule", ReadyAfter: tokens.ReadyAfterServingCertificate}
	labels := tokens.NodeProperties{Labels: "e=1"}
	type object = map[string]string
	for _, test := range []struct {
		name   string
		node   *corev1.Node
		want   tokens.NodeProperties
		served bool
		waits  string // part of the text
		labels object
		taints []string // nil: no patch
	}{
		{name: "nothing wanted", node: node(nil, notReady)},
		{name: "taint of joining alone", node: node(nil, joining), taints: []string{}},
		{name: "other taints stay", node: node(nil, "x=y:NoExecute", joining, notReady), taints: []string{"x=y:NoExecute", notReady}},
		{name: "taint of joining with every effect", node: node(nil, joining, tokens.JoiningTaint+"=x:NoExecute"), taints: []string{}},
		{name: "all", node: node(object{"x": "y"}, notReady, joining), want: all, served: true,
			labels: object{"x": "y", "a/b~c": "d", "e": ""}, taints: []string{notReady, "f=g:NoExecute", "h:NoSchedule"}},
		{name: "no serving certificate", node: node(nil, joining), want: all, waits: "serving certificate"},
		{name: "no serving certificate, no taint", node: node(object{"x": "y"}), want: all,
			labels: object{"x": "y", "a/b~c": "d", "e": ""}, taints: []string{"f=g:NoExecute", "h:NoSchedule"}},
		{name: "after labels", node: node(nil, joining), want: tokens.NodeProperties{Labels: "e=1", ReadyAfter: tokens.ReadyAfterLabels}, labels: object{"e": "1"}, taints: []string{}},
		{name: "Node without labels", node: node(nil), want: labels, labels: object{"e": "1"}, taints: []string{}},
		{name: "label exists", node: node(object{"e": "1"}, notReady), want: labels},
		{name: "label exists, taint of joining", node: node(object{"e": "1"}, joining), want: labels, labels: object{"e": "1"}, taints: []string{}},
		{name: "label with another value", node: node(object{"e": "2"}, joining), want: labels, waits: `label e is gone, which has the value "2" where its token asks for "1"`},
		{name: "the rest beside a label with another value", node: node(object{"e": "2"}, joining, notReady), want: tokens.NodeProperties{Labels: "a=1,e=1,i=1", Taints: "f:NoExecute"},
			waits: "label e is gone", labels: object{"a": "1", "e": "2", "i": "1"}, taints: []string{joining, notReady, "f:NoExecute"}},
		{name: "label with an empty value", node: node(object{"e": ""}), want: labels, waits: `has the value ""`},
		{name: "taint with another value", node: node(nil, "f=x:NoExecute", joining), want: all, served: true, waits: `taint f:NoExecute is gone, which has the value "x" where its token asks for "g"`,
			labels: object{"a/b~c": "d", "e": ""}, taints: []string{"f=x:NoExecute", joining, "h:NoSchedule"}},
		{name: "taint with another effect", node: node(nil, "f=x:NoSchedule"), want: tokens.NodeProperties{Taints: "f=g:NoExecute"}, taints: []string{"f=x:NoSchedule", "f=g:NoExecute"}},
		{name: "everything is there", node: node(object{"a/b~c": "d", "e": ""}, "h:NoSchedule", "f=g:NoExecute"), want: all},
	} {
		patch, waits := Plan(test.node, test.want, test.served)
		if (waits.Text != "") != (test.waits != "") || !strings.Contains(waits.Text, test.waits) || (patch == nil) != (test.taints == nil) {
			t.Errorf("%s: waits until %q, patch %s, want %q", test.name, waits.Text, patch, test.waits)
			continue
		}
		if patch == nil {
			continue
		}
		got, err := apply(patch, test.node)
		if err != nil {
			t.Errorf("%s: %v with patch %s", test.name, err, patch)
			continue
		}
		want := node(test.labels, test.taints...)
		if !slices.Equal(got.Spec.Taints, want.Spec.Taints) || string(must.Value(json.Marshal(got.Labels))(t)) != string(must.Value(json.Marshal(want.Labels))(t)) {
			t.Errorf("%s: got labels %v, taints %v, want %v, %v", test.name, got.Labels, got.Spec.Taints, want.Labels, want.Spec.Taints)
		}
		if again, still := Plan(got, test.want, false); again != nil || still != waits {
			t.Errorf("%s: after the patch it still wants %s, %q", test.name, again, still.Text)
		}
	}
}

// Catches a patch that replaces what another client has written since the Node was read.
func TestPatchFailsAfterChangeOfNode(t *testing.T) {
	before := node(map[string]string{"x": "y"}, notReady, joining)
	patch, _ := Plan(before, tokens.NodeProperties{Labels: "e=1", Taints: "f:NoExecute"}, false)
	for name, change := range map[string]func(*corev1.Node){
		"another Node":     func(n *corev1.Node) { n.UID = "u2" },
		"label added":      func(n *corev1.Node) { n.Labels["e"] = "2" },
		"same label added": func(n *corev1.Node) { n.Labels["e"] = "1" },
		"taint added":      func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, taint("z:NoExecute")) },
		"taint removed":    func(n *corev1.Node) { n.Spec.Taints = n.Spec.Taints[1:] },
	} {
		n := before.DeepCopy()
		change(n)
		if _, err := apply(patch, n); err == nil {
			t.Errorf("%s: the patch was applied", name)
		}
	}
	harmless := before.DeepCopy()
	harmless.Labels["other"], harmless.ResourceVersion = "z", "7"
	if _, err := apply(patch, harmless); err != nil {
		t.Errorf("another label: %v, want none", err)
	}
	if bare, _ := Plan(node(nil), tokens.NodeProperties{Labels: "e=1"}, false); bare != nil {
		if _, err := apply(bare, node(map[string]string{"x": "y"})); err == nil {
			t.Error("first labels were added: the patch was applied")
		}
	}
}

// apply applies a patch to a Node. The fake client does so with the library of kube-apiserver.
func apply(patch []byte, to *corev1.Node) (*corev1.Node, error) {
	return fake.NewClientset(to.DeepCopy()).CoreV1().Nodes().Patch(context.Background(), to.Name, types.JSONPatchType, patch, metav1.PatchOptions{})
}
