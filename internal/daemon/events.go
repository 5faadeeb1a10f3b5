package daemon

import (
	"github.com/kubejoin/kubejoin/internal/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// events creates an Event on an object; nil means kubejoin as a whole.
type events func(object *corev1.ObjectReference, e codes.Event, message string)

// noEvents creates no Event, because there is no cluster.
func noEvents(*corev1.ObjectReference, codes.Event, string) {}

// own creates an Event on kubejoin as a whole.
func (to events) own(e codes.Event, message string) { to(nil, e, message) }

// onNode creates an Event on a Node. kubectl describe node shows an Event only if the UID in its involvedObject is
// the node name. Kubelets also use the node name.
func (to events) onNode(node string, e codes.Event, message string) {
	to(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)}, e, message)
}

// rejoin creates an Event on a Node that has rejoined, or whose rejoin was refused.
func (to events) rejoin(node string, refused bool, reason, message string) {
	e := codes.Events[reason]
	if refused {
		e, message = codes.Refused(reason), "A machine has proven a key of this node and is refused: "+message
	}
	to.onNode(node, e, message)
}
