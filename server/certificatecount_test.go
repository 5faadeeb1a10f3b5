package server_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// Operators alert on the result "failed". Catches a count of unauthenticated callers or malformed requests in it.
func TestCountsCertificateResults(t *testing.T) {
	s, _ := certifying(t)
	var broken atomic.Bool
	working := s.Certificates.Authority.Signers
	s.Certificates.Authority.Signers = func() map[string]signer.Signer {
		if broken.Load() {
			return must.Get(signer.KubernetesSigners(func() (*signer.CA, error) { return nil, errors.New("the disk is away") }, 0))
		}
		return working()
	}
	s.start(t)
	token := s.token(t, nil)
	request := api.SignCertificate{CSR: []byte(nodeCSR(t, "worker-1"))}
	if _, err := s.by(token).Certificate(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	for _, bearer := range []string{"", "nobody", "qwertz.0123456789abcdef"} {
		_, err := s.by(bearer).Certificate(t.Context(), request)
		wantProblem(t, err, 401, "unauthorized", "")
	}
	_, err := s.by(viewerBearer).Certificate(t.Context(), api.SignCertificate{CSR: request.CSR, Signer: peerSigner})
	wantProblem(t, err, 403, "forbidden", "")
	for path, status := range map[string]int{"/v1/certificate": 400, "/v1/certificate?duration=": 400, "/v1/certificate?signer=x": 400} {
		if got := s.do(t, "POST", path, token, "", "no request"); got.status != status {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
	if got := s.do(t, "POST", "/v1/certificate", token, "application/json", "{}"); got.status != 415 {
		t.Errorf("%d %s", got.status, got.body)
	}
	if got := s.do(t, "POST", "/v1/certificate", token, "", strings.Repeat("x", 1<<20)); got.status != 413 {
		t.Errorf("%d %s", got.status, got.body)
	}
	_, err = s.by(token).Certificate(t.Context(), api.SignCertificate{CSR: []byte(nodeCSR(t, "cp-1"))})
	wantProblem(t, err, 403, api.ProblemCertificateRefused, admission.ReasonNodeNameReserved)
	counted := func(want string) {
		t.Helper()
		if err := testutil.GatherAndCompare(s.registry(), strings.NewReader(`
# HELP kubejoin_http_certificates_total Certificate requests over HTTPS, by result: issued, refused, not_permitted, waits or failed (an error of kubejoin). Unauthenticated and malformed requests are not counted.
# TYPE kubejoin_http_certificates_total counter
`+want), "kubejoin_http_certificates_total"); err != nil {
			t.Error(err)
		}
	}
	counted("kubejoin_http_certificates_total{result=\"issued\"} 1\nkubejoin_http_certificates_total{result=\"refused\"} 1\n")

	broken.Store(true)
	_, err = s.by(token).Certificate(t.Context(), request)
	wantProblem(t, err, 503, api.ProblemCertificateWaits, "FactsUnavailable")
	counted("kubejoin_http_certificates_total{result=\"failed\"} 1\nkubejoin_http_certificates_total{result=\"issued\"} 1\nkubejoin_http_certificates_total{result=\"refused\"} 1\n")
}
