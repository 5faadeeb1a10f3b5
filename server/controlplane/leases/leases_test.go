package leases_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/controlplane"
	"github.com/kubejoin/kubejoin/server/controlplane/leases"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

const namespace = "kubejoin-system"

// clocked is a Turns whose clock stands still.
type clocked struct {
	*leases.Turns
	now time.Time
}

// replicas returns replicas of kubejoin that share a cluster. Each has its own clock.
func replicas(n int) (*fake.Clientset, []*clocked) {
	client := fake.NewClientset()
	conflicts(client)
	all := make([]*clocked, n)
	for i := range all {
		c := &clocked{now: time.Date(2026, 11, 23, 5, 0, 0, 0, time.UTC)}
		c.Turns = &leases.Turns{Client: client, Namespace: namespace, Now: func() time.Time { return c.now }}
		all[i] = c
	}
	return client, all
}

// conflicts makes updates fail unless they have the current version, which the fake client does not check.
func conflicts(client *fake.Clientset) {
	var mu sync.Mutex
	version := 0
	client.PrependReactor("*", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		var lease *coordinationv1.Lease
		switch a := action.(type) {
		case clienttesting.UpdateAction:
			lease = a.GetObject().(*coordinationv1.Lease).DeepCopy()
		default:
			return false, nil, nil
		}
		mu.Lock()
		defer mu.Unlock()
		resource := action.GetResource()
		old, err := client.Tracker().Get(resource, lease.Namespace, lease.Name)
		creates := action.GetVerb() == "create"
		switch {
		case creates && err == nil:
			return true, nil, apierrors.NewAlreadyExists(resource.GroupResource(), lease.Name)
		case !creates && err != nil:
			return true, nil, err
		case !creates && old.(*coordinationv1.Lease).ResourceVersion != lease.ResourceVersion:
			return true, nil, apierrors.NewConflict(resource.GroupResource(), lease.Name, nil)
		}
		version++
		lease.ResourceVersion = fmt.Sprint(version)
		if creates {
			err = client.Tracker().Create(resource, lease, lease.Namespace)
		} else {
			err = client.Tracker().Update(resource, lease, lease.Namespace)
		}
		return true, lease, err
	})
}

func machine(node string) controlplane.Machine {
	return controlplane.Machine{Node: node, ID: strings.Repeat(node[len(node)-1:], 32)}
}

func take(t *testing.T, c *clocked, node string) bool {
	t.Helper()
	_, granted, err := c.Take(t.Context(), machine(node))
	if err != nil {
		t.Fatal(err)
	}
	return granted
}

func waiting(t *testing.T, c *clocked) (nodes []string) {
	t.Helper()
	s := must.Value(c.Read(t.Context()))(t)
	for _, w := range s.StillWaiting(c.now) {
		nodes = append(nodes, w.Node)
	}
	return nodes
}

func TestOneMachineHasTheTurn(t *testing.T) {
	_, all := replicas(2)
	a, b := all[0], all[1]
	if !take(t, a, "control-2") || take(t, b, "control-3") || !take(t, b, "control-2") {
		t.Fatal("want the turn for control-2 only, by each replica")
	}
	same := controlplane.Machine{Node: "control-2", ID: strings.Repeat("0", 32)} // another machine of that name
	if _, granted, err := b.Take(t.Context(), same); granted || err != nil {
		t.Errorf("another machine of the name: %v, %v", granted, err)
	}
	if got := waiting(t, a); !slices.Equal(got, []string{"control-3", "control-2"}) {
		t.Errorf("got %q waiting", got)
	}
	must.OK(t, b.GiveBack(t.Context(), same))
	if take(t, b, "control-3") {
		t.Error("a machine that waited gave back the turn of another one")
	}
	must.OK(t, b.GiveBack(t.Context(), machine("control-2")))
	if !take(t, a, "control-3") {
		t.Error("want the turn after it was given back")
	}
	if got := waiting(t, a); len(got) > 0 {
		t.Errorf("got %q waiting, want none", got)
	}
}

// A holder that dies must free its turn within 60 s, regardless of the replica that its successor uses.
func TestTurnOfDeadMachineEnds(t *testing.T) {
	_, all := replicas(3)
	take(t, all[0], "control-2")
	var since time.Duration
	for n := 0; !take(t, all[n%3], "control-3"); n++ {
		since += controlplane.RetryEvery
		for _, c := range all {
			c.now = c.now.Add(controlplane.RetryEvery)
		}
		if since > time.Minute {
			t.Fatalf("not free after %s", since)
		}
	}
	if since < controlplane.TurnDuration {
		t.Errorf("the turn ended after %s, want %s", since, controlplane.TurnDuration)
	}
	if take(t, all[0], "control-2") {
		t.Error("the dead machine has the turn again")
	}
}

// A live holder must keep the turn, even if it uses a replica whose clock is wrong.
func TestRenewedTurnDoesNotEnd(t *testing.T) {
	_, all := replicas(2)
	all[1].now = all[1].now.Add(time.Hour)
	take(t, all[0], "control-2")
	for range 30 {
		if take(t, all[1], "control-3") {
			t.Fatal("control-3 has the turn of a live machine")
		}
		for _, c := range all {
			c.now = c.now.Add(controlplane.RenewEvery)
		}
		if !take(t, all[0], "control-2") {
			t.Fatal("the turn was not renewed")
		}
	}
}

// An expired turn that nobody took can be renewed.
func TestExpiredTurnCanBeRenewed(t *testing.T) {
	_, all := replicas(1)
	take(t, all[0], "control-2")
	all[0].now = all[0].now.Add(time.Hour)
	if !take(t, all[0], "control-2") || take(t, all[0], "control-3") {
		t.Error("want the turn for control-2")
	}
}

// Of many machines that ask at the same moment, exactly one must get the turn.
func TestTurnIsTakenByCompareAndSwap(t *testing.T) {
	_, all := replicas(4)
	var mu sync.Mutex
	var granted []string
	var asking sync.WaitGroup
	for i := range 12 {
		asking.Go(func() {
			node := fmt.Sprintf("control-%d", i)
			_, yes, err := all[i%4].Take(context.Background(), machine(node))
			if err != nil {
				t.Error(err)
			}
			if yes {
				mu.Lock()
				defer mu.Unlock()
				granted = append(granted, node)
			}
		})
	}
	asking.Wait()
	if len(granted) != 1 {
		t.Errorf("got the turn: %q, want one", granted)
	}
	if got := waiting(t, all[0]); len(got) != 11 {
		t.Errorf("got %d waiting, want 11", len(got))
	}
}

// Retries must not write each time, and the list must be bounded and forget machines that gave up.
func TestWaitingIsBounded(t *testing.T) {
	client, all := replicas(1)
	c := all[0]
	take(t, c, "control-1")
	for i := range 3 * controlplane.MaxWaiting {
		take(t, c, fmt.Sprintf("control-%d", 100+i))
	}
	if got := waiting(t, c); len(got) != controlplane.MaxWaiting {
		t.Errorf("got %d waiting, want %d", len(got), controlplane.MaxWaiting)
	}
	writes := func() (n int) {
		for _, a := range client.Actions() {
			if a.GetVerb() != "get" {
				n++
			}
		}
		return n
	}
	before := writes()
	take(t, c, "control-100")
	c.now = c.now.Add(controlplane.RetryEvery)
	take(t, c, "control-100")
	if n := writes() - before; n != 0 {
		t.Errorf("got %d writes by retries, want none", n)
	}
	c.now = c.now.Add(15 * time.Second)
	take(t, c, "control-100")
	c.now = c.now.Add(50 * time.Second)
	if got := waiting(t, c); !slices.Equal(got, []string{"control-100"}) {
		t.Errorf("got %q waiting, want only the one that retries", got)
	}
}

// Malformed parts of a turn must not stop joins.
func TestMalformedTurn(t *testing.T) {
	client, all := replicas(1)
	ctx := t.Context()
	stored := client.CoordinationV1().Leases(namespace)
	holder := "no slash"
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: leases.Name, Namespace: namespace, Annotations: map[string]string{"turn.kubejoin.io/waiting": "{"}}}
	lease.Spec.HolderIdentity = &holder
	must.Value(stored.Create(ctx, lease, metav1.CreateOptions{}))(t)
	if take(t, all[0], "control-2") {
		t.Error("took the turn of an unknown holder at once")
	}
	for range controlplane.TurnDuration / controlplane.RetryEvery {
		all[0].now = all[0].now.Add(controlplane.RetryEvery)
		take(t, all[0], "control-2")
	}
	if !take(t, all[0], "control-2") {
		t.Error("the turn of an unknown holder never ends")
	}
}

// During an outage of the API server, the holder cannot renew its turn. Its silence must not end the turn.
func TestTurnSurvivesOutage(t *testing.T) {
	_, all := replicas(1)
	c := all[0]
	take(t, c, "control-2")
	c.now = c.now.Add(controlplane.RenewEvery - time.Second)
	take(t, c, "control-3")
	c.now = c.now.Add(10 * time.Minute) // without any request
	if take(t, c, "control-3") || !take(t, c, "control-2") {
		t.Error("the turn was lost in an outage")
	}
}

// A fakeEtcd has one learner of a machine, or none.
type fakeEtcd struct {
	of     controlplane.Machine
	runs   bool // whether the etcd of the learner runs
	calls  int
	broken error
}

func (e *fakeEtcd) RemoveLearner(_ context.Context, gone controlplane.Machine, ended bool) (string, error) {
	e.calls++
	if e.of == gone && (ended || !e.runs) {
		e.of = controlplane.Machine{}
	}
	if e.of == (controlplane.Machine{}) {
		return "", e.broken
	}
	return "https://" + e.of.Node + ":2380", e.broken
}

// No machine may get the turn while etcd has a learner, from a join without a turn or from a machine that failed.
func TestTurnWaitsForLearner(t *testing.T) {
	_, all := replicas(1)
	c, etcd := all[0], &fakeEtcd{}
	c.Etcd = etcd
	expire := func() {
		for range controlplane.TurnDuration / controlplane.RetryEvery {
			take(t, c, "control-3")
			c.now = c.now.Add(controlplane.RetryEvery)
		}
	}
	learner := func() string {
		s := must.Value(c.Read(t.Context()))(t)
		return s.Learner
	}

	etcd.of = machine("control-9") // this machine joins without a turn
	if take(t, c, "control-2") || learner() != "https://control-9:2380" || !slices.Equal(waiting(t, c), []string{"control-2"}) {
		t.Errorf("control-2 does not wait for the learner %q", learner())
	}
	if etcd.of = machine("control-8"); take(t, c, "control-2") || learner() != "https://control-8:2380" {
		t.Errorf("got learner %q, want the new one", learner())
	}
	etcd.of = controlplane.Machine{}
	if !take(t, c, "control-2") || learner() != "" {
		t.Fatalf("want the turn for control-2; learner: %q", learner())
	}
	before := etcd.calls
	if etcd.of = machine("control-2"); !take(t, c, "control-2") || take(t, c, "control-3") || etcd.calls != before {
		t.Error("a turn that is not free depends on etcd")
	}

	etcd.runs = true
	if expire(); take(t, c, "control-3") || learner() == "" {
		t.Error("control-3 has the turn despite a learner that runs")
	}
	if !take(t, c, "control-2") || learner() != "" {
		t.Error("the holder cannot renew its turn, or the state still has its learner")
	}
	etcd.runs = false
	if expire(); !take(t, c, "control-3") || etcd.of != (controlplane.Machine{}) {
		t.Error("the learner of a dead machine stays")
	}

	etcd.of, etcd.runs = machine("control-3"), true // kubeadm failed
	before = etcd.calls
	for _, m := range []controlplane.Machine{machine("control-2"), machine("control-3")} {
		must.OK(t, c.GiveBack(t.Context(), m))
		if removed := etcd.of == (controlplane.Machine{}); removed != (m.Node == "control-3") {
			t.Errorf("%s gave back: removed the learner of control-3: %v", m.Node, removed)
		}
	}
	if etcd.calls != before+1 {
		t.Errorf("got %d calls of etcd, want one, for the holder", etcd.calls-before)
	}
	etcd.broken = errors.New("no leader")
	if _, granted, err := c.Take(t.Context(), machine("control-2")); granted || !errors.Is(err, etcd.broken) {
		t.Errorf("%v, %v, want the error of etcd", granted, err)
	}
	etcd.broken = nil
	take(t, c, "control-2")
	etcd.broken = errors.New("no leader")
	if err := c.GiveBack(t.Context(), machine("control-2")); !errors.Is(err, etcd.broken) {
		t.Errorf("%v, want the error of etcd", err)
	}
	if s, err := c.Read(t.Context()); err != nil || s.Holder.Node != "control-2" {
		t.Errorf("%+v, %v: want the holder, so that its turn expires", s.Holder, err)
	}
}

// A clock that is set back must not prolong the turn of a dead machine.
func TestTurnEndsThoughClockIsSetBack(t *testing.T) {
	_, all := replicas(1)
	c := all[0]
	take(t, c, "control-2")
	take(t, c, "control-3")
	c.now = c.now.Add(-time.Hour)
	for range 1 + controlplane.TurnDuration/controlplane.RetryEvery {
		if take(t, c, "control-3") {
			return
		}
		c.now = c.now.Add(controlplane.RetryEvery)
	}
	t.Error("the turn of a dead machine has not ended")
}
