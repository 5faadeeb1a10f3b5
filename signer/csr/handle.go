package csr

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/internal/codes"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// retry says when to retry a request if it does not change.
type retry int

const (
	noRetry    retry = iota // nothing is left to do
	retrySoon               // a fact is missing
	retryLater              // a permission is missing
)

// attempts is how often a request is re-read after a conflict with other writers. After that, the request backs
// off like any failure.
const attempts = 5

// sync does the remaining work for one request.
func (h *handler) sync(ctx context.Context, name string) (retry, error) {
	obj, _, err := h.store.GetByKey(name)
	cached, ok := obj.(*certificates.CertificateSigningRequest)
	if !ok {
		return noRetry, err
	}
	if !h.needsWork(cached) {
		return noRetry, nil
	}
	defer func() {
		// If the object was deleted meanwhile, nothing else would remove the state kept for it.
		if _, exists, err := h.store.GetByKey(name); err == nil && !exists {
			h.forget(cached)
		}
	}()
	csr := cached.DeepCopy() // the cache is shared
	// Re-read an object that is too large: the cache lacks its labels and annotations, and an update would
	// remove them.
	stale := cutReason(csr) != nil && has(csr, certificates.CertificateApproved)
	switch h.step(keyOf(csr)) {
	case finished:
		return noRetry, nil
	case approved: // the rules need not decide
		stale = stale || !has(csr, certificates.CertificateApproved)
	}
	for range attempts {
		if stale {
			csr, err = h.Client.CertificatesV1().CertificateSigningRequests().Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return noRetry, nil
			}
			if err != nil {
				return noRetry, err
			}
			if csr.UID != cached.UID || !h.needsWork(csr) {
				return noRetry, nil
			}
		}
		next, err := h.handle(ctx, csr) // parses and validates the object that was read last
		if errors.Is(err, errGone) {
			return noRetry, nil
		}
		if !apierrors.IsConflict(err) {
			return next, err
		}
		stale = true
	}
	return retrySoon, nil
}

// handle decides a pending request and signs an approved one. After a Conflict, the caller re-reads the object
// and retries.
func (h *handler) handle(ctx context.Context, csr *certificates.CertificateSigningRequest) (retry, error) {
	r, refusal := Request(csr)
	csr.ManagedFields = nil // nil leaves managedFields on the API server unchanged
	if h.Shadow {
		return h.shadow(ctx, csr, r, refusal)
	}
	var admission *signer.Admission
	if !has(csr, certificates.CertificateApproved) {
		if refusal != nil {
			// kubejoin does not approve the request. A person may deny it. If a person approves it, signing fails.
			h.leaveAlone(csr, refusal)
			return noRetry, nil
		}
		var next retry
		var err error
		if admission, next, err = h.decide(ctx, csr, r); admission == nil {
			return next, err
		}
	}
	if !h.signs(csr) {
		return noRetry, nil
	}
	if refusal != nil {
		return noRetry, h.refuse(ctx, csr, r, refusal)
	}
	return h.sign(ctx, csr, r, admission)
}

// decide applies the rules and writes their decision. The admission is nil unless decide approved the
// object.
func (h *handler) decide(ctx context.Context, csr *certificates.CertificateSigningRequest, r approval.Request) (*signer.Admission, retry, error) {
	admission, err := h.Authority.Decide(ctx, r)
	d := decided(admission, err)
	log := h.logOf(csr).With("subject", safetext.Text(r.CSR.Subject.String(), safetext.MaxName),
		"verdict", d.Verdict.String(), "reason", d.Reason, "rule", d.Rule)
	if d.Rule == "" { // no rule applies
		log.Debug("certificate request ignored, no rule applies")
		return nil, noRetry, nil
	}
	count := func() {
		h.counts.decisions.WithLabelValues(csr.Spec.SignerName, d.Verdict.String(), d.Reason).Inc()
	}
	condition := certificates.CertificateSigningRequestCondition{Status: corev1.ConditionTrue, Reason: d.Reason, Message: d.Message}
	switch d.Verdict {
	case approval.Approve:
		condition.Type = certificates.CertificateApproved
	case approval.Deny:
		condition.Type = certificates.CertificateDenied
	case approval.Wait:
		count()
		next := h.wait(csr, d.Decision, log)
		if d.Err != nil && next != noRetry {
			return nil, next, fmt.Errorf("decide: %w", err)
		}
		return nil, next, nil
	default:
		count()
		if h.reportOnce(csr, d.Decision) {
			log.Info("certificate request not decided", "message", d.Message)
		}
		return nil, retryLater, nil
	}
	csr.Status.Conditions = append(csr.Status.Conditions, condition)
	began := time.Now()
	updated, err := h.Client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{FieldManager: FieldManager})
	if err != nil {
		if apierrors.IsNotFound(err) {
			return nil, noRetry, errGone
		}
		if !apierrors.IsConflict(err) && !stopped(ctx) {
			h.event(csr, codes.ApprovalFailed, "kubejoin could not write its decision (%s): %v", d.Verdict, err)
		}
		return nil, noRetry, fmt.Errorf("write decision (%s): %w", d.Verdict, err)
	}
	h.fair.wrote(time.Since(began))
	count()
	if d.Verdict == approval.Deny {
		log.Info("certificate request denied", "message", d.Message)
		h.mark(keyOf(csr), finished)
		h.event(csr, codes.Refused(d.Reason), "%s", d.Message)
		return nil, noRetry, nil
	}
	log.Info("certificate request approved", "message", d.Message)
	h.mark(keyOf(csr), approved)
	if keys, tokenID := admission.Keys(); keys > 1 {
		h.event(updated, codes.AnotherKey, "This is key %d of at most %d for this node with token %s. The kubelet restarted without its key, or another machine uses this name and token; see: kubejoin claim list", keys, tokens.MaxKeys, tokenID)
	}
	updated.ManagedFields = nil
	*csr = *updated // the spec was validated and is immutable
	return admission, noRetry, nil
}

// decided returns the error of Decide. Without an error, it returns an approval.Error with the decision to approve.
func decided(m *signer.Admission, err error) approval.Error {
	if no, found := errors.AsType[*approval.Error](err); found {
		return *no
	}
	return approval.Error{Decision: m.Decision()}
}

// maxUndecided replaces approval.MaxWait if a fact is unavailable or an approved request waits for the rate
// limit. By default a cleaner deletes pending requests after the same time.
const maxUndecided = 24 * time.Hour

// wait reports until when kubejoin retries a request, or that kubejoin gives up.
func (h *handler) wait(csr *certificates.CertificateSigningRequest, d approval.Decision, log *slog.Logger) retry {
	maxWait := approval.MaxWait
	// An approved request waits only for the rate limit. It may be old, because a person approved it late.
	rateLimited := d.Reason == signer.ReasonTooManyCertificates && has(csr, certificates.CertificateApproved)
	if d.Reason == approval.ReasonFactsUnavailable || rateLimited {
		maxWait = maxUndecided
	}
	deadline := csr.CreationTimestamp.Add(maxWait)
	if !time.Now().Before(deadline) {
		d.Message += fmt.Sprintf("; kubejoin stopped retrying after %s", safetext.Duration(maxWait))
		h.event(csr, codes.Refused(d.Reason), "%s", d.Message)
		log.Warn("certificate request waited too long, no more retries", "message", d.Message)
		return noRetry
	}
	d.Message += "; kubejoin retries until " + deadline.UTC().Format(time.RFC3339)
	if h.reportOnce(csr, d) {
		log.Info("certificate request waits", "message", d.Message)
	}
	return retrySoon
}

// leaveAlone reports once that kubejoin neither approves nor denies a request, and why.
func (h *handler) leaveAlone(csr *certificates.CertificateSigningRequest, why error) {
	if !h.reasonChanged(csr, approval.ReasonValidation) {
		return
	}
	h.logOf(csr).Info("certificate request not decided", "message", why)
	if _, known := h.Authority.Signer(csr.Spec.SignerName); known {
		h.event(csr, codes.Refused(approval.ReasonValidation), "kubejoin neither approves nor denies this request: %v", why)
	}
}

// reportOnce records an Event that says why a request is not decided or signed, unless the last reported reason
// is the same. It returns whether it recorded an Event.
func (h *handler) reportOnce(csr *certificates.CertificateSigningRequest, d approval.Decision) bool {
	changed := h.reasonChanged(csr, d.Reason)
	if changed {
		h.event(csr, codes.Undecided(d.Reason), "%s", d.Message)
	}
	return changed
}

// reasonChanged stores why a request waits, and reports whether the reason has changed.
func (h *handler) reasonChanged(csr *certificates.CertificateSigningRequest, reason string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lastReason == nil {
		h.lastReason = map[key]string{}
	}
	before := h.lastReason[keyOf(csr)]
	h.lastReason[keyOf(csr)] = reason
	return before != reason
}

// refuse writes the issuance record of an approved request that cannot be parsed, and then marks it as
// failed.
func (h *handler) refuse(ctx context.Context, csr *certificates.CertificateSigningRequest, r approval.Request, why error) error {
	err := h.Authority.Refuse(ctx, r, approval.Refused(why))
	if refused := approval.Refused(err); refused != nil {
		return h.fail(ctx, csr, refused)
	}
	return h.failed(ctx, csr, codes.SigningFailed.Reason(), err)
}

// sign issues and writes the certificate of an approved request, regardless of who approved it. The request waits if
// it was approved too early, for example before its Node exists.
func (h *handler) sign(ctx context.Context, csr *certificates.CertificateSigningRequest, r approval.Request, admission *signer.Admission) (retry, error) {
	var chain []byte
	var err error
	if admission != nil {
		chain, err = h.Authority.SignAdmitted(ctx, admission)
	} else { // a person, another program or an earlier attempt of kubejoin approved it
		chain, err = h.Authority.Sign(ctx, r)
	}
	no, found := errors.AsType[*approval.Error](err)
	switch {
	case found && no.Verdict == approval.Deny:
		return noRetry, h.fail(ctx, csr, no)
	case found:
		return h.wait(csr, no.Decision, h.logOf(csr).With("reason", no.Reason)), nil
	case err != nil:
		return noRetry, h.failed(ctx, csr, codes.SigningFailed.Reason(), err)
	}
	csr.Status.Certificate = chain
	h.wrote(csr)
	if err := h.writeStatus(ctx, csr, "write certificate"); err != nil {
		return noRetry, errors.Join(err, h.Authority.Undelivered(ctx, r, chain))
	}
	h.countIssued(csr)
	return noRetry, nil
}

// countIssued counts a certificate that kubejoin wrote, once: when the API server has responded, or when the
// cache shows the certificate because the response is late or lost.
func (h *handler) countIssued(csr *certificates.CertificateSigningRequest) {
	if !h.finish(csr) {
		return
	}
	took := max(time.Since(csr.CreationTimestamp.Time), 0)
	h.counts.signed.WithLabelValues(csr.Spec.SignerName).Inc()
	h.counts.seconds.WithLabelValues(csr.Spec.SignerName).Observe(took.Seconds())
	h.logOf(csr).Info("certificate issued")
}

// fail sets the condition Failed: the request will never be signed.
func (h *handler) fail(ctx context.Context, csr *certificates.CertificateSigningRequest, refused *approval.Error) error {
	reason, message := refused.Reason, refused.Message
	csr.Status.Conditions = append(csr.Status.Conditions, failedBy(reason, message))
	if err := h.writeStatus(ctx, csr, "write condition Failed"); err != nil {
		return err
	}
	if h.finish(csr) {
		h.counts.failures.WithLabelValues(csr.Spec.SignerName, reason).Inc()
		h.event(csr, codes.Refused(reason), "%s", message)
		h.logOf(csr).Warn("certificate request failed permanently", "reason", reason, "message", message)
	}
	return nil
}

// failedBy returns the condition Failed.
func failedBy(reason, message string) certificates.CertificateSigningRequestCondition {
	return certificates.CertificateSigningRequestCondition{
		Type: certificates.CertificateFailed, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastUpdateTime: metav1.Now(),
	}
}

// errGone means that the object was deleted meanwhile.
var errGone = errors.New("the request was deleted")

// writeStatus writes once. The API server does not allow anybody to change a certificate or to remove the
// condition Failed. It returns a Conflict unchanged, so that the caller re-reads the request.
func (h *handler) writeStatus(ctx context.Context, csr *certificates.CertificateSigningRequest, doing string) error {
	began := time.Now()
	_, err := h.Client.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, csr, metav1.UpdateOptions{FieldManager: FieldManager})
	switch {
	case err == nil:
		h.fair.wrote(time.Since(began))
		return nil
	case apierrors.IsNotFound(err):
		return errGone
	case apierrors.IsConflict(err):
		return err
	}
	return h.failed(ctx, csr, "WriteFailed", fmt.Errorf("%s: %w", doing, err))
}

// failed counts and reports a temporary failure, and returns the error so that the caller retries.
func (h *handler) failed(ctx context.Context, csr *certificates.CertificateSigningRequest, reason string, err error) error {
	if stopped(ctx) {
		return err
	}
	h.counts.failures.WithLabelValues(csr.Spec.SignerName, reason).Inc()
	h.event(csr, codes.SigningFailed, "kubejoin could not issue the certificate and will retry: %v", err)
	return err
}

// finish marks a request as done by this process, and reports whether it was not marked before.
func (h *handler) finish(csr *certificates.CertificateSigningRequest) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.steps[keyOf(csr)] == finished {
		return false
	}
	h.steps[keyOf(csr)] = finished
	delete(h.written, keyOf(csr))
	delete(h.lastReason, keyOf(csr))
	return true
}

// wrote stores the certificate that is about to be written: the cache may show it before the response
// arrives. managedFields do not name its writer if the request was created with only a name and a spec.
func (h *handler) wrote(csr *certificates.CertificateSigningRequest) {
	h.mu.Lock()
	defer h.mu.Unlock()
	// After a write whose response was lost, there is more than one certificate.
	h.written[keyOf(csr)] = append(h.written[keyOf(csr)], csr.Status.Certificate)
}

// isOurs reports whether this process wrote the certificate.
func (h *handler) isOurs(csr *certificates.CertificateSigningRequest) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.written[keyOf(csr)], func(c []byte) bool { return bytes.Equal(c, csr.Status.Certificate) })
}

// noticeIssued counts a certificate that has just appeared in the cache. If another signer wrote it,
// noticeIssued reports it, because kubejoin did not check it.
func (h *handler) noticeIssued(csr *certificates.CertificateSigningRequest) {
	if !h.signs(csr) {
		return
	}
	h.noticeShared(csr)
	writer := certificateWriter(csr)
	if writer == FieldManager || h.isOurs(csr) {
		h.countIssued(csr)
		return
	}
	if !h.finish(csr) {
		return
	}
	if writer = safetext.Text(writer, safetext.MaxName); writer == "" {
		writer = "an unknown client"
	}
	h.counts.byOther.WithLabelValues(csr.Spec.SignerName).Inc()
	if h.SignedByOther != nil {
		h.SignedByOther(csr.Spec.SignerName, writer)
	}
	h.event(csr, codes.SignedByOther,
		"Another signer (%s) issued this certificate, so kubejoin's checks at signing did not apply; run only one signer for %s", writer, csr.Spec.SignerName)
	h.logOf(csr).Warn("certificate issued by another signer", "writer", writer)
}
