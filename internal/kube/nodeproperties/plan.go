// Package nodeproperties sets on Nodes what their tokens ask for, and removes the taint that they joined with. The pure part is
// [Plan], and a [Setter] reads and patches.
package nodeproperties

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
)

// What a Node waits for, as in [Waits.For].
const (
	ForRight       = "right"
	ForCertificate = "serving-certificate"
	ForConflict    = "conflict"
	ForPatch       = "patch"
)

// Waits says what a Node waits for. The zero value means nothing.
type Waits struct {
	For string
	// Text continues "the Node waits until".
	Text string
}

// WaitsForRight is what each Node waits for that kubejoin may not patch.
var WaitsForRight = Waits{ForRight, "kubejoin may patch Nodes: kubectl apply -f deploy/node-properties.yaml"}

var waitsForCertificate = Waits{ForCertificate, "its kubelet gets a serving certificate"}

// Joining reports whether a Node has the taint [tokens.JoiningTaint].
func Joining(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, isJoining)
}

func isJoining(t corev1.Taint) bool { return t.Key == tokens.JoiningTaint }

// An operation is one of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// Plan returns the JSON patch that gives a Node all that it wants at once: labels, taints, and the removal of the taint that it
// joined with. Without that taint, a Node does not wait for its serving certificate, which served reports. If a label or taint
// has another value, the Node waits with that taint, and the patch adds the others. The patch is nil if nothing can be added.
//
// Plan never changes a label or taint that exists. The patch fails if the Node is another one, if its taints have changed, or
// if one of the labels was added meanwhile: the test for null of kube-apiserver succeeds if there is no value.
func Plan(node *corev1.Node, want tokens.NodeProperties, served bool) (patch []byte, waits Waits) {
	tests := []operation{{"test", "/metadata/uid", node.UID}}
	var changes []operation
	labels := want.LabelMap()
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		path := "/metadata/labels/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
		switch got, found := node.Labels[key]; {
		case !found:
			tests, changes = append(tests, operation{"test", path, nil}), append(changes, operation{"add", path, labels[key]})
		case got != labels[key]:
			waits = cmp.Or(waits, Waits{ForConflict, fmt.Sprintf("its label %s is gone, which has the value %q where its token asks for %q", key, got, labels[key])})
		}
	}
	taints := slices.Clone(node.Spec.Taints)
	for _, t := range want.TaintList() {
		at := slices.IndexFunc(taints, func(has corev1.Taint) bool { return has.Key == t.Key && string(has.Effect) == t.Effect })
		switch {
		case at < 0:
			taints = append(taints, corev1.Taint{Key: t.Key, Value: t.Value, Effect: corev1.TaintEffect(t.Effect)})
		case taints[at].Value != t.Value:
			waits = cmp.Or(waits, Waits{ForConflict, fmt.Sprintf("its taint %s:%s is gone, which has the value %q where its token asks for %q", t.Key, t.Effect, taints[at].Value, t.Value)})
		}
	}
	joined := waits == (Waits{}) && Joining(node)
	if joined && want.ReadyAfter == tokens.ReadyAfterServingCertificate && !served {
		return nil, waitsForCertificate
	}
	if joined {
		taints = slices.DeleteFunc(taints, isJoining)
	}
	if len(changes) > 0 && node.Labels == nil {
		tests = []operation{tests[0], {"test", "/metadata/labels", nil}}
		changes = append([]operation{{"add", "/metadata/labels", map[string]string{}}}, changes...)
	}
	// A taint is added, or the one of joining is removed.
	if len(taints) != len(node.Spec.Taints) || joined {
		var before any = node.Spec.Taints
		if len(node.Spec.Taints) == 0 {
			before = nil
		}
		tests, changes = append(tests, operation{"test", "/spec/taints", before}), append(changes, operation{"add", "/spec/taints", taints})
	}
	if len(changes) == 0 {
		return nil, waits
	}
	patch, err := json.Marshal(append(tests, changes...))
	if err != nil {
		panic(err) // strings and taints have a JSON form
	}
	return patch, waits
}
