package kubefacts

import (
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// The Ready period stays the same until the Ready condition changes. A heartbeat does not
// change it.
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
		got := "other"
		switch readyPeriod(test.node) {
		case base:
			got = "same"
		case [16]byte{}:
			got = "none"
		}
		if got != test.want {
			t.Errorf("%s: got %s period, want %s", name, got, test.want)
		}
	}
}

// A Node has 10 KB. Catches a cache that keeps the whole Node, or its list of addresses.
func TestCacheKeepsNothingOfNode(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1", UID: "u1"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: tokens.JoiningTaint}}}, Status: corev1.NodeStatus{
		Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeHostName, Address: "worker-1"}},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}}
	whole, addresses := weak.Make(node), weak.Make(&node.Status.Addresses[0])
	cached := must.Value(decodeNode(node))(t)
	runtime.GC()
	if whole.Value() != nil || addresses.Value() != nil {
		t.Error("decoded Node keeps the object in memory")
	}
	want := &cachedNode{
		name: "worker-1", period: cached.period, hosts: []string{"10.0.0.1", "worker-1"},
		seen: SeenNode{
			Registration: Registration{UID: "u1"},
			Ready:        corev1.NodeCondition{Status: corev1.ConditionTrue},
			Joining:      &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1", UID: "u1"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: tokens.JoiningTaint}}}},
		},
	}
	large := strings.Repeat("x", 1<<20)
	node = &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: large, Message: large}}}}
	if c := must.Value(decodeNode(node))(t).seen.Ready; len(c.Reason)+len(c.Message) > 2000 {
		t.Errorf("keeps %d bytes of a condition", len(c.Reason)+len(c.Message))
	}
	if !reflect.DeepEqual(cached, want) || cached.period == [16]byte{} || cap(cached.hosts) != 2 {
		t.Errorf("got %+v, want %+v", cached, want)
	}
}

// A Node with another UID is a different Node: its creation time must not be used for the claim of an earlier Node.
func TestRegisteredIsTimeOfThisNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		created := metav1.NewTime(time.Now().Truncate(time.Second))
		nodes := OpenNodes(t.Context(), fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1", UID: "u1", CreationTimestamp: created}}))
		for _, test := range []struct {
			name, uid string
			want      time.Time
		}{{"worker-1", "u1", created.Time}, {"worker-1", "u0", time.Time{}}, {"worker-2", "u1", time.Time{}}} {
			if got, err := nodes.Registered(t.Context(), test.name, test.uid); err != nil || !got.Equal(test.want) {
				t.Errorf("%s with UID %s: got %s, %v, want %s", test.name, test.uid, got, err, test.want)
			}
		}
	})
}

// Catches a hint for each heartbeat, and a missing hint for a Node that was created again.
func TestNodesHintChangesOfUIDReadyPeriodAndJoining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1", UID: "u1"}}
		client := fake.NewClientset(node)
		nodes := OpenNodes(t.Context(), client)
		hints := nodes.Watch(t.Context())
		synctest.Wait()
		<-hints
		ready := func(heartbeat int64) []corev1.NodeCondition {
			return []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Unix(heartbeat, 0)}}
		}
		for _, test := range []struct {
			name   string
			change func()
			hint   bool
		}{
			{"address", func() { node.Status.Addresses = []corev1.NodeAddress{{Address: "192.0.2.1"}} }, false},
			{"Ready", func() { node.Status.Conditions = ready(1) }, true},
			{"heartbeat", func() { node.Status.Conditions = ready(2) }, false},
			{"another taint", func() { node.Spec.Taints = []corev1.Taint{{Key: "a"}} }, false},
			{"taint of joining", func() { node.Spec.Taints = []corev1.Taint{{Key: "a"}, {Key: tokens.JoiningTaint}} }, true},
			{"another UID", func() { node.UID = "u2" }, true},
		} {
			test.change()
			must.Value(client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}))(t)
			synctest.Wait()
			hint := false
			select {
			case <-hints:
				hint = true
			default:
			}
			if hint != test.hint {
				t.Errorf("%s: got a hint: %t, want %t", test.name, hint, test.hint)
			}
		}
	})
}

func TestJoiningReturnsNodesWithTaint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		created := metav1.NewTime(time.Now().Truncate(time.Second))
		node := func(name, taint string) *corev1.Node {
			return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u", CreationTimestamp: created}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: taint}}}}
		}
		nodes := OpenNodes(t.Context(), fake.NewClientset(node("worker-1", tokens.JoiningTaint), node("worker-2", "node.kubernetes.io/not-ready")))
		got := must.Value(nodes.Joining(t.Context()))(t)
		if len(got) != 1 || got["worker-1"].UID != "u" || !got["worker-1"].Created.Equal(created.Time) {
			t.Errorf("got %v, want worker-1, created %s", got, created)
		}
	})
}

// Catches a panic in the tests of an importer, whose fake client has no RESTClient.
func TestManyLookupsWithFakeClient(t *testing.T) {
	n := OpenNodes(t.Context(), fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1", UID: "u1"}}))
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
