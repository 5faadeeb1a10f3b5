package csr

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// The Ready period stays the same until the Ready condition changes. The reduced Node in the informer has the same
// period as the full Node.
func TestReadyPeriodChangesOnlyWithTheNode(t *testing.T) {
	node := func(status corev1.ConditionStatus, since int64, boot string) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue},
				{Type: corev1.NodeReady, Status: status, LastTransitionTime: metav1.NewTime(time.Unix(since, 0)), LastHeartbeatTime: metav1.Now()},
			},
			NodeInfo: corev1.NodeSystemInfo{BootID: boot, MachineID: "m"},
		}}
	}
	base := readyPeriod(node(corev1.ConditionTrue, 1, "boot"))
	for name, test := range map[string]struct {
		node *corev1.Node
		want string // same, other or none
	}{
		"heartbeat":      {node(corev1.ConditionTrue, 1, "boot"), "same"},
		"Ready again":    {node(corev1.ConditionTrue, 2, "boot"), "other"},
		"booted":         {node(corev1.ConditionTrue, 1, "reboot"), "other"},
		"a long boot ID": {node(corev1.ConditionTrue, 1, strings.Repeat("b", 1<<20)), "other"},
		"not Ready":      {node(corev1.ConditionFalse, 1, "boot"), "none"},
		"unknown":        {node(corev1.ConditionUnknown, 1, "boot"), "none"},
		"no condition":   {&corev1.Node{}, "none"},
	} {
		got := readyPeriod(test.node)
		if is := map[bool]string{true: "same", false: "other"}[got == base]; got == "" && test.want != "none" || got != "" && is != test.want || len(got) > 64 {
			t.Errorf("%s: got period %q after %q, want %s", name, got, base, test.want)
		}
		kept, err := nameUIDAndAddresses(test.node)
		if err != nil || periodOf(kept) != got {
			t.Errorf("%s: got period %q in the informer, %v, want %q", name, periodOf(kept), err, got)
		}
	}
}

// Catches a panic in the tests of an importer, whose fake client has no RESTClient.
func TestManyLookupsWithFakeClient(t *testing.T) {
	n, err := OpenNodes(t.Context(), fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1", UID: "u1"}}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Nodes(t.Context()); err != nil { // waits for the cache
		t.Fatal(err)
	}
	var all []*uidLookup
	for range fewLookups + 1 {
		all = append(all, &uidLookup{name: "worker-1"})
	}
	n.lookUp(t.Context(), all)
	for _, q := range all {
		if q.err != nil || q.uid != "u1" {
			t.Errorf("got UID %q, error %v, want u1", q.uid, q.err)
		}
	}
}
