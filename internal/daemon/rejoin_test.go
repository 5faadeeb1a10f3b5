package daemon

import (
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/codes"
	corev1 "k8s.io/api/core/v1"
)

// kubectl describe node shows an Event only if its UID is the name or the UID of the Node.
func TestRejoinEventIsOnTheNode(t *testing.T) {
	var on *corev1.ObjectReference
	var kinds, messages []string
	created := events(func(object *corev1.ObjectReference, e codes.Event, message string) {
		on, kinds, messages = object, append(kinds, e.Type()+" "+e.Reason()), append(messages, message)
	})
	created.rejoin("worker-1", false, "Rejoined", "it is back")
	created.rejoin("worker-1", true, "KeyNotCurrent", "it is old")
	if on.Kind != "Node" || on.Name != "worker-1" || on.UID != "worker-1" || kinds[0] != "Normal Rejoined" || kinds[1] != "Warning KeyNotCurrent" ||
		messages[0] != "it is back" || !strings.HasSuffix(messages[1], "is refused: it is old") {
		t.Errorf("got Events on %+v: %q %q", on, kinds, messages)
	}
}
