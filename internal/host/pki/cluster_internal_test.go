package pki

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/signer/rotation/clusterstore"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// State must return an error for a state that is malformed or of another CA, because its ID becomes the name of a folder.
func TestState(t *testing.T) {
	f := newFixture(t, rotation.Cluster, true)
	good := string(must.Value(rotation.Encode(f.rotation))(t))
	for _, test := range []struct {
		data map[string]string
		want string // part of the error
	}{
		{map[string]string{"cluster": good}, ""},
		{map[string]string{"cluster": good, "of-a-later-version": "x"}, ""},
		{map[string]string{"etcd": good}, "etcd"},
		{map[string]string{"cluster": strings.Replace(good, f.rotation.ID, "../../0123456789", 1)}, "16 hexadecimal digits"},
		{map[string]string{"cluster": strings.Replace(good, `"stage"`, `"more":1,"stage"`, 1)}, "more"},
	} {
		client := fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: clusterstore.Namespace, Name: clusterstore.Name}, Data: test.data})
		all, err := State(t.Context(), client)
		if test.want == "" && (err != nil || len(all) != 1 || all[rotation.Cluster].ID != f.rotation.ID) || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%q: got %v, %v", test.data, all, err)
		}
	}
	client := fake.NewClientset()
	if all, err := State(t.Context(), client); err != nil || len(all) > 0 {
		t.Errorf("without a rotation: got %v, %v", all, err)
	}
	client.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("configmaps"), clusterstore.Name, nil)
	})
	if _, err := State(t.Context(), client); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "apply rbac.yaml of deploy/manifests of this version, or upgrade the chart") {
		t.Errorf("without the right: got %v, want the next step", err)
	}
}

// leaseClient returns a client of an API server whose clock is behind. It handles dry runs itself, because a fake client
// would store their objects.
func leaseClient(behind time.Duration, objects ...runtime.Object) *fake.Clientset {
	client := fake.NewClientset(objects...)
	client.PrependReactor("create", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create, ok := action.(clienttesting.CreateActionImpl)
		dry := ok && len(create.CreateOptions.DryRun) > 0
		return dry, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(time.Now().Add(-behind))}}, nil
	})
	return client
}

// Only one control plane at a time may restart. If it was killed, the others may restart after its Lease has expired.
func TestLockIsOfOneHolder(t *testing.T) {
	client := leaseClient(0)
	var logged []string
	log := func(line string) { logged = append(logged, line) }
	release := must.Value(Lock(client, "cp-1", time.Hour, log)(t.Context()))(t)
	again := must.Value(Lock(client, "cp-1", time.Hour, log)(t.Context()))(t) // after a crash
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := Lock(client, "cp-2", time.Hour, func(line string) { log(line); cancel() })(ctx); err == nil || !strings.Contains(strings.Join(logged, ""), "cp-1 restarts its control plane") {
		t.Errorf("got %v, %q, want cp-2 to wait", err, logged)
	}
	again()
	release()
	if _, err := client.CoordinationV1().Leases(leaseNamespace).Get(t.Context(), leaseName, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after release: %v, want no Lease", err)
	}
	late := must.Value(Lock(client, "cp-3", time.Hour, log)(t.Context()))(t)
	lease := must.Value(client.CoordinationV1().Leases(leaseNamespace).Get(t.Context(), leaseName, metav1.GetOptions{}))(t)
	lease.Spec.RenewTime.Time = time.Now().Add(-2 * time.Hour) // the Lease has expired
	must.Value(client.CoordinationV1().Leases(leaseNamespace).Update(t.Context(), lease, metav1.UpdateOptions{}))(t)
	release = must.Value(Lock(client, "cp-2", time.Hour, log)(t.Context()))(t)
	late()
	if _, err := client.CoordinationV1().Leases(leaseNamespace).Get(t.Context(), leaseName, metav1.GetOptions{}); err != nil {
		t.Errorf("cp-3 released the Lease of cp-2: %v", err)
	}
	release()
}

// Many add-ons may write Leases. So a foreign Lease must not delay the restart of a control plane for longer than a
// restart takes.
func TestLockBelievesNoLeaseForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		holder, seconds, renewed := "evil", int32(math.MaxInt32), metav1.NewMicroTime(time.Now().Add(24*time.Hour))
		client := leaseClient(0, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: leaseNamespace, Name: leaseName, ResourceVersion: "1"},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &renewed},
		})
		var logged []string
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 2*longest)
		defer cancel()
		must.Value(Lock(client, "cp-1", time.Minute, func(line string) { logged = append(logged, line) })(ctx))(t)()
		if took := time.Since(began); took < longest || took > longest+time.Minute {
			t.Errorf("waited for %s, want %s", took, longest)
		}
		want := "waiting: evil restarts its control plane, until " + began.Add(longest).UTC().Format(time.RFC3339) + " at most; if it is gone: kubectl -n kube-system delete lease kubejoin-ca-apply"
		if len(logged) < 50 || len(logged) > 61 || logged[0] != want || logged[len(logged)-1] != want {
			t.Errorf("logged %d lines, %q to %q, want %q once a minute", len(logged), logged[0], logged[len(logged)-1], want)
		}
	})
}

// A host whose clock is ahead must not take the Lease of another host too early. It must use the clock of the API server.
func TestLockUsesClockOfAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ahead, life = 11 * time.Minute, 10 * time.Minute
		holder, seconds, renewed := "cp-2", int32(life/time.Second), metav1.NewMicroTime(time.Now().Add(-ahead))
		client := leaseClient(ahead, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: leaseNamespace, Name: leaseName, ResourceVersion: "1"},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &renewed},
		})
		began := time.Now()
		must.Value(Lock(client, "cp-1", life, func(string) {})(t.Context()))(t)()
		if took := time.Since(began); took < life || took > life+time.Minute {
			t.Errorf("waited for %s, want %s", took, life)
		}
	})
}

// API servers do not respond while another control plane restarts etcd, so Lock must wait. If rights are missing,
// Lock must return an error at once.
func TestLockWaitsForAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := leaseClient(0)
		fails, failure := 3, error(apierrors.NewServiceUnavailable("etcd has no leader"))
		forbidden := apierrors.NewForbidden(coordinationv1.Resource("leases"), leaseName, nil)
		client.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			fails--
			if fails == 0 { // the API server starts, and has read no roles yet
				return true, nil, forbidden
			}
			return fails > 0, nil, failure
		})
		lock := Lock(client, "cp-1", time.Hour, func(string) {})
		must.Value(lock(t.Context()))(t)()
		if fails >= 0 {
			t.Error("the API server was available")
		}
		began := time.Now()
		fails = 1000
		if _, err := lock(t.Context()); !errors.Is(err, failure) || time.Since(began) > 2*outage {
			t.Errorf("got %v after %s, want the last error after %s", err, time.Since(began), outage)
		}
		began, failure = time.Now(), forbidden
		if _, err := lock(t.Context()); !errors.Is(err, failure) || time.Since(began) > 0 {
			t.Errorf("got %v after %s, want the error at once", err, time.Since(began))
		}
	})
}

func TestPublish(t *testing.T) {
	f := newFixture(t, rotation.Cluster, true)
	done := must.Value(f.Apply(t.Context(), f.at(rotation.Trust)))(t)
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1", Annotations: map[string]string{"a": "b"}}})
	node := must.Value(f.NodeName())(t)
	must.OK(t, Publish(t.Context(), client, node, done.Report))
	object := must.Value(client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{}))(t)
	report, err := rotation.DecodeReport(object.Annotations[rotation.Annotation(rotation.Cluster)])
	if err != nil || report.Stage != rotation.Trust || len(report.Files) != 2 || object.Annotations["a"] != "b" {
		t.Errorf("got %+v, %v", report, err)
	}
}

// The next control plane may restart the API server while a host reports, so Publish must wait. It must return other
// errors at once.
func TestPublishWaitsForAPIServer(t *testing.T) {
	f := newFixture(t, rotation.Cluster, true)
	report := must.Value(f.Apply(t.Context(), f.at(rotation.Trust)))(t).Report
	forbidden := apierrors.NewForbidden(corev1.Resource("nodes"), "worker-1", nil)
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1"}})
		failures := []error{syscall.ECONNREFUSED, apierrors.NewServiceUnavailable("stops"), forbidden} // no roles read yet
		client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			if len(failures) == 0 {
				return false, nil, nil
			}
			err := failures[0]
			failures = failures[1:]
			return true, nil, err
		})
		must.OK(t, Publish(t.Context(), client, "worker-1", report))
		for _, test := range []struct {
			failure error
			most    time.Duration
		}{{forbidden, 0}, {apierrors.NewUnauthorized("no"), 0}, {syscall.ECONNREFUSED, outage + time.Minute}} {
			began := time.Now()
			failures = slices.Repeat([]error{test.failure}, 1000)
			if err := Publish(t.Context(), client, "worker-1", report); !errors.Is(err, test.failure) || time.Since(began) > test.most {
				t.Errorf("got %v after %s, want %v within %s", err, time.Since(began), test.failure, test.most)
			}
		}
	})
}
