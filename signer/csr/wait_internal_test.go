package csr

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
)

// A waiting request gets one Event with its deadline for each reason, and one more at the deadline.
func TestWaitingRequestGetsOneEventPerReason(t *testing.T) {
	events := record.NewFakeRecorder(10)
	h := &handler{
		recorder: events, log: slog.New(slog.DiscardHandler),
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[item](time.Hour, time.Hour)),
	}
	defer h.queue.ShutDown()
	event := func() string {
		select {
		case e := <-events.Events:
			return e
		default:
			return "none"
		}
	}
	d := approval.Decision{Verdict: approval.Wait, Reason: "AddressNotReported", Message: "the Node has no address yet"}
	created := time.Now().Add(-time.Minute)
	csr := &certificates.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "csr-1", CreationTimestamp: metav1.NewTime(created)}}
	if next := h.wait(csr, d, h.log); next != retrySoon {
		t.Errorf("got next retry %v, want soon", next)
	}
	until := created.Add(approval.MaxWait).UTC().Format(time.RFC3339)
	if e := event(); !strings.HasPrefix(e, "Normal AddressNotReported the Node has no address yet") || !strings.HasSuffix(e, "until "+until) {
		t.Error(e)
	}
	h.queue.AddRateLimited(itemOf(csr))
	if h.wait(csr, d, h.log); len(events.Events) > 0 {
		t.Error("got a second Event:", event())
	}
	d.Reason, d.Message = "NodeNotFound", "the Node is gone"
	for range 2 { // a new reason causes one Event
		h.wait(csr, d, h.log)
	}
	if e := event(); len(events.Events) > 0 || !strings.HasPrefix(e, "Normal NodeNotFound the Node is gone; kubejoin retries until "+until) {
		t.Errorf("got %d Events more than one: %q", len(events.Events), e)
	}
	d.Reason = "AddressNotReported"
	csr.CreationTimestamp = metav1.NewTime(time.Now().Add(-approval.MaxWait))
	if next := h.wait(csr, d, h.log); next != noRetry {
		t.Errorf("after the deadline: got next retry %v, want none", next)
	}
	if e := event(); !strings.HasPrefix(e, "Warning AddressNotReported") || !strings.Contains(e, "kubejoin stopped retrying after 1h") {
		t.Error(e)
	}
	// If facts are unavailable, the deadline is later.
	d.Reason, d.Message = approval.ReasonFactsUnavailable, "timeout"
	if next := h.wait(csr, d, h.log); next != retrySoon {
		t.Errorf("facts unavailable: got next retry %v, want soon", next)
	}
	until = csr.CreationTimestamp.Add(maxUndecided).UTC().Format(time.RFC3339)
	if e := event(); e != "Normal FactsUnavailable timeout; kubejoin retries until "+until {
		t.Error(e)
	}
	csr.CreationTimestamp = metav1.NewTime(time.Now().Add(-maxUndecided))
	if next := h.wait(csr, d, h.log); next != noRetry || !strings.HasPrefix(event(), "Warning FactsUnavailable timeout; kubejoin stopped retrying after 24h") {
		t.Errorf("a day later: got next retry %v, want none", next)
	}
}

// Somebody may approve an old request. The request then waits only for the rate of its requester, without a deadline.
func TestApprovedRequestWaitsForRateHoweverOld(t *testing.T) {
	h := &handler{recorder: record.NewFakeRecorder(10), log: slog.New(slog.DiscardHandler)}
	d := approval.Decision{Verdict: approval.Wait, Reason: signer.ReasonTooManyCertificates, Message: "later"}
	csr := &certificates.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "csr-1", CreationTimestamp: metav1.NewTime(time.Now().Add(-2 * approval.MaxWait))}}
	if next := h.wait(csr, d, h.log); next != noRetry {
		t.Errorf("not approved: got next retry %v, want none", next)
	}
	csr.Status.Conditions = []certificates.CertificateSigningRequestCondition{{Type: certificates.CertificateApproved, Status: corev1.ConditionTrue}}
	if next := h.wait(csr, d, h.log); next != retrySoon {
		t.Errorf("approved: got next retry %v, want soon", next)
	}
}
