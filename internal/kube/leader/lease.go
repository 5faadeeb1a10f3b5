package leader

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// lease is the LeaseLock of one term. In addition to a LeaseLock, it
//   - creates a missing namespace, if RBAC allows it (the manifests create the namespace, and do not
//     allow it);
//   - records when this replica last renewed the Lease, and reports to led who holds it;
//   - stops leading at once when another replica holds the Lease; client-go goes on until
//     renewDeadline;
//   - does not release a Lease that another replica holds; client-go does that when it was stopped
//     in the middle of a renewal.
type lease struct {
	*resourcelock.LeaseLock
	client  kubernetes.Interface
	led     *leadership
	renewed *atomic.Pointer[time.Time]
	lost    func()

	holder string // of the last read or write
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
	if apierrors.IsNotFound(err) { // not found after a create: the namespace is missing
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
		return fmt.Errorf("the namespace of the Lease does not exist, create it with 'kubectl create namespace %s': %w", namespace, err)
	}
	return nil
}

func (l *lease) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if r.HolderIdentity == "" && l.holder != l.Identity() {
		return fmt.Errorf("the Lease is held by %q, cannot release it", l.holder)
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

// annotating is the client of a LeaseLock, which cannot set annotations itself.
type annotating struct {
	coordinationclient.LeasesGetter
	annotations func() map[string]string
}

func (a annotating) Leases(namespace string) coordinationclient.LeaseInterface {
	return annotatingLeases{a.LeasesGetter.Leases(namespace), a.annotations}
}

type annotatingLeases struct {
	coordinationclient.LeaseInterface
	annotations func() map[string]string
}

func (a annotatingLeases) Update(ctx context.Context, lease *coordinationv1.Lease, options metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	if a.annotations != nil {
		for name, value := range a.annotations() {
			if delete(lease.Annotations, name); value != "" {
				metav1.SetMetaDataAnnotation(&lease.ObjectMeta, name, value)
			}
		}
	}
	return a.LeaseInterface.Update(ctx, lease, options)
}

// errNotLeading is the error of a write that Fence stops.
var errNotLeading = errors.New("write not sent: the Lease was not renewed in time, and another replica may be the leader")

// Fence stops writes unless this replica certainly holds the Lease. A replica that was suspended with its machine continues
// where it stopped. Without Fence, it could approve a CSR based on outdated reads. A conditional write does not prevent that,
// because a decision also depends on Nodes, tokens and access reviews.
func (e *Election) Fence(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodGet || r.Method == http.MethodHead || e.holds() {
			return next.RoundTrip(r)
		}
		if r.Body != nil {
			_ = r.Body.Close() // a RoundTripper must close it
		}
		return nil, errNotLeading
	})
}

func (e *Election) holds() bool {
	renewed := e.renewed.Load()
	if renewed == nil {
		return false
	}
	// Use the longer time, because the monotonic clock may stop while a machine sleeps.
	return max(time.Since(*renewed), time.Since(renewed.Round(0))) < renewDeadline
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
