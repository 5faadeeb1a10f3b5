package csr

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/kubejoin/kubejoin/internal/loop"
	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/prometheus/client_golang/prometheus"
	certificates "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Retention is how long a Cleaner keeps a request, by its state. Zero means kube-controller-manager's time,
// except for denied requests: five minutes instead of an hour. A kubelet that is denied creates about a hundred
// requests an hour. A request whose certificate has expired is deleted at once.
type Retention struct {
	// Issued is how long after its approval an issued request is kept; zero is 1 h.
	Issued time.Duration
	// Denied is how long after its denial a request is kept; zero is 5 min.
	Denied time.Duration
	// Failed is how long after its failure a request is kept; zero is 1 h.
	Failed time.Duration
	// Pending is how long after its creation an undecided request is kept; zero is 24 h.
	Pending time.Duration
	// Unissued is how long after its approval a request without certificate is kept; zero is
	// 24 h.
	Unissued time.Duration
}

func (r Retention) withDefaults() Retention {
	return Retention{
		Issued: cmp.Or(r.Issued, time.Hour), Denied: cmp.Or(r.Denied, 5*time.Minute), Failed: cmp.Or(r.Failed, time.Hour),
		Pending: cmp.Or(r.Pending, 24*time.Hour), Unissued: cmp.Or(r.Unissued, 24*time.Hour),
	}
}

// Due returns when a request is due for deletion, and its state: "issued", "expired", "denied", "failed",
// "pending" or "unissued". The zero time means never.
func (r Retention) Due(csr *certificates.CertificateSigningRequest) (due time.Time, state string) {
	r = r.withDefaults()
	at := func(t time.Time, after time.Duration, s string) {
		if t.IsZero() {
			return
		}
		if t = t.Add(after); due.IsZero() || t.Before(due) {
			due, state = t, s
		}
	}
	if len(csr.Status.Conditions) == 0 {
		at(csr.CreationTimestamp.Time, r.Pending, "pending")
	}
	for _, c := range csr.Status.Conditions {
		switch updated := c.LastUpdateTime.Time; c.Type {
		case certificates.CertificateDenied:
			at(updated, r.Denied, "denied")
		case certificates.CertificateFailed:
			at(updated, r.Failed, "failed")
		case certificates.CertificateApproved:
			if !issued(csr) {
				at(updated, r.Unissued, "unissued")
				continue
			}
			at(updated, r.Issued, "issued")
			// The certificate is valid until the end of its last second.
			if cert := leaf(csr); cert != nil {
				at(cert.NotAfter, time.Second, "expired")
			}
		}
	}
	return due, state
}

// A Cleaner deletes finished requests as soon as they are due. kube-controller-manager deletes them once an
// hour.
type Cleaner struct {
	// Client talks to the API server.
	Client kubernetes.Interface
	// Informer caches CSR objects, see [NewInformer]. The caller runs it.
	Informer cache.SharedIndexInformer
	// Retention is how long requests are kept.
	Retention Retention
	// Logger logs deletions; nil disables logging.
	Logger *slog.Logger
	// Registerer registers kubejoin_csr_cleaned_total and the metrics of the loop; nil disables them.
	Registerer prometheus.Registerer
}

// Run cleans until ctx ends, and then returns nil.
func (c Cleaner) Run(ctx context.Context) error {
	if c.Client == nil || c.Informer == nil {
		return errors.New("CSR cleaner: want a client and an informer")
	}
	log := c.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if !cache.WaitForCacheSync(ctx.Done(), c.Informer.HasSynced) {
		return nil
	}
	cleaned := metrics.Counter(c.Registerer, "kubejoin_csr_cleaned_total", "CSRs that kubejoin deleted, by their state.", "state")
	r := c.Retention.withDefaults()
	return loop.Loop{
		Name: "csr-cleaner",
		Step: func(ctx context.Context) (time.Time, error) { return c.step(ctx, c.Informer.GetStore(), log, cleaned) },
		// The loop needs no hint. Requests are kept for at least one sweep after each change, so the next sweep
		// finds them in time.
		Sweep:      min(loop.DefaultSweep, r.Issued, r.Denied, r.Failed, r.Pending, r.Unissued),
		Logger:     c.Logger,
		Registerer: c.Registerer,
	}.Run(ctx)
}

// step deletes requests that are due, and returns when the next request is due. A failed deletion does not stop
// the others.
func (c Cleaner) step(ctx context.Context, store cache.Store, log *slog.Logger, cleaned *prometheus.CounterVec) (next time.Time, err error) {
	var errs []error
	for _, obj := range store.List() {
		csr, ok := obj.(*certificates.CertificateSigningRequest)
		if !ok {
			continue
		}
		due, state := c.Retention.Due(csr)
		if due.IsZero() {
			continue
		}
		if time.Now().Before(due) {
			if next.IsZero() || due.Before(next) {
				next = due
			}
			continue
		}
		if err := ctx.Err(); err != nil { // every call would fail
			return time.Time{}, err
		}
		err := c.Client.CertificatesV1().CertificateSigningRequests().Delete(ctx, csr.Name, metav1.DeleteOptions{
			// Do not delete a request that was created again or has changed. The next step checks it again.
			Preconditions: &metav1.Preconditions{UID: &csr.UID, ResourceVersion: &csr.ResourceVersion},
		})
		switch {
		case err == nil:
			cleaned.WithLabelValues(state).Inc()
			log.Info("certificate request deleted", "csr", safetext.Text(csr.Name, safetext.MaxName), "state", state, "due", due)
		case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		default:
			errs = append(errs, fmt.Errorf("deleting certificate request %q: %w", safetext.Text(csr.Name, safetext.MaxName), err))
		}
	}
	return next, errors.Join(errs...)
}
