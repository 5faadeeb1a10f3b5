package csr

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/foreign"
	"github.com/kubejoin/kubejoin/internal/outage"
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

// DefaultWorkers is how many requests are handled at once unless Controller.Workers says
// otherwise. They wait for the API server most of the time.
const DefaultWorkers = 64

// How long a request waits before it is looked at again.
const (
	// After a failure, and while a rule waits for a fact.
	firstRetry, lastRetry = 200 * time.Millisecond, 15 * time.Second
	// While its requester lacks a permission that may still be given. Each look is a
	// SubjectAccessReview, and such requests stay for a day: kube-controller-manager goes up
	// to 1000 s as well.
	firstPermissionRetry, lastPermissionRetry = time.Second, 1000 * time.Second
	// handleTimeout ends what an API server does not answer.
	handleTimeout = time.Minute
	// probeTimeout is the same for the question whether it is there.
	probeTimeout = 10 * time.Second
)

// A Controller approves and signs CSR objects. One worker does both for a request, one after
// the other, with the objects that the API server returns and without waiting for the cache.
type Controller struct {
	// Client talks to the API server. Its rate limits are the controller's.
	Client kubernetes.Interface
	// Informer is the view of CSR objects, see [NewInformer]; the caller runs it. Nil is one
	// of the controller's own.
	Informer cache.SharedIndexInformer
	// Authority decides and signs. Its Facts usually are [Facts].
	Authority *signer.Authority
	// Approve lets the authority's rules decide pending requests.
	Approve bool
	// Sign issues certificates for approved requests of the authority's signers, whoever
	// approved them.
	Sign bool
	// Shadow decides and says in the log and in kubejoin_csr_shadow_total what would be done,
	// and writes nothing. The authority's Nodes are to be [admission.Nodes.DryRun], and it
	// is to have no Record.
	Shadow bool
	// Again hints that requests which wait may be decided now, because what the authority goes
	// by has changed. Nil never does.
	Again <-chan struct{}
	// SignedByOther is told of each certificate that another signer wrote for one of the
	// authority's signers, whose checks did not apply then; nil is nobody.
	SignedByOther func(signerName, writer string)
	// Workers is how many requests are handled at once; zero is [DefaultWorkers].
	Workers int
	// Logger is told what happens to requests; nil is nobody.
	Logger *slog.Logger
	// Registerer has the kubejoin_csr_* metrics; nil counts nothing.
	Registerer prometheus.Registerer
}

// step is how far a request has got by the hand of this process. The cache may lag behind it.
type step int

const (
	approved step = iota + 1
	finished
)

// handler is a Controller that runs.
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

	mu         sync.Mutex
	steps      map[types.UID]step
	written    map[types.UID][][]byte // certificates whose fate is not known yet
	lastReason map[types.UID]string   // the reason to wait that was said last
}

// Run handles requests until ctx ends, and returns nil then. It returns an error only if it
// cannot begin.
func (c Controller) Run(ctx context.Context) error {
	if c.Client == nil || c.Authority == nil {
		return errors.New("CSR controller: want a client and an authority")
	}
	if c.Sign {
		if err := c.Authority.Check(); err != nil {
			return fmt.Errorf("CSR controller: %w", err)
		}
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
		recorder:          cleanEvents{events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: FieldManager})},
		store:             informer.GetStore(),
		byNode:            informer.GetIndexer(),
		queue:             workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[item](firstRetry, lastRetry)),
		fair:              newFairQueue(),
		permissionBackoff: workqueue.NewTypedItemExponentialFailureRateLimiter[item](firstPermissionRetry, lastPermissionRetry),
		steps:             map[types.UID]step{},
		written:           map[types.UID][][]byte{},
	}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	defer h.queue.ShutDown()

	if _, found := h.byNode.GetIndexers()[byNode]; !found { // an informer of the caller's own
		_ = informer.AddIndexers(nodeIndex) // fails on an informer that has stopped, and so does AddEventHandler
	}
	registration, err := informer.AddEventHandler(h.handlers())
	if err != nil {
		if ctx.Err() != nil { // an informer that has stopped with it takes no handler
			return nil
		}
		return fmt.Errorf("CSR controller: %w", err)
	}
	defer func() { _ = informer.RemoveEventHandler(registration) }() // fails on an informer that has stopped
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return nil
	}
	workers := c.Workers
	if workers <= 0 {
		workers = DefaultWorkers
	}
	for range workers {
		running.Go(func() { h.work(ctx) })
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

// retryAll queues all requests that there is something to do about, as if they were new.
func (h *handler) retryAll() {
	for _, obj := range h.store.List() {
		if csr, ok := obj.(*certificates.CertificateSigningRequest); ok && h.needsWork(csr) {
			h.mu.Lock()
			delete(h.lastReason, csr.UID)
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
				// What was issued before this process began is not reported: every restart
				// would do it again.
				h.observe(csr, !initial && issued(csr))
			}
		},
		UpdateFunc: func(before, now any) {
			old, ok := before.(*certificates.CertificateSigningRequest)
			csr, ok2 := now.(*certificates.CertificateSigningRequest)
			if ok && ok2 {
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

// observe queues a request that there is something to do about, and notices one that has just
// been issued.
func (h *handler) observe(csr *certificates.CertificateSigningRequest, justIssued bool) {
	if justIssued && !h.Shadow {
		h.noticeIssued(csr)
	}
	if h.needsWork(csr) {
		h.queue.Add(itemOf(csr))
	}
}

// needsWork reports whether there is something to do about a request, as far as it can be seen.
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

// signs reports whether certificates for this request are issued here.
func (h *handler) signs(csr *certificates.CertificateSigningRequest) bool {
	_, ok := h.Authority.Signer(csr.Spec.SignerName)
	return h.Sign && ok
}

// feed lets what is due wait for its turn.
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

func (h *handler) work(ctx context.Context) {
	for {
		i, ok := h.fair.next()
		if !ok || ctx.Err() != nil {
			return
		}
		h.workOn(ctx, i)
		h.fair.done(i)
		h.queue.Done(i)
	}
}

func (h *handler) workOn(runCtx context.Context, i item) {
	ctx, cancel := context.WithTimeout(runCtx, handleTimeout)
	defer cancel()
	next, err := h.sync(ctx, i.name)
	if stopped(ctx) {
		return
	}
	if err != nil {
		h.log.Error("certificate request failed, will be tried again", "csr", foreign.Text(i.name, foreign.MaxName), "failures", h.queue.NumRequeues(i)+1, "error", foreign.Text(err.Error(), foreign.MaxMessage))
	}
	if err != nil || next == retrySoon {
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

// awaitServer keeps a worker until the API server answers at all. Otherwise each request that
// waits would find out for itself, and have backed off for long by the time it is back. What it
// asks for has nothing to do with the request that failed: no single one holds up the others.
func (h *handler) awaitServer(ctx context.Context) {
	_ = outage.Wait(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		_, err := h.Client.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{Limit: 1})
		return err
	}, nil)
}

// stopped reports whether the controller ends: what fails then is no failure.
func stopped(ctx context.Context) bool { return errors.Is(ctx.Err(), context.Canceled) }

func (h *handler) mark(uid types.UID, s step) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.steps[uid] = s
}

func (h *handler) step(uid types.UID) step {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.steps[uid]
}

func (h *handler) forget(csr *certificates.CertificateSigningRequest) {
	h.mu.Lock()
	delete(h.steps, csr.UID)
	delete(h.written, csr.UID)
	delete(h.lastReason, csr.UID)
	h.mu.Unlock()
	h.queue.Forget(itemOf(csr))
	h.permissionBackoff.Forget(itemOf(csr))
}
