package csr

import (
	"context"
	"errors"
	"time"

	"github.com/kubejoin/kubejoin/signer"
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
	var refused *approval.Refused
	switch d := signer.WaitDecision(err); {
	case d != nil:
		return h.shadowWait(csr, *d), nil
	case err == nil:
		h.would(csr, wouldSign, "", "")
	case errors.As(err, &refused):
		h.would(csr, wouldFail, refused.Reason, refused.Message)
	default:
		return retrySoon, err
	}
	h.mark(csr.UID, finished)
	return noRetry, nil
}

func (h *handler) shadowDecision(ctx context.Context, csr *certificates.CertificateSigningRequest, r approval.Request, refusal error) (retry, error) {
	if refusal != nil {
		return noRetry, nil
	}
	d, _, err := h.Authority.Decide(ctx, r)
	if err != nil {
		return retrySoon, err
	}
	switch {
	case d.Rule == "":
		return noRetry, nil
	case d.Verdict == approval.Wait:
		return h.shadowWait(csr, d), nil
	}
	h.would(csr, d.Verdict.String(), d.Reason, d.Message)
	// Another client may still approve it. Then shadow reports whether kubejoin would sign it.
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
