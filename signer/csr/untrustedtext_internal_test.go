package csr

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
)

// Events quote errors of other components. Their text must be cleaned and shortened.
func TestEventsAreClean(t *testing.T) {
	fake := record.NewFakeRecorder(2)
	events := cleanEvents{fake}
	err := errors.New("_8w4usg.qwertzuiopasdfgh\n\x1b" + strings.Repeat("x", 5000))
	events.Eventf(&corev1.Node{}, corev1.EventTypeWarning, "Reason", "failed: %v", err)
	events.Event(&corev1.Node{}, corev1.EventTypeWarning, "Reason", "failed: "+err.Error())
	for range 2 {
		said := <-fake.Events
		if !strings.HasPrefix(said, "Warning Reason failed: _8w4usg.<redacted> �xxx") || len(said) > 1100 {
			t.Errorf("got %d bytes: %.200q", len(said), said)
		}
	}
}
