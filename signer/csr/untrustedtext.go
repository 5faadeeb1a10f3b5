package csr

import (
	"fmt"
	"log/slog"

	"github.com/kubejoin/kubejoin/internal/codes"
	"github.com/kubejoin/kubejoin/internal/safetext"
	certificates "k8s.io/api/certificates/v1"
)

// logOf returns a logger with the fields that identify a request. The requester chose all of them:
// kube-apiserver accepts any text as the name of a CertificateSigningRequest.
func (h *handler) logOf(csr *certificates.CertificateSigningRequest) *slog.Logger {
	return h.log.With("csr", safetext.Text(csr.Name, safetext.MaxName), "signer", safetext.Text(csr.Spec.SignerName, safetext.MaxName),
		"user", safetext.Text(csr.Spec.Username, safetext.MaxName))
}

// event records an Event. Its message may repeat text from other parties.
func (h *handler) event(csr *certificates.CertificateSigningRequest, e codes.Event, format string, args ...any) {
	h.recorder.Event(csr, e.Type(), e.Reason(), safetext.Text(fmt.Sprintf(format, args...), safetext.MaxMessage))
}
