package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// lease is the LeaseLock of one term. Beside what that does it
//   - makes its namespace where that is missing and permitted (in a cluster that was set up from
//     the manifests it is there, and kubejoin may not make any);
//   - knows since when the Lease is held for certain, and tells led who holds it;
//   - sees at once that another replica holds it, where client-go goes on leading until
//     renewDeadline;
//   - does not give up a Lease that another replica holds by now, which client-go does when it
//     was stopped in the middle of a renewal.
type lease struct {
	*resourcelock.LeaseLock
	client  kubernetes.Interface
	led     *leadership
	renewed *atomic.Pointer[time.Time]
	lost    func()

	holder string // as read last
}

func (l *lease) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	r, raw, err := l.LeaseLock.Get(ctx)
	if err != nil {
		return r, raw, err
	}
	l.holder = r.HolderIdentity
	l.led.read(l.holder, raw, time.Now())
	if l.holder != l.Identity() && l.renewed.Swap(nil) != nil {
		l.lost()
	}
	return r, raw, nil
}

func (l *lease) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	began := time.Now()
	err := l.LeaseLock.Create(ctx, r)
	if apierrors.IsNotFound(err) { // of a create, it is the namespace that is not found
		if err := l.createNamespace(ctx); err != nil {
			return err
		}
		err = l.LeaseLock.Create(ctx, r)
	}
	l.note(began, r, err)
	return err
}

func (l *lease) createNamespace(ctx context.Context) error {
	namespace := l.LeaseMeta.Namespace
	_, err := l.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("the Lease's namespace is missing, make it with 'kubectl create namespace %s': %w", namespace, err)
	}
	return nil
}

func (l *lease) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if r.HolderIdentity == "" && l.holder != l.Identity() {
		return fmt.Errorf("the Lease is held by %q, and not given up for it", l.holder)
	}
	began := time.Now()
	err := l.LeaseLock.Update(ctx, r)
	l.note(began, r, err)
	return err
}

func (l *lease) note(began time.Time, r resourcelock.LeaderElectionRecord, err error) {
	if err == nil {
		l.led.wrote(r.HolderIdentity, time.Now())
	}
	switch {
	case err != nil:
	case r.HolderIdentity == l.Identity():
		l.holder = r.HolderIdentity
		l.renewed.Store(&began)
	default:
		l.renewed.Store(nil)
	}
}

// errNotLeading is why a write was not sent.
var errNotLeading = errors.New("not sent: the Lease was not renewed in time, and another replica may lead by now")

// fence lets writes pass while the Lease is held for certain. A replica that was stopped, with
// its whole machine perhaps, goes on where it was when it is woken: it would write what it knew
// then, before it has learned that another one leads.
func (e *election) fence(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodGet || r.Method == http.MethodHead || e.holds() {
			return next.RoundTrip(r)
		}
		if r.Body != nil {
			_ = r.Body.Close() // as a RoundTripper has to
		}
		return nil, errNotLeading
	})
}

func (e *election) holds() bool {
	renewed := e.renewed.Load()
	if renewed == nil {
		return false
	}
	// Clocks differ in whether they go on while a machine sleeps: the later one counts.
	return max(time.Since(*renewed), time.Since(renewed.Round(0))) < renewDeadline
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
