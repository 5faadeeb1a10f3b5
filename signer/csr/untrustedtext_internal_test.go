package csr

import (
	"errors"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/codes"
	certificates "k8s.io/api/certificates/v1"
	"k8s.io/client-go/tools/record"
)

// Events quote errors of other components. Their text must be cleaned and shortened.
func TestEventsAreClean(t *testing.T) {
	fake := record.NewFakeRecorder(1)
	h := &handler{recorder: fake}
	err := errors.New("_8w4usg.qwertzuiopasdfgh\n\x1b" + strings.Repeat("x", 5000))
	h.event(&certificates.CertificateSigningRequest{}, codes.SigningFailed, "failed: %v", err)
	if said := <-fake.Events; !strings.HasPrefix(said, "Warning SigningFailed failed: _8w4usg.<redacted> �xxx") || len(said) > 1100 {
		t.Errorf("got %d bytes: %.200q", len(said), said)
	}
}
