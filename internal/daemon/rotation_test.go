package daemon

import (
	"crypto/x509"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/codes"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/signer/rotation/clusterstore"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// Catches two leaders that both report the same change, and a wrong sentence for a change.
func TestRotationHasOneEventForEachChange(t *testing.T) {
	client := fake.NewClientset()
	oldCA := must.Value(signer.GenerateCA("old", time.Now(), 24*time.Hour))(t)
	newCA := must.Value(signer.GenerateCA("new", time.Now(), 24*time.Hour))(t)
	began := must.Value(rotation.New(rotation.Cluster, oldCA.Bundle(), newCA.Bundle(), nil, time.Now()))(t)
	c := &connection{ClusterOptions: ClusterOptions{LeaseNamespace: "kubejoin-system", LeaseName: "kubejoin"}, client: client}
	var want []string
	for i, test := range []struct {
		stage           rotation.Stage
		aborting, ended bool
		want            string
	}{
		{rotation.Prepare, false, false, "began stage prepare; next: kubejoin ca status --ca cluster"},
		{rotation.Trust, false, false, "began stage trust; next: kubejoin ca status --ca cluster"},
		{rotation.Trust, true, false, "is being aborted, and went back to stage trust; next: kubejoin ca status --ca cluster"},
		{rotation.Prepare, true, true, "was aborted, and the old CA stays"},
		{rotation.Finish, false, true, "has ended, and the new CA has replaced the old one"},
	} {
		r := began
		r.Stage, r.Aborting, r.Since = test.stage, test.aborting, began.Since.Add(time.Duration(i)*time.Second)
		if test.ended {
			r.Ended = r.Since.Add(time.Millisecond)
		}
		want = append(want, "The rotation of the cluster CA "+test.want)
		for range 2 {
			must.OK(t, c.rotationEvent(t.Context(), r))
		}
	}
	var got []string
	for _, e := range must.Value(client.CoreV1().Events("kubejoin-system").List(t.Context(), metav1.ListOptions{}))(t).Items {
		got = append(got, e.Message)
		if e.Reason != "CARotation" || e.InvolvedObject.Kind != "Lease" || e.InvolvedObject.Name != "kubejoin" || e.LastTimestamp.IsZero() {
			t.Errorf("Event %+v", e)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got Events %q, want %q", got, want)
	}
}

// A replica must follow the stored rotation of the cluster CA without a read for each certificate. The rotation decides the
// CAs in cluster-info, the served certificates, and which certificates are short-lived. A malformed state must change
// nothing, and must be reported.
func TestFollowsStoredRotation(t *testing.T) {
	oldCA := must.Value(signer.GenerateCA("old", time.Now(), 24*time.Hour))(t)
	newCA := must.Value(signer.GenerateCA("new", time.Now(), 24*time.Hour))(t)
	old, fresh := oldCA.Certificate(), newCA.Certificate()
	cross := must.Value(oldCA.CrossSign(fresh))(t)
	r := must.Value(rotation.New(rotation.Cluster, []*x509.Certificate{old}, []*x509.Certificate{fresh}, cross, time.Now()))(t)
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		answers := make(chan struct{})
		client.PrependReactor("list", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) { <-answers; return false, nil, nil })
		s := newService(Options{CA: CA{RotationQPS: 20}}, slog.New(slog.DiscardHandler), io.Discard)
		var events []string
		c := (&connection{
			service: s, client: client, working: client, watch: t.Context(),
			events: func(_ *corev1.ObjectReference, e codes.Event, _ string) { events = append(events, e.Reason()) },
		}).watchRotation()
		follow := c.follower()
		if now := must.Value(follow.Rotation())(t); now != nil {
			t.Error("a rotation before anything was read: cluster-info could not be signed without the permission to read it")
		}
		ready := s.checks[len(s.checks)-1].Ready
		if err := ready(t.Context()); err == nil || !strings.Contains(err.Error(), "have not been read") {
			t.Errorf("before anything was read, ready says %v", err)
		}
		close(answers)
		synctest.Wait()
		secrets := client.CoreV1().Secrets(clusterstore.KeyNamespace)
		secret := must.Value(secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: clusterstore.KeyName}}, metav1.CreateOptions{}))(t)
		write := func(state string) {
			secret.Data = map[string][]byte{string(rotation.Cluster): []byte(state)}
			secret = must.Value(secrets.Update(t.Context(), secret, metav1.UpdateOptions{}))(t)
			synctest.Wait()
			if now, err := follow.Rotation(); now != nil || err == nil || ready(t.Context()) == nil {
				t.Errorf("not published yet: cluster-info follows %+v, %v, and is ready: %v", now, err, ready(t.Context()))
			}
			must.OK(t, c.publish(t.Context()))
			synctest.Wait()
			must.OK(t, ready(t.Context()))
		}
		reads := 0
		for _, test := range []struct {
			stage              rotation.Stage
			aborting, ended    bool
			trusted            []*x509.Certificate // nil if cluster-info stays the same
			cross              bool
			shortOld, shortNew bool
		}{
			{stage: rotation.Prepare, trusted: []*x509.Certificate{old}, cross: true},
			{stage: rotation.Trust, trusted: []*x509.Certificate{old, fresh}, cross: true, shortOld: true},
			{stage: rotation.Switch, trusted: []*x509.Certificate{old, fresh}, cross: true, shortOld: true},
			{stage: rotation.Switch, aborting: true, trusted: []*x509.Certificate{old, fresh}, cross: true, shortNew: true},
			{stage: rotation.Finish, trusted: []*x509.Certificate{fresh}, shortOld: true},
			{stage: rotation.Finish, ended: true},
		} {
			r := r
			r.Stage, r.Aborting, r.Nodes = test.stage, test.aborting, 7000
			if test.ended {
				r.Ended = time.Now()
			}
			write(string(must.Value(rotation.Encode(r))(t)))
			select {
			case <-c.changed:
			default:
				t.Errorf("%s: no hint", test.stage)
			}
			before := len(client.Actions())
			now := must.Value(follow.Rotation())(t)
			if (now == nil) != (test.trusted == nil) || now != nil && (!slices.EqualFunc(now.Trusted, test.trusted, (*x509.Certificate).Equal) || len(now.All) != 2 || now.Stage != r.ID+"/"+string(test.stage)) {
				t.Errorf("%s, aborting %t: cluster-info follows %+v", test.stage, test.aborting, now)
			}
			if got := c.cross(); (got != nil) != test.cross || got != nil && !got.Equal(cross) {
				t.Errorf("%s, aborting %t: cross certificate %t, want %t", test.stage, test.aborting, got != nil, test.cross)
			}
			for ca, short := range map[*x509.Certificate]bool{old: test.shortOld, fresh: test.shortNew} {
				want := map[bool]time.Duration{true: rotation.ShortLifetime("worker-1", 7000, 20)}[short]
				if got := c.maxLifetime(ca, "worker-1"); got != want {
					t.Errorf("%s, aborting %t: lifetime %s by CA %s, want %s", test.stage, test.aborting, got, ca.Subject, want)
				}
			}
			reads += len(client.Actions()) - before
		}
		if reads != 0 {
			t.Errorf("%d requests for what is in the cache", reads)
		}
		write("{}")
		if now, err := follow.Rotation(); now != nil || err == nil {
			t.Errorf("malformed state: %+v, %v, want an error", now, err)
		}
		if c.cross() != nil || c.maxLifetime(old, "worker-1") != 0 {
			t.Error("a malformed state changes what kubejoin serves or signs")
		}
		must.OK(t, secrets.Delete(t.Context(), clusterstore.KeyName, metav1.DeleteOptions{}))
		if err := c.publish(t.Context()); err == nil || !strings.Contains(err.Error(), "restore the Secret") {
			t.Errorf("lost Secret: got %v, want what a person can do", err)
		}
		if events = slices.Compact(events); !slices.Equal(events, []string{"CARotationEdited"}) {
			t.Errorf("Events %q", events)
		}
		if follow.Edited("x"); events[len(events)-1] != "ClusterInfoEdited" {
			t.Errorf("Events %q", events)
		}
	})
}
