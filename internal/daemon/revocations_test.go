package daemon

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/codes"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/configmaps"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// Catches an Event that asks for a token, which cannot take the name of a machine with a key of its own.
func TestRevocationEventNamesStepForEachNode(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	revoked := must.Value(configmaps.Open(ctx, fake.NewClientset(), "kubejoin-system", nil))(t)
	messages := make(chan string, 1)
	c := &cluster{connection: &connection{service: &service{registry: prometheus.NewRegistry()}}, revoked: revoked}
	c.events = func(_ *corev1.ObjectReference, _ codes.Event, message string) { messages <- message }
	go func() { _ = c.reportRevocations()(ctx) }()
	must.Value((&revocation.Guard{Store: revoked}).Revoke(ctx, revocation.Entry{Node: "worker-1"}))(t)
	select {
	case got := <-messages:
		if !strings.HasSuffix(got, "kubejoin explain worker-1") {
			t.Errorf("got %q", got)
		}
	case <-ctx.Done():
		t.Error("got no Event")
	}
}
