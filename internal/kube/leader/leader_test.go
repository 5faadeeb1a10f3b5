package leader

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
)

// The times in the Lease come from the clock of another machine, so leadership must use only changes of the Lease.
func TestSeesLeaderWhileLeaseChanges(t *testing.T) {
	type seen struct {
		at     time.Duration
		holder string
		raw    string // empty if this replica wrote the Lease
	}
	const s = time.Second
	for _, test := range []struct {
		name string
		seen []seen
		at   time.Duration
		want bool
	}{
		{"nothing seen", nil, 0, false},
		{"just seen", []seen{{0, "a", "1"}}, 9 * s, true},
		{"seen once and never renewed", []seen{{0, "a", "1"}, {1 * s, "a", "1"}, {14 * s, "a", "1"}}, 15 * s, false},
		{"renewed", []seen{{0, "a", "1"}, {14 * s, "a", "2"}}, 28 * s, true},
		{"renewed, and not again", []seen{{0, "a", "1"}, {14 * s, "a", "2"}, {28 * s, "a", "2"}}, 29 * s, false},
		{"given up before it was seen", []seen{{0, "", "1"}}, 0, false},
		{"given up a moment ago", []seen{{0, "a", "1"}, {1 * s, "", "2"}}, 5 * s, true},
		{"given up, and nobody took it", []seen{{0, "a", "1"}, {1 * s, "", "2"}, {5 * s, "", "2"}}, 6 * s, false},
		{"given up, and not seen until late", []seen{{0, "a", "1"}, {14 * s, "", "2"}}, 15 * s, false},
		{"given up and taken", []seen{{0, "a", "1"}, {1 * s, "", "2"}, {3 * s, "b", "3"}}, 17 * s, true},
		{"held here", []seen{{0, "a", ""}, {9 * s, "a", ""}}, 23 * s, true},
		{"held here, and not renewed", []seen{{0, "a", ""}}, 15 * s, false},
		{"given up here", []seen{{0, "a", ""}, {1 * s, "", ""}}, 6 * s, false},
	} {
		var l leadership
		start := time.Now()
		for _, see := range test.seen {
			if see.raw == "" {
				l.wrote(see.holder, start.Add(see.at))
			} else {
				l.read(see.holder, []byte(see.raw), start.Add(see.at))
			}
		}
		if got := l.known(start.Add(test.at)); got != test.want {
			t.Errorf("%s: %t after %s, want %t", test.name, got, test.at, test.want)
		}
	}
}

// A replica that may only read the Lease must see whether another replica leads.
func TestStandbySeesWhetherAnotherReplicaLeads(t *testing.T) {
	setUp := func() (client, onlooking *fake.Clientset) {
		client, onlooking = fake.NewClientset(), &fake.Clientset{}
		onlooking.AddReactor("get", "leases", kubetesting.ObjectReaction(client.Tracker()))
		onlooking.AddReactor("*", "*", func(kubetesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(coordinationv1.Resource("leases"), "", nil)
		})
		return client, onlooking
	}
	t.Run("a Lease that was left behind", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			client, onlooking := setUp()
			holder, lasts, past := "old-pod", int32(10), metav1.NewMicroTime(time.Now().Add(-7*24*time.Hour))
			must.Value(client.CoordinationV1().Leases("default").Create(t.Context(), &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Name: "left"},
				Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &lasts, RenewTime: &past, AcquireTime: &past},
			}, metav1.CreateOptions{}))(t)
			onlooker := elect(t, onlooking, "left")
			onlooker.await(t, true) // the Lease may still be renewed
			onlooker.await(t, false)
		})
	})
	t.Run("a leader that comes and goes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			client, onlooking := setUp()
			onlooker := elect(t, onlooking, "led")
			if synctest.Wait(); onlooker.Ready(t.Context()) == nil {
				t.Error("before there is a Lease: ready")
			}
			leader := elect(t, client, "led")
			leader.await(t, true)
			onlooker.await(t, true)
			for end := time.Now().Add(2 * (leaseDuration + takeover)); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
				if err := onlooker.Ready(t.Context()); err != nil {
					t.Fatalf("while another one leads: %v", err)
				}
			}
			leader.stop()
			onlooker.await(t, false)
		})
	})
}

// An elected takes part in an Election until stop is called.
type elected struct {
	*Election
	stop func()
}

func elect(t *testing.T, client kubernetes.Interface, lease string) elected {
	e := &Election{Client: client, Namespace: "default", Name: lease, Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx, func(ctx context.Context) error { <-ctx.Done(); return nil }) }()
	stop := func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		ended <- nil
	}
	t.Cleanup(stop)
	return elected{e, stop}
}

func (e elected) await(t *testing.T, led bool) {
	t.Helper()
	wait.Until(t, fmt.Sprintf("ready %t", led), func() bool { return (e.Ready(t.Context()) == nil) == led })
}

// A replica that resumes after a suspension must not send writes that are based on old reads.
func TestFenceSendsWritesOnlyOfTheLeader(t *testing.T) {
	for name, test := range map[string]struct {
		renewed *time.Time
		method  string
		want    bool
	}{
		"a read of a standby replica":  {nil, http.MethodGet, true},
		"a write of a standby replica": {nil, http.MethodPut, false},
		"a write of the leader":        {ago(0), http.MethodPut, true},
		"a write after a suspension":   {ago(renewDeadline), http.MethodPut, false},
		"a read after a suspension":    {ago(renewDeadline), http.MethodHead, true},
	} {
		sent := false
		e := &Election{}
		e.renewed.Store(test.renewed)
		send := e.Fence(roundTripper(func(*http.Request) (*http.Response, error) { sent = true; return &http.Response{}, nil }))
		r, err := http.NewRequestWithContext(t.Context(), test.method, "https://127.0.0.1", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		_, err = send.RoundTrip(r)
		if sent != test.want || (err == nil) != test.want {
			t.Errorf("%s: sent %t (%v), want %t", name, sent, err, test.want)
		}
	}
}

func ago(d time.Duration) *time.Time {
	at := time.Now().Add(-d)
	return &at
}

// Catches annotations that are not written to the Lease, stay although they are empty, or replace annotations of others.
func TestRenewalSetsAnnotations(t *testing.T) {
	value := "failed"
	client := fake.NewClientset(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "l", Annotations: map[string]string{"other": "stays"}}})
	leases := annotating{client.CoordinationV1(), func() map[string]string { return map[string]string{"a": value} }}.Leases("ns")
	for _, value = range []string{"failed", ""} {
		lease := must.Value(leases.Get(t.Context(), "l", metav1.GetOptions{}))(t)
		lease = must.Value(leases.Update(t.Context(), lease, metav1.UpdateOptions{}))(t)
		if got, found := lease.Annotations["a"]; got != value || found != (value != "") || lease.Annotations["other"] != "stays" {
			t.Errorf("got annotations %v, want a=%q and those of others", lease.Annotations, value)
		}
	}
}
