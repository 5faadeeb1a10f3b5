package server_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer/issuance/rowrecord"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Problems shorten long values. Catches a part of a token secret that is left in a problem or in the log.
func TestProblemsHoldNoPartOfAToken(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Claims, s.IssuanceRecord = s.store.Claims(), rowrecord.New(s.store.Issued())
	s.start(t)
	const token = "8w4usg.qwertzuiopasdfgh"
	for n := range 64 {
		value := strings.Repeat("-", n) + token
		if n%2 == 1 { // characters around the token that once prevented its redaction
			value = strings.Repeat("-", n) + "_" + token + "X"
		}
		inJSON, escaped := `"`+value+`"`, url.QueryEscape(value)
		for _, asked := range []struct{ method, path, body string }{
			{"POST", tokenPath, `{` + inJSON + `:1}`},
			{"POST", tokenPath, `{"ttl":` + inJSON + `}`},
			{"POST", tokenPath, `{"expires":` + inJSON + `}`},
			{"POST", tokenPath, `{"usages":[` + inJSON + `]}`},
			{"POST", tokenPath, `{"groups":[` + inJSON + `]}`},
			{"POST", tokenPath, `{"nodeNames":[` + inJSON + `,"*_` + value + `"]}`},
			{"POST", tokenPath, `{"replaceNode":` + inJSON + `}`},
			{"POST", tokenPath, `{"certificateDuration":` + inJSON + `}`},
			{"POST", tokenPath, `{"role":` + inJSON + `}`},
			{"POST", tokenPath, `{"wait":` + inJSON + `}`},
			{"POST", tokenPath + "?" + escaped, ""},
			{"POST", tokenPath + "?token=" + escaped, ""},
			{"POST", commandPath + "?expires=" + escaped, ""},
			{"POST", tokenPath + "?maxNodes=" + escaped, ""},
			{"POST", tokenPath + "?dryRun=" + escaped, ""},
			{"POST", commandPath + "?format=" + escaped, ""},
			{"GET", "/v1/ca?format=" + escaped, ""},
			{"GET", "/v1/token/" + escaped, ""},
			{"GET", "/v1/" + escaped, ""},
			{"GET", "/v1/explain/" + escaped, ""},
			{"GET", "/v1/issued/" + escaped, ""},
			{"GET", "/v1/join?token=" + escaped, ""},
			{"GET", "/v1/join?node=" + escaped + "&state=" + escaped + "&after=" + escaped + "&wait=" + escaped, ""},
			{"DELETE", "/v1/claim/" + escaped, ""},
			{"POST", "/v1/explain", `{"csr":` + inJSON + `}`},
			{"POST", "/v1/explain", `{"object":{"apiVersion":` + inJSON + `,"kind":` + inJSON + `}}`},
		} {
			got := s.do(t, asked.method, asked.path, adminBearer, "application/json", asked.body)
			if got.status < 400 || strings.Contains(got.body, "8w4usg.q") {
				t.Fatalf("%s %s %s: %d %s", asked.method, asked.path, asked.body, got.status, got.body)
			}
			var p api.Problem
			if err := json.Unmarshal([]byte(got.body), &p); err == nil && len(p.Field) > 40 {
				t.Errorf("got field %q, want at most 40 bytes", p.Field)
			}
		}
	}
	if logs := s.logs.String(); strings.Contains(logs, "8w4usg.q") || !strings.Contains(logs, "8w4usg.<redacted>") || !strings.Contains(logs, "release-claim") {
		t.Errorf("the log: %.2000s", logs)
	}
}

// Requests without a known caller are logged at level info only as a sample, in short lines. Catches a flood that hides
// refusals of known callers or of credentials.
func TestSamplesLogOfUnauthenticatedRequests(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start(t)
	long := strings.Repeat("METHOD", 2000)
	s.http.Transport.(*http.Transport).ForceAttemptHTTP2 = false
	s.http.Transport.(*http.Transport).TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	logOf := func(method, path, bearer string) string {
		t.Helper()
		s.logs.Reset()
		r := must.Get(http.NewRequest(method, s.url+path, nil))
		r.Header.Set("User-Agent", "8w4usg.qwertzuiopasdfgh")
		if bearer != "" {
			r.Header.Set("Authorization", "Bearer "+bearer)
		}
		response := must.Get(s.http.Do(r))
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		s.http.CloseIdleConnections()
		line := s.logs.String()
		if strings.Count(line, "msg=request ") != 1 || len(line) > 1000 || strings.Contains(line, "8w4usg") || strings.Contains(line, long[:40]) {
			t.Errorf("%.20s %.40s: got %d bytes of log, want one line of at most 1000: %.600s", method, path, len(line), line)
		}
		return line
	}
	strangers := []struct{ method, path, bearer string }{
		{"GET", "/nothing?8w4usg.qwertzuiopasdfgh", ""},
		{"GET", "/8w4usg.qwertzuiopasdfgh", adminBearer}, // the server does not authenticate on an unknown path
		{"POST", "/nothing", ""},
		{"PUT", "/healthz", ""},
		{long, "/healthz", ""},
		{long, "/v1/token", adminBearer},
		{"GET", "/v1/ca?format=" + strings.Repeat("x", 2000), ""},
		{"POST", "/v1/token", ""},
	}
	began, seen := time.Now(), 0
	for i := range 400 {
		asked := strangers[i%len(strangers)]
		if line := logOf(asked.method, asked.path, asked.bearer); strings.Contains(line, "level=INFO") {
			seen++
		} else if !strings.Contains(line, "level=DEBUG") || i < 100 {
			t.Errorf("request %d: %s", i, line)
		}
	}
	if most := 101 + int(time.Since(began)/time.Second); seen > most {
		t.Errorf("got %d of 400 unauthenticated requests at level info, want at most %d", seen, most)
	}
	for _, asked := range []struct{ path, bearer string }{
		{"/v1/token", "wrong-bearer-0123456789"}, {"/v1/token", viewerBearer}, {"/v1/token?ttl=soon", adminBearer}, {"/v1/token", adminBearer},
	} {
		for range 20 {
			if line := logOf("POST", asked.path, asked.bearer); !strings.Contains(line, "level=INFO") {
				t.Fatalf("got %s, want level INFO", line)
			}
		}
	}
}

// Catches control characters, line breaks or a token in the text of a check, which a client may have chosen.
func TestReadinessIsOneLineForEachCheck(t *testing.T) {
	s := newSite(t)
	hostile := "csr x >&2;id>pwned;\x1b[31m\n[+]forged ok\n8w4usg.qwertzuiopasdfgh" + strings.Repeat("x", 100_000)
	var failing error
	s.Status.Checks = []server.Check{{Name: "one", Ready: func(context.Context) error { return failing }}}
	s.start(t)
	for _, failing = range []error{api.Notice(hostile), fmt.Errorf("because of %s", hostile)} {
		got := s.do(t, "GET", "/readyz?verbose", "", "", "")
		if strings.Count(got.body, "\n") != 2 || strings.Contains(got.body, "qwertz") || len(got.body) > 2000 ||
			strings.ContainsFunc(strings.ReplaceAll(got.body, "\n", ""), unicode.IsControl) {
			t.Errorf("%d bytes: %.1500q", len(got.body), got.body)
		}
	}
	if logs := s.logs.String(); len(logs) > 5000 || strings.Contains(logs, "qwertz") || !strings.Contains(logs, "readiness changed") {
		t.Errorf("got %d bytes of log, want at most 5000 with no token: %.2000s", len(logs), logs)
	}
}

// Catches an error response that is not a problem document (or a Status, below /api and /apis), or whose request ID
// is not in the log. TestMain compares problems with openapi.yaml.
func TestEveryProblemHasTypeAndRequestID(t *testing.T) {
	var fails error
	s := newSite(t)
	s.Logger = slog.New(slog.NewTextHandler(s.logs, nil)) // what an operator sees
	s.Tokens = storetest.Before(func() error {
		if fails == nil {
			panic("the store has hunter2 in its hands")
		}
		return fails
	}, "Store.List").Store(s.store)
	s.start(t)
	for _, test := range []struct {
		method, path string
		fails        error
		status       int
		problem      string // the type of a Problem or the reason of a Status
		allow        string
	}{
		{"GET", "/nowhere", nil, 404, "not-found", ""},
		{"GET", "/v1/token/", nil, 404, "not-found", ""},
		{"GET", "/metrics", nil, 404, "not-found", ""},
		{"GET", "/apiary", nil, 404, "not-found", ""},
		{"GET", "/api/v1/nodes", nil, 404, "NotFound", ""},
		{"GET", "/apis/x/v1/y", nil, 404, "NotFound", ""},
		{"GET", commandPath, nil, 405, "method-not-allowed", "POST"},
		{"X", "/v1/ca", nil, 405, "method-not-allowed", "GET, HEAD"},
		{"DELETE", infoPath, nil, 405, "MethodNotAllowed", "GET, HEAD"},
		{"GET", tokenPath, nil, 500, "internal", ""},
		{"GET", tokenPath, errors.New("hunter2 is the word"), 503, "store-unavailable", ""},
	} {
		fails = test.fails
		got := s.do(t, test.method, test.path, adminBearer, "", "")
		id := got.header.Get("X-Request-Id")
		if got.status != test.status || id == "" || !strings.Contains(s.logs.String(), "request="+id) || got.header.Get("Allow") != test.allow || got.header.Get("Cache-Control") != "no-store" || strings.Contains(got.body, "hunter2") {
			t.Errorf("%s %s: got %d %v %s, want %d and the request ID in the log", test.method, test.path, got.status, got.header, got.body, test.status)
		}
		var status metav1.Status
		var p api.Problem
		kubernetes := strings.HasPrefix(test.path, "/api/") || strings.HasPrefix(test.path, "/apis/")
		into := map[bool]any{true: &status, false: &p}[kubernetes]
		if err := json.Unmarshal([]byte(got.body), into); err != nil || kubernetes && (status.Kind != "Status" || status.APIVersion != "v1" || int(status.Code) != test.status || string(status.Reason) != test.problem) ||
			!kubernetes && (!p.Named(test.problem) || p.RequestID != id || got.header.Get("Content-Type") != "application/problem+json") {
			t.Errorf("%s: %v %s, want %s", test.path, err, got.body, test.problem)
		}
	}
	if got := s.do(t, "HEAD", tokenPath, "", "", ""); got.status != 401 || got.body != "" {
		t.Errorf("HEAD: %d %s", got.status, got.body)
	}
	if !strings.Contains(s.logs.String(), "panic: ") || !strings.Contains(s.logs.String(), "untrustedtext_test.go") {
		t.Error("the log has no stack trace of the panic")
	}
}
