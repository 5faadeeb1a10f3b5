package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
)

// An older server may repeat text of other users unchanged. The command must redact secrets and control characters.
func TestSanitizesProblemsOfServer(t *testing.T) {
	status, name := 0, ""
	web := newWebServer(t, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(status)
			_ = json.NewEncoder(w).Encode(api.Problem{Type: api.ProblemType + name, Status: status, Detail: "8w4usg.qwertzuiopasdfgh\x1b[31m", Reason: "\x1b[32m"})
		})
	})
	key := must.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	der := must.Value(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key))(t)
	request := filepath.Join(t.TempDir(), "csr")
	must.OK(t, os.WriteFile(request, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), 0o600))
	for _, test := range []struct {
		status int
		name   string
		args   []string
	}{
		{403, api.ProblemCertificateRefused, []string{"sign", request}},
		{503, api.ProblemCertificateWaits, []string{"sign", request, "--wait", "3s"}},
		{400, "invalid-field", []string{"token", "delete", "8w4usg", "8w4usf"}},
	} {
		status, name = test.status, test.name
		var out, errs bytes.Buffer
		err := run(t.Context(), append(test.args, "--url", web.url, "--ca-file", filepath.Join(web.dir, "ca"), "--bearer-file", filepath.Join(web.dir, "bearer")), &out, &errs)
		if err != nil {
			fail(&errs, err)
		}
		got := strings.ReplaceAll(errs.String(), "\n", "")
		if err == nil || !strings.Contains(got, "8w4usg.<redacted>") || strings.Contains(got, "qwertz") || strings.ContainsFunc(got, unicode.IsControl) {
			t.Errorf("%s: %v, %q", test.args, err, got)
		}
	}
}

// An error must not send control characters or token secrets to the terminal.
func TestSanitizesErrors(t *testing.T) {
	if got, want := sanitize("first\n_8w4usg.qwertzuiopasdfgh\x1b[31m\r\nlast"), "first\n_8w4usg.<redacted>\ufffd[31m \nlast"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A Secret that another program wrote may have a long description. It must not widen the rows of all tokens in the table.
func TestTokenTableCutsDescriptions(t *testing.T) {
	var out strings.Builder
	must.OK(t, (&output{format: "text"}).tokens(&out, nil, []api.Token{{ID: "abcdef", Description: strings.Repeat("x", 100_000)}}))
	if got := out.String(); len(got) > 1000 || !strings.Contains(got, "xxx… ") {
		t.Errorf("%d bytes: %.300s", len(got), got)
	}
}
