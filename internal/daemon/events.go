package daemon

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// events creates an Event on an object. Without an object it is on kubejoin as a whole.
type events func(object *corev1.ObjectReference, kind, reason, message string)

// noEvents creates none, because there is no cluster.
func noEvents(*corev1.ObjectReference, string, string, string) {}

// own creates an Event on kubejoin as a whole.
func (e events) own(kind, reason, message string) { e(nil, kind, reason, message) }

// onNode creates an Event on a Node. kubectl describe shows Events that have the name as UID, as those of kubelets.
func (e events) onNode(node, kind, reason, message string) {
	e(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)}, kind, reason, message)
}

// rejoin creates an Event on a Node that has rejoined, or may not.
func (e events) rejoin(node string, refused bool, reason, message string) {
	kind := corev1.EventTypeNormal
	if refused {
		kind = corev1.EventTypeWarning
		message = "A machine with a key of this node may not rejoin: " + message
	}
	e.onNode(node, kind, reason, message)
}
