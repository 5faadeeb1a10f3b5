package csr

import (
	"context"
	"errors"
	"time"

	"github.com/kubejoin/kubejoin/signer/approval"
	certificates "k8s.io/api/certificates/v1"
)

// Values of the label "would" of kubejoin_csr_shadow_total, in addition to the verdicts of rules.
const (
	wouldSign = "sign"
	wouldFail = "fail"
)

// shadow is handle without writes: it reports what handle would do.
func (h *handler) shadow(ctx context.Context, csr *certificates.CertificateSigningRequest, r approval.Request, refusal error) (retry, error) {
	if !has(csr, certificates.CertificateApproved) {
		return h.shadowDecision(ctx, csr, r, refusal)
	}
	if !h.signs(csr) {
		return noRetry, nil
	}
	err := refusal
	if err == nil {
		_, err = h.Authority.Sign(ctx, r)
	}
	no, found := errors.AsType[*approval.Error](err)
	switch {
	case err == nil:
		h.would(csr, wouldSign, "", "")
	case found && no.Verdict == approval.Deny:
		h.would(csr, wouldFail, no.Reason, no.Message)
	case found:
		return h.shadowWait(csr, no.Decision), nil
	default:
		return retrySoon, err
	}
	h.mark(keyOf(csr), finished)
	return noRetry, nil
}

func (h *handler) shadowDecision(ctx context.Context, csr *certificates.CertificateSigningRequest, r approval.Request, refusal error) (retry, error) {
	if refusal != nil {
		return noRetry, nil
	}
	admission, err := h.Authority.Decide(ctx, r)
	d := decided(admission, err)
	switch {
	case d.Err != nil:
		return retrySoon, err
	case d.Rule == "":
		return noRetry, nil
	case d.Verdict == approval.Wait:
		return h.shadowWait(csr, d.Decision), nil
	}
	h.would(csr, d.Verdict.String(), d.Reason, d.Message)
	// Another client may still approve the request. Then shadow reports whether kubejoin would sign it.
	return noRetry, nil
}

// shadowWait reports once why a request would wait, and again when kubejoin would give up.
func (h *handler) shadowWait(csr *certificates.CertificateSigningRequest, d approval.Decision) retry {
	if !time.Now().Before(csr.CreationTimestamp.Add(approval.MaxWait)) {
		h.would(csr, d.Verdict.String(), d.Reason, d.Message)
		return noRetry
	}
	if h.reasonChanged(csr, d.Reason) {
		h.would(csr, d.Verdict.String(), d.Reason, d.Message)
	}
	return retrySoon
}

func (h *handler) would(csr *certificates.CertificateSigningRequest, what, reason, message string) {
	h.counts.shadow.WithLabelValues(csr.Spec.SignerName, what, reason).Inc()
	h.logOf(csr).Info("shadow mode: decision not written", "would", what, "reason", reason, "message", message)
}
