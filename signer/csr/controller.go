package csr

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/batch"
	"github.com/kubejoin/kubejoin/internal/kube/outage"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/prometheus/client_golang/prometheus"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
)

// maxInProgress limits the requests in progress at any latency. By default, kube-apiserver handles
// about 245 requests of service accounts at once, and queues 300 more of one service account (API Priority and
// Fairness). Beyond that it returns status 429.
const maxInProgress = 512

// Backoff and timeouts of a request.
const (
	// Backoff after a failure, and while a rule waits for a fact.
	firstRetry, lastRetry = 200 * time.Millisecond, 15 * time.Second
	// Backoff while the requester lacks a permission that an administrator may still grant, or while the policy of the
	// signer process refuses the request. Each attempt is a SubjectAccessReview, and such requests exist for a day.
	// kube-controller-manager also backs off up to 1000 s.
	firstPermissionRetry, lastPermissionRetry = time.Second, 1000 * time.Second
	// handleTimeout limits the time that one request is in progress.
	handleTimeout = time.Minute
	// probeTimeout limits the time of one probe of the API server.
	probeTimeout = 10 * time.Second
)

// A Controller approves and signs CSR objects. One goroutine first approves a request and then signs it. It
// uses the objects that the API server returns and does not wait for the cache. The latency of the API server
// determines how many requests are in progress.
type Controller struct {
	// Client talks to the API server. Its rate limits apply to the controller.
	Client kubernetes.Interface
	// Informer caches CSR objects, see [NewInformer]. The caller runs it. If it is nil, the controller runs
	// its own.
	Informer cache.SharedIndexInformer
	// Authority decides and signs. Its Facts are usually [Facts].
	Authority *signer.Authority
	// With Approve, the authority's rules decide pending requests.
	Approve bool
	// Sign issues certificates for approved requests of the authority's signers, regardless of who
	// approved them.
	Sign bool
	// Shadow makes the controller decide without writing to the cluster. It only logs what it would do, and
	// counts it in kubejoin_csr_shadow_total. The authority's Nodes must be [admission.Nodes.DryRun], and its
	// Record must be nil.
	Shadow bool
	// Again receives a hint when the authority's configuration has changed, so that waiting requests may be
	// decided now. Nil means no hints.
	Again <-chan struct{}
	// SignedByOther, if set, is called for each certificate that another signer issued for one of the
	// authority's signers. The authority's checks did not apply to it.
	SignedByOther func(signerName, writer string)
	// Logger logs what happens to requests; nil disables logging.
	Logger *slog.Logger
	// Registerer registers the kubejoin_csr_* metrics; nil disables them.
	Registerer prometheus.Registerer
}

// key identifies an object. It includes the name, because client-go's fake client sets no UID.
type key struct {
	name string
	uid  types.UID
}

func keyOf(csr *certificates.CertificateSigningRequest) key { return key{csr.Name, csr.UID} }

// step is how far this process has handled a request. The cache may lag behind it.
type step int

const (
	approved step = iota + 1
	finished
)

// handler is a running Controller.
type handler struct {
	Controller
	log               *slog.Logger
	counts            instruments
	recorder          record.EventRecorder
	store             cache.Store
	byNode            cache.Indexer
	queue             workqueue.TypedRateLimitingInterface[item]
	fair              *fairQueue
	permissionBackoff workqueue.TypedRateLimiter[item]
	probes            batch.Queue[struct{}, struct{}]

	mu         sync.Mutex
	steps      map[key]step
	written    map[key][][]byte // certificates of writes in progress, and of writes without a response
	lastReason map[key]string   // the last reported reason to wait
}

// Run handles requests until ctx ends, and then returns nil. It returns an error only if it cannot start.
func (c Controller) Run(ctx context.Context) error {
	if c.Client == nil || c.Authority == nil {
		return errors.New("CSR controller: want a client and an authority")
	}
	var running sync.WaitGroup
	defer running.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	informer := c.Informer
	if informer == nil {
		informer = NewInformer(c.Client)
		running.Go(func() { informer.RunWithContext(ctx) })
	}

	events := record.NewBroadcaster(record.WithContext(ctx))
	defer events.Shutdown()
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: c.Client.CoreV1().Events("")})
	h := &handler{
		Controller:        c,
		log:               c.Logger,
		counts:            newInstruments(c.Registerer),
		recorder:          events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: FieldManager}),
		store:             informer.GetStore(),
		byNode:            informer.GetIndexer(),
		queue:             workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[item](firstRetry, lastRetry)),
		permissionBackoff: workqueue.NewTypedItemExponentialFailureRateLimiter[item](firstPermissionRetry, lastPermissionRetry),
		steps:             map[key]step{},
		written:           map[key][][]byte{},
	}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	defer h.queue.ShutDown()
	h.fair = newFairQueue(maxInProgress, func(i item) { running.Go(func() { h.work(ctx, i) }) })

	if _, found := h.byNode.GetIndexers()[byNode]; !found { // the caller's informer
		_ = informer.AddIndexers(nodeIndex) // fails only on a stopped informer: AddEventHandler then fails, too
	}
	registration, err := informer.AddEventHandler(h.handlers())
	if err != nil {
		if ctx.Err() != nil { // the informer has stopped with ctx and accepts no handler
			return nil
		}
		return fmt.Errorf("CSR controller: %w", err)
	}
	defer func() { _ = informer.RemoveEventHandler(registration) }() // fails on a stopped informer
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return nil
	}
	running.Go(h.feed)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.Again:
			h.retryAll()
		}
	}
}

// retryAll queues all requests that need work as if they were new.
func (h *handler) retryAll() {
	for _, obj := range h.store.List() {
		if csr, ok := obj.(*certificates.CertificateSigningRequest); ok && h.needsWork(csr) {
			h.mu.Lock()
			delete(h.lastReason, keyOf(csr))
			h.mu.Unlock()
			i := itemOf(csr)
			h.queue.Forget(i)
			h.permissionBackoff.Forget(i)
			h.queue.Add(i)
		}
	}
}

func itemOf(csr *certificates.CertificateSigningRequest) item {
	return item{csr.Spec.Username, csr.Name}
}

func (h *handler) handlers() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, initial bool) {
			if csr, ok := obj.(*certificates.CertificateSigningRequest); ok {
				// Do not report certificates issued before this process started. Otherwise every restart would
				// report them again.
				h.observe(csr, !initial && issued(csr))
			}
		},
		UpdateFunc: func(before, now any) {
			old, ok := before.(*certificates.CertificateSigningRequest)
			csr, ok2 := now.(*certificates.CertificateSigningRequest)
			if ok && ok2 {
				if old.UID != csr.UID { // the object was deleted and created again; a relist shows only the new object
					h.forget(old)
				}
				h.observe(csr, issued(csr) && (!issued(old) || old.UID != csr.UID))
			}
		},
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if csr, ok := obj.(*certificates.CertificateSigningRequest); ok {
				h.forget(csr)
			}
		},
	}
}

// observe queues a request that needs work, and reports a request whose certificate has just been issued.
func (h *handler) observe(csr *certificates.CertificateSigningRequest, justIssued bool) {
	if justIssued && !h.Shadow {
		h.noticeIssued(csr)
	}
	if h.needsWork(csr) {
		h.queue.Add(itemOf(csr))
	}
}

// needsWork reports whether the cached request needs work.
func (h *handler) needsWork(csr *certificates.CertificateSigningRequest) bool {
	switch {
	case over(csr):
		return false
	case has(csr, certificates.CertificateApproved):
		return h.signs(csr)
	default:
		return h.Approve
	}
}

// signs reports whether this controller issues certificates for the request.
func (h *handler) signs(csr *certificates.CertificateSigningRequest) bool {
	_, ok := h.Authority.Signer(csr.Spec.SignerName)
	return h.Sign && ok
}

// feed moves items that are due from the workqueue to the fairQueue, which starts them.
func (h *handler) feed() {
	defer h.fair.close()
	for {
		i, shutdown := h.queue.Get()
		if shutdown {
			return
		}
		h.fair.push(i)
	}
}

func (h *handler) work(ctx context.Context, i item) {
	if ctx.Err() == nil {
		h.workOn(ctx, i)
	}
	h.fair.done(i)
	h.queue.Done(i)
}

func (h *handler) workOn(runCtx context.Context, i item) {
	ctx, cancel := context.WithTimeout(runCtx, handleTimeout)
	defer cancel()
	next, err := h.sync(ctx, i.name)
	if stopped(ctx) {
		return
	}
	if err != nil {
		h.log.Error("certificate request failed, will be retried", "csr", safetext.Text(i.name, safetext.MaxName), "failures", h.queue.NumRequeues(i)+1, "error", safetext.Text(err.Error(), safetext.MaxMessage))
	}
	if errors.Is(err, signer.ErrOrderRefused) { // its retries use up the rate at the signer process, too
		next = retryLater
	} else if err != nil || next == retrySoon {
		h.queue.AddRateLimited(i)
		if outage.Is(err) {
			h.awaitServer(runCtx)
		}
		return
	}
	h.queue.Forget(i)
	if next == retryLater {
		h.queue.AddAfter(i, h.permissionBackoff.When(i))
		return
	}
	h.permissionBackoff.Forget(i)
}

// awaitServer blocks until the API server responds. Its caller stays in progress meanwhile. Once as many requests
// have failed as may be in progress, no other request starts. Otherwise each queued request would fail, and would
// be in a long backoff when the API server works again. The probe does not depend on the request that failed, so no
// single request can block the others. All callers wait for the same probe.
func (h *handler) awaitServer(ctx context.Context) {
	_ = h.probes.Do(ctx, struct{}{}, struct{}{}, func(ctx context.Context, _ []struct{}) { // fails when ctx ends
		_ = outage.Wait(ctx, func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, probeTimeout)
			defer cancel()
			_, err := h.Client.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{Limit: 1})
			return err
		}, func(err error) {
			if err != nil {
				h.fair.slowDown()
			}
		})
	})
}

// stopped reports whether the controller is stopping. Its errors are then not counted as failures.
func stopped(ctx context.Context) bool { return errors.Is(ctx.Err(), context.Canceled) }

func (h *handler) mark(k key, s step) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.steps[k] = s
}

func (h *handler) step(k key) step {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.steps[k]
}

func (h *handler) forget(csr *certificates.CertificateSigningRequest) {
	h.mu.Lock()
	delete(h.steps, keyOf(csr))
	delete(h.written, keyOf(csr))
	delete(h.lastReason, keyOf(csr))
	h.mu.Unlock()
	h.queue.Forget(itemOf(csr))
	h.permissionBackoff.Forget(itemOf(csr))
}
