package csr

import (
	"fmt"
	"log/slog"

	"github.com/kubejoin/kubejoin/internal/safetext"
	certificates "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
)

// logOf returns a logger with the fields that identify a request. The requester chose all of them:
// kube-apiserver accepts any text as the name of a CertificateSigningRequest.
func (h *handler) logOf(csr *certificates.CertificateSigningRequest) *slog.Logger {
	return h.log.With("csr", safetext.Text(csr.Name, safetext.MaxName), "signer", safetext.Text(csr.Spec.SignerName, safetext.MaxName),
		"user", safetext.Text(csr.Spec.Username, safetext.MaxName))
}

// cleanEvents records Events whose messages repeat text from other parties.
type cleanEvents struct{ record.EventRecorder }

func (e cleanEvents) Event(about runtime.Object, kind, reason, message string) {
	e.EventRecorder.Event(about, kind, reason, safetext.Text(message, safetext.MaxMessage))
}

func (e cleanEvents) Eventf(about runtime.Object, kind, reason, format string, args ...any) {
	e.Event(about, kind, reason, fmt.Sprintf(format, args...))
}
