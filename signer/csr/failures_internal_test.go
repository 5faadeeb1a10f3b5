package csr

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/revocationtest"
	"github.com/kubejoin/kubejoin/signer/revocation/rowlist"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	"github.com/prometheus/client_golang/prometheus/testutil"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
)

var errDown = errors.New("down")

// fails makes calls of a fake client fail. An empty subresource means the object itself.
func fails(c *fake.Clientset, verb, resource, subresource string, err error) {
	c.PrependReactor(verb, resource, func(a kubetesting.Action) (bool, runtime.Object, error) {
		return a.GetSubresource() == subresource, nil, err
	})
}

// testHandler is a handler that approves and signs with one rule. It also implements that rule, the record and the
// claims.
type testHandler struct {
	*handler
	client *fake.Clientset
	events *record.FakeRecorder
	err    error // error of the rule, the record and the claims

	verdict approval.Verdict
}

func newTestHandler(t *testing.T, objects ...*certificates.CertificateSigningRequest) *testHandler {
	t.Helper()
	ca := must.Value(signer.GenerateCA("x", time.Now(), 100*time.Hour))(t)
	h := &testHandler{client: fake.NewClientset(), events: record.NewFakeRecorder(10), verdict: approval.Approve}
	signers := must.Get(signer.KubernetesSigners(signer.Fixed(ca), time.Hour))
	s, store := signers[client], memdb.Open()
	s.Rules = []approval.Rule{h}
	signers[client] = s
	h.handler = &handler{
		Controller: Controller{
			Client: h.client, Approve: true, Sign: true,
			Authority: &signer.Authority{
				Signers: signer.FixedSigners(signers), Record: h,
				Nodes: &admission.Nodes{Tokens: store, Claims: storetest.Before(func() error { return h.err }, "Claims.Get").Claims(store.Claims())},
			},
		},
		log: slog.New(slog.DiscardHandler), counts: newInstruments(nil), recorder: h.events,
		store: cache.NewStore(cache.MetaNamespaceKeyFunc), byNode: cache.NewIndexer(cache.MetaNamespaceKeyFunc, nodeIndex), fair: newFairQueue(1, nil),
		queue:             workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[item](time.Hour, time.Hour)),
		permissionBackoff: workqueue.NewTypedItemExponentialFailureRateLimiter[item](time.Hour, time.Hour),
		steps:             map[key]step{}, written: map[key][][]byte{},
	}
	t.Cleanup(h.queue.ShutDown)
	for _, o := range objects {
		must.OK(t, h.store.Add(o))
		must.OK(t, h.client.Tracker().Add(o.DeepCopy()))
	}
	return h
}

func (h *testHandler) Name() string { return "test" }

func (h *testHandler) Decide(context.Context, approval.Request, approval.Facts) (approval.Decision, error) {
	return approval.Decision{Verdict: h.verdict, Reason: "Yes", Message: "yes"}, h.err
}

func (h *testHandler) Append(context.Context, issuance.Entry) error { return h.err }

// cachedRequest returns a CSR object of user jane for worker-1, as the cache has it.
func cachedRequest(t *testing.T, state string) *certificates.CertificateSigningRequest {
	t.Helper()
	r := nodeRequest(t, 0, client, "jane", "worker-1", state)
	r.Name, r.UID, r.CreationTimestamp = "csr-1", "u", metav1.Now()
	r.Spec.Usages = []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth}
	return r
}

// Only an operator can change the policy of the signer process, so the controller retries its refusal as rarely as a
// missing permission.
func TestBacksOffFromRefusalOfSignerProcess(t *testing.T) {
	for _, test := range []struct {
		err          error
		soon, seldom int
	}{{errDown, 1, 0}, {fmt.Errorf("remote: %w", signer.ErrOrderRefused), 0, 1}} {
		r := cachedRequest(t, "approved")
		h := newTestHandler(t, r)
		h.err = test.err
		h.workOn(t.Context(), itemOf(r))
		if soon, seldom := h.queue.NumRequeues(itemOf(r)), h.permissionBackoff.NumRequeues(itemOf(r)); soon != test.soon || seldom != test.seldom {
			t.Errorf("%v: %d retries soon and %d seldom, want %d and %d", test.err, soon, seldom, test.soon, test.seldom)
		}
	}
}

// An error means wait: if any call fails, the controller returns the error, writes no Failed condition and does not
// mark the request as finished. The retry succeeds.
func TestRetriesRequestAfterFailedCall(t *testing.T) {
	for name, test := range map[string]struct {
		state   string
		prepare func(*testHandler, *certificates.CertificateSigningRequest)
		fail    func(*testHandler)
		done    func(*certificates.CertificateSigningRequest) bool // after the retry
	}{
		"the rule": {fail: func(h *testHandler) { h.err = errDown }, done: issued},
		"the rule in shadow mode": {
			prepare: func(h *testHandler, _ *certificates.CertificateSigningRequest) { h.Shadow = true },
			fail:    func(h *testHandler) { h.err = errDown },
			done:    func(r *certificates.CertificateSigningRequest) bool { return len(r.Status.Conditions) == 0 },
		},
		"the approval": {fail: func(h *testHandler) { fails(h.client, "update", "*", "approval", errDown) }, done: issued},
		"the re-read of a request that was approved": {
			prepare: func(h *testHandler, r *certificates.CertificateSigningRequest) { h.mark(keyOf(r), approved) },
			fail:    func(h *testHandler) { fails(h.client, "get", "*", "", errDown) },
			done:    issued,
		},
		"the record":      {state: "approved", fail: func(h *testHandler) { h.err = errDown }, done: issued},
		"the certificate": {state: "approved", fail: func(h *testHandler) { fails(h.client, "update", "*", "status", errDown) }, done: issued},
		"the Failed condition": {
			state: "approved", done: isFailed,
			prepare: func(_ *testHandler, r *certificates.CertificateSigningRequest) { r.Spec.Usages = nil },
			fail:    func(h *testHandler) { fails(h.client, "update", "*", "status", errDown) },
		},
		"the record of a malformed request": {
			state: "approved", done: isFailed,
			prepare: func(_ *testHandler, r *certificates.CertificateSigningRequest) { r.Spec.Request = []byte("x") },
			fail:    func(h *testHandler) { h.err = errDown },
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := cachedRequest(t, test.state)
			h := newTestHandler(t)
			if test.prepare != nil {
				test.prepare(h, r)
			}
			must.OK(t, errors.Join(h.store.Add(r), h.client.Tracker().Add(r.DeepCopy())))
			working := h.client.ReactionChain
			test.fail(h)
			if _, err := h.sync(t.Context(), r.Name); !errors.Is(err, errDown) {
				t.Errorf("got error %v, want that of the failed call", err)
			}
			h.err, h.client.ReactionChain = nil, working
			now := func() *certificates.CertificateSigningRequest {
				t.Helper()
				return must.Value(h.client.CertificatesV1().CertificateSigningRequests().Get(t.Context(), r.Name, metav1.GetOptions{}))(t)
			}
			if o := now(); isFailed(o) || issued(o) || h.step(keyOf(r)) == finished {
				t.Errorf("after the failure: got status %+v, finished: %v", o.Status, h.step(keyOf(r)) == finished)
			}
			if _, err := h.sync(t.Context(), r.Name); err != nil {
				t.Errorf("retry: %v", err)
			}
			if o := now(); !test.done(o) {
				t.Errorf("after the retry: got status %+v", o.Status)
			}
		})
	}
}

// The limit of requests in progress follows the writes that succeed. A failed write, or a request that waits for a
// fact, may take no time, and must not change the limit.
func TestMeasuresSuccessfulWrites(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(*testHandler)
		want    bool
	}{
		"issued":                  {func(*testHandler) {}, true},
		"denied":                  {func(h *testHandler) { h.verdict = approval.Deny }, true},
		"waits":                   {func(h *testHandler) { h.verdict = approval.Wait }, false},
		"the approval failed":     {func(h *testHandler) { fails(h.client, "update", "*", "approval", errDown) }, false},
		"approved and not signed": {func(h *testHandler) { h.Sign = false }, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := cachedRequest(t, "")
				h := newTestHandler(t, r)
				h.client.PrependReactor("update", "*", func(kubetesting.Action) (bool, runtime.Object, error) {
					time.Sleep(time.Second)
					return false, nil, nil
				})
				test.prepare(h)
				_, _ = h.sync(t.Context(), r.Name) // one case fails
				if got := h.fair.pace.fastest == time.Second; got != test.want {
					t.Errorf("got a fastest write of %s", h.fair.pace.fastest)
				}
				h.fair.close()
			})
		})
	}
}

// One probe checks whether the API server responds, no matter how many requests have failed. Catches a restarting API
// server that gets hundreds of probes at once.
func TestRequestsShareProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const outage = time.Minute
		h, began := newTestHandler(t), time.Now()
		defer h.fair.close()
		h.fair.pace = pace{most: maxInProgress, limit: maxInProgress}
		var probes atomic.Int32
		h.client.PrependReactor("list", "certificatesigningrequests", func(kubetesting.Action) (bool, runtime.Object, error) {
			probes.Add(1)
			if time.Since(began) < outage {
				return true, nil, apierrors.NewServiceUnavailable("starting")
			}
			return false, nil, nil
		})
		var waiting sync.WaitGroup
		for range maxInProgress {
			waiting.Go(func() { h.awaitServer(t.Context()) })
		}
		waiting.Wait()
		if probes.Load() > 50 {
			t.Errorf("got %d probes, want at most 50", probes.Load())
		}
		if took := time.Since(began); took < outage || took > outage+10*time.Second {
			t.Errorf("waited %s for an outage of %s", took, outage)
		}
		if h.fair.pace.limit != leastInProgress {
			t.Errorf("got a limit of %d requests in progress after the outage, want %d", h.fair.pace.limit, leastInProgress)
		}
	})
}

func isFailed(r *certificates.CertificateSigningRequest) bool {
	return has(r, certificates.CertificateFailed)
}

// A request that is deleted or changed while the controller handles it must cause no error, Event or failure count.
func TestDeletedOrChangedRequestIsNoFailure(t *testing.T) {
	for _, state := range []string{"", "approved"} {
		h, r := newTestHandler(t), cachedRequest(t, state)
		if err := h.store.Add(r); err != nil { // only the cache still has it
			t.Fatal(err)
		}
		next, err := h.sync(t.Context(), r.Name)
		if n := testutil.CollectAndCount(h.counts.failures); next != noRetry || err != nil || len(h.events.Events) > 0 || n > 0 {
			t.Errorf("%q: got %v, %v, %d Events and %d failures, want none", state, next, err, len(h.events.Events), n)
		}
	}
	h := newTestHandler(t)
	if next, err := h.sync(t.Context(), "gone"); next != noRetry || err != nil {
		t.Errorf("deleted from the cache: got %v, %v, want no retry", next, err)
	}
	h = newTestHandler(t, cachedRequest(t, "approved"))
	fails(h.client, "update", "*", "status", apierrors.NewConflict(certificates.Resource("certificatesigningrequests"), "csr-1", errDown))
	next, err := h.sync(t.Context(), "csr-1")
	if n := testutil.CollectAndCount(h.counts.failures); next != retrySoon || err != nil || len(h.events.Events) > 0 || n > 0 {
		t.Errorf("changed: got %v, %v, %d Events and %d failures, want only a retry", next, err, len(h.events.Events), n)
	}
}

// An error after the controller was stopped is not counted and causes no Event.
func TestStoppingIsNoFailure(t *testing.T) {
	r := cachedRequest(t, "approved")
	r.Spec.Request = []byte("x")
	h := newTestHandler(t, r)
	fails(h.client, "update", "*", "status", errDown)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	_, err := h.sync(ctx, r.Name)
	if n := testutil.CollectAndCount(h.counts.failures); !errors.Is(err, errDown) || len(h.events.Events) > 0 || n > 0 {
		t.Errorf("got %v, %d Events and %d failures, want the error only", err, len(h.events.Events), n)
	}
}

// A renewal without its Node waits even if somebody has approved it. It is no failure.
func TestApprovedRenewalWaitsForNode(t *testing.T) {
	r := cachedRequest(t, "approved")
	r.Spec.Username, r.Spec.Groups = "system:node:worker-1", []string{"system:nodes"}
	h := newTestHandler(t, r)
	h.Authority.Nodes.Node = func(context.Context, string) (string, error) { return "", tokens.ErrNotFound }
	next, err := h.sync(t.Context(), r.Name)
	if n := testutil.CollectAndCount(h.counts.failures); next != retrySoon || err != nil || n > 0 || len(h.events.Events) != 1 {
		t.Fatalf("got %v, %v, %d failures and %d Events, want a retry and an Event", next, err, n, len(h.events.Events))
	}
	if e := <-h.events.Events; !strings.HasPrefix(e, "Normal "+admission.ReasonNodeNotFound) || !strings.Contains(e, "kubejoin retries until") {
		t.Errorf("got Event %q", e)
	}
}

// After its deadline a request is not retried, even if the rule still fails.
func TestStopsRetryingAtDeadline(t *testing.T) {
	r := cachedRequest(t, "")
	r.CreationTimestamp = metav1.NewTime(time.Now().Add(-2 * maxUndecided))
	h := newTestHandler(t, r)
	h.err = errDown
	if next, err := h.sync(t.Context(), r.Name); next != noRetry || err != nil || len(h.events.Events) != 1 {
		t.Errorf("got %v, %v, %d Events, want no retry and one Event", next, err, len(h.events.Events))
	}
}

// The Failed condition is final, so only a refusal may write it. Other errors are temporary.
func TestOnlyRefusalSetsFailedCondition(t *testing.T) {
	r := cachedRequest(t, "approved")
	h := newTestHandler(t, r)
	h.err = errDown // error of the record
	if err := h.refuse(t.Context(), r, approval.Request{}, approval.Refuse("no")); !errors.Is(err, errDown) || isFailed(r) {
		t.Errorf("got %v and status %+v, want no Failed condition", err, r.Status)
	}
}

func TestHandlesOnlyWhatIsEnabled(t *testing.T) {
	for name, test := range map[string]struct {
		approve, sign bool
		state, signer string
		want          bool
	}{
		"approves":          {approve: true, want: true},
		"does not approve":  {sign: true},
		"signs":             {sign: true, state: "approved", want: true},
		"does not sign":     {approve: true, state: "approved"},
		"signer of another": {sign: true, state: "approved", signer: "example.com/other"},
		"denied":            {approve: true, sign: true, state: "denied"},
		"issued":            {approve: true, sign: true, state: "issued"},
		"failed":            {approve: true, sign: true, state: "failed"},
	} {
		h, r := newTestHandler(t), cachedRequest(t, test.state)
		h.Approve, h.Sign = test.approve, test.sign
		if test.signer != "" {
			r.Spec.SignerName = test.signer
		}
		if got := h.needsWork(r); got != test.want {
			t.Errorf("%s: got wanted %v", name, got)
		}
	}
}

func TestRunRefusesIncompleteConfig(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	a := &signer.Authority{}
	lifetime := func(context.Context, WaitingRenewal) (time.Duration, bool) { return 0, false }
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{}, &certificates.CertificateSigningRequest{}, 0, nil)
	for name, run := range map[string]func(context.Context) error{
		"a controller without a client":     Controller{Authority: a, Informer: informer}.Run,
		"a controller without an authority": Controller{Client: fake.NewClientset()}.Run,
		"renewals without an informer":      Renewals{Lifetime: lifetime}.Run,
		"renewals without lifetimes":        Renewals{Informer: informer}.Run,
		"a cleaner without a client":        Cleaner{Informer: informer}.Run,
		"a cleaner without an informer":     Cleaner{Client: fake.NewClientset()}.Run,
	} {
		if err := run(ctx); err == nil {
			t.Errorf("%s: got no error from Run", name)
		}
	}
}

func TestCleanerKeepsRequestThatIsNeverDue(t *testing.T) {
	r := cachedRequest(t, "")
	r.CreationTimestamp = metav1.NewTime(time.Now().Add(-1000 * time.Hour))
	r.Status.Conditions = []certificates.CertificateSigningRequestCondition{{Type: "Noted"}}
	h := newTestHandler(t, r)
	next, err := Cleaner{Client: h.client}.step(t.Context(), h.store, h.log, h.counts.signed)
	if _, getErr := h.client.CertificatesV1().CertificateSigningRequests().Get(t.Context(), r.Name, metav1.GetOptions{}); !next.IsZero() || err != nil || getErr != nil {
		t.Errorf("got next run at %s, %v, %v", next, err, getErr)
	}
}

// After its context has ended, a cleaner makes no more calls, even if many requests are due.
func TestStoppedCleanerDeletesNothing(t *testing.T) {
	r := cachedRequest(t, "")
	r.CreationTimestamp = metav1.NewTime(time.Now().Add(-1000 * time.Hour))
	h := newTestHandler(t, r)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (Cleaner{Client: h.client}).step(ctx, h.store, h.log, h.counts.signed); !errors.Is(err, context.Canceled) || len(h.client.Actions()) > 0 {
		t.Errorf("got %v after calls %v, want none", err, h.client.Actions())
	}
	if _, err := (Cleaner{Client: h.client}).step(t.Context(), h.store, h.log, h.counts.signed); err != nil || len(h.client.Actions()) != 1 {
		t.Errorf("got %v after calls %v, want one call", err, h.client.Actions())
	}
}

// A caller may pass an informer whose index has requests without a certificate. They must not crash the controller.
func TestIgnoresIndexedRequestsWithoutCertificate(t *testing.T) {
	h := newTestHandler(t)
	h.byNode = cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{byNode: func(any) ([]string, error) { return []string{"worker-1"}, nil }})
	issued := nodeRequest(t, 0, client, "jane", "worker-1", "issued")
	der := must.Value(x509.CreateCertificate(rand.Reader, nodeTemplate(), nodeTemplate(), csrtest.NewKey().Public(), csrtest.NewKey()))(t)
	issued.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	other := cachedRequest(t, "")
	other.Name = "csr-other"
	must.OK(t, h.byNode.Add(other))
	h.noticeShared(issued)
	if len(h.events.Events) > 0 {
		t.Errorf("got Event %s, want none", <-h.events.Events)
	}
}

func nodeTemplate() *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "system:node:worker-1", Organization: []string{"system:nodes"}},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
}

// A caller may pass an informer that holds objects of other types. They must not crash the controllers.
func TestIgnoresObjectsOfOtherTypes(t *testing.T) {
	h, other := newTestHandler(t), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
	if err := errors.Join(h.store.Add(other), h.byNode.Add(other)); err != nil {
		t.Error(err)
	}
	if next, err := (Cleaner{Client: h.client}).step(t.Context(), h.store, h.log, h.counts.signed); !next.IsZero() || err != nil {
		t.Errorf("cleaner: got %s, %v", next, err)
	}
	if next, err := h.sync(t.Context(), "other"); next != noRetry || err != nil {
		t.Errorf("controller: got %v, %v", next, err)
	}
}

// An expiration of zero seconds must not select the default lifetime of the signer.
func TestRefusesNonPositiveExpiration(t *testing.T) {
	for _, seconds := range []int32{0, -1, -1 << 31} {
		r := cachedRequest(t, "")
		r.Spec.ExpirationSeconds = &seconds
		_, err := Request(r)
		if approval.Refused(err) == nil || !strings.Contains(err.Error(), "want a positive number") {
			t.Errorf("%d: %v", seconds, err)
		}
	}
}

// Only nodes renew. Malformed requests are skipped.
func TestWaitingRenewalsIgnoreOtherUsers(t *testing.T) {
	person := nodeRequest(t, 1, client, "jane", "jane", "")
	person.Spec.Request = requestFor(t, "jane")
	unreadable := nodeRequest(t, 1, client, tokens.NodeUserPrefix+"worker-2", "worker-2", "")
	unreadable.Spec.Request = []byte("x")
	if got := waitingRenewals([]*certificates.CertificateSigningRequest{person, unreadable}, map[renewal]time.Time{}); len(got) > 0 {
		t.Errorf("got waiting renewals %+v", got)
	}
}

// The fake client of client-go sets no UID, so importers' tests have several objects with an empty one.
func TestSignsEachObjectOfAClientWithoutUIDs(t *testing.T) {
	first, second := cachedRequest(t, ""), cachedRequest(t, "")
	first.UID, second.UID, second.Name = "", "", "csr-2"
	h := newTestHandler(t, first, second)
	for _, name := range []string{first.Name, second.Name} {
		_, err := h.sync(t.Context(), name)
		must.OK(t, err)
		if o := must.Value(h.client.CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{}))(t); !issued(o) {
			t.Errorf("%s: got status %+v, want a certificate", name, o.Status)
		}
	}
}

// The requester is revoked and its request withdrawn while kubejoin makes the certificate. Catches a certificate that
// was stored in the claim but not delivered, and that is not revoked.
func TestRevokesCertificateThatWasNotDelivered(t *testing.T) {
	r := cachedRequest(t, "pending")
	by := revocationtest.Fingerprint(1)
	r.Spec.Extra = map[string]certificates.ExtraValue{revocation.CredentialIDKey: {by.CredentialID()}}
	h := newTestHandler(t, r)
	guard := &revocation.Guard{Store: rowlist.New(memdb.Open().Revocations())}
	h.Authority.Revocations = guard
	var made []byte
	h.client.PrependReactor("update", "certificatesigningrequests", func(a kubetesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "status" {
			return false, nil, nil
		}
		made = append(made, a.(kubetesting.UpdateAction).GetObject().(*certificates.CertificateSigningRequest).Status.Certificate...)
		_, err := guard.Revoke(t.Context(), revocation.Entry{Fingerprint: by})
		return true, nil, cmp.Or(err, error(apierrors.NewConflict(certificates.Resource("certificatesigningrequests"), r.Name, errDown)))
	})
	_, _ = h.sync(t.Context(), r.Name) // conflicts
	cert := pemfile.Presented(made)
	if len(cert) == 0 {
		t.Fatal("no certificate was made")
	}
	if e, err := guard.RevokedCertificate(t.Context(), cert[0]); err != nil || e == nil {
		t.Errorf("got %+v, %v, want the certificate revoked", e, err)
	}
}
