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

// A request that waits is told until when, once, and at its deadline that it is left alone.
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
		t.Errorf("looked at again %v", next)
	}
	until := created.Add(approval.MaxWait).UTC().Format(time.RFC3339)
	if e := event(); !strings.HasPrefix(e, "Normal AddressNotReported the Node has no address yet") || !strings.HasSuffix(e, "until "+until) {
		t.Error(e)
	}
	h.queue.AddRateLimited(itemOf(csr))
	if h.wait(csr, d, h.log); len(events.Events) > 0 {
		t.Error("told again:", event())
	}
	d.Reason, d.Message = "NodeNotFound", "the Node is gone"
	for range 2 { // what it waits for now is told, and once
		h.wait(csr, d, h.log)
	}
	if e := event(); len(events.Events) > 0 || !strings.HasPrefix(e, "Normal NodeNotFound the Node is gone; it is looked at again until "+until) {
		t.Errorf("%d more Events than one, which says %q", len(events.Events), e)
	}
	d.Reason = "AddressNotReported"
	csr.CreationTimestamp = metav1.NewTime(time.Now().Add(-approval.MaxWait))
	if next := h.wait(csr, d, h.log); next != noRetry {
		t.Errorf("past its deadline it is looked at again %v", next)
	}
	if e := event(); !strings.HasPrefix(e, "Warning AddressNotReported") || !strings.Contains(e, "not looked at again") {
		t.Error(e)
	}
	// Who has to be asked may be away for longer.
	d.Reason, d.Message = approval.ReasonFactsUnavailable, "timeout"
	if next := h.wait(csr, d, h.log); next != retrySoon {
		t.Errorf("without an answer it is looked at again %v", next)
	}
	until = csr.CreationTimestamp.Add(maxUndecided).UTC().Format(time.RFC3339)
	if e := event(); e != "Normal FactsUnavailable timeout; it is looked at again until "+until {
		t.Error(e)
	}
	csr.CreationTimestamp = metav1.NewTime(time.Now().Add(-maxUndecided))
	if next := h.wait(csr, d, h.log); next != noRetry || !strings.HasPrefix(event(), "Warning FactsUnavailable timeout; it has waited for 24h0m0s") {
		t.Errorf("a day later it is looked at again %v", next)
	}
}

// A person may approve an old request: it was in order, and waits for its turn alone.
func TestApprovedRequestWaitsForRateHoweverOld(t *testing.T) {
	h := &handler{recorder: record.NewFakeRecorder(10), log: slog.New(slog.DiscardHandler)}
	d := approval.Decision{Verdict: approval.Wait, Reason: signer.ReasonTooManyCertificates, Message: "later"}
	csr := &certificates.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "csr-1", CreationTimestamp: metav1.NewTime(time.Now().Add(-2 * approval.MaxWait))}}
	if next := h.wait(csr, d, h.log); next != noRetry {
		t.Errorf("one that nobody has approved is looked at again %v", next)
	}
	csr.Status.Conditions = []certificates.CertificateSigningRequestCondition{{Type: certificates.CertificateApproved, Status: corev1.ConditionTrue}}
	if next := h.wait(csr, d, h.log); next != retrySoon {
		t.Errorf("one that was approved is looked at again %v", next)
	}
}
