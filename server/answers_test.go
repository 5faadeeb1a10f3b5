package server_test

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// Catches an error response that is no problem (or, below /api and /apis, no Status), or whose request ID is not in
// the log.
func TestEveryProblemHasTypeAndRequestID(t *testing.T) {
	s := newSite(t)
	s.Logger = slog.New(slog.NewTextHandler(s.logs, nil)) // what an operator sees
	s.Claims = s.store.Claims()
	s.Webhooks.TokenReview = &server.TokenReview{Authenticate: s.Callers.Authenticate}
	s.start(t)
	panics, broken := s.Server, s.Server
	panics.Tokens = storetest.Before(func() error { panic("the store has hunter2 in its hands") }, "Store.List").Store(s.store)
	broken.Tokens = storetest.Fail(errors.New("hunter2 is the word"), "Store.List").Store(s.store)
	panics.Registerer, broken.Registerer = nil, nil
	sites := map[string]*site{"": s}
	for name, changed := range map[string]server.Server{"panics": panics, "broken": broken} {
		other := *s
		other.Server = changed
		other.start(t)
		sites[name] = &other
	}
	const jsonType = "application/json"
	long := strings.Repeat("x", server.MaxBody+1)
	for _, test := range []struct {
		site, method, path, bearer, contentType, body string
		status                                        int
		problem, field                                string // problem: the type of a Problem or the reason of a Status
	}{
		{method: "GET", path: "/nowhere", status: 404, problem: "not-found"},
		{method: "GET", path: "/v1/token/", bearer: adminBearer, status: 404, problem: "not-found"},
		{method: "GET", path: "/apiary", status: 404, problem: "not-found"},
		{method: "GET", path: "/api/v1/nodes", status: 404, problem: "NotFound"},
		{method: "GET", path: "/apis/x/v1/y", status: 404, problem: "NotFound"},
		{method: "PUT", path: "/v1/token", status: 405, problem: "method-not-allowed"},
		{method: "X", path: "/v1/ca", status: 405, problem: "method-not-allowed"},
		{method: "DELETE", path: infoPath, status: 405, problem: "MethodNotAllowed"},
		{method: "GET", path: "/v1/token", status: 401, problem: "unauthorized"},
		{method: "GET", path: "/v1/token", bearer: viewerBearer, status: 403, problem: "forbidden"},
		{method: "GET", path: "/v1/token/qwertz", bearer: adminBearer, status: 404, problem: "no-token"},
		{method: "GET", path: "/v1/token/QWERTZ", bearer: adminBearer, status: 400, problem: "invalid-field", field: "id"},
		{method: "GET", path: "/v1/token?limit=0x1", bearer: adminBearer, status: 400, problem: "invalid-field", field: "limit"},
		{method: "GET", path: "/v1/token?%", bearer: adminBearer, status: 400, problem: "invalid-query"},
		{method: "GET", path: "/v1/ca?format=der", status: 400, problem: "invalid-field", field: "format"},
		{method: "GET", path: "/v1/cluster-info?format=der", status: 400, problem: "invalid-field", field: "format"},
		{method: "GET", path: "/v1/ca?" + strings.Repeat("a&", 1001), status: 414, problem: "query-too-long"},
		{method: "DELETE", path: "/v1/claim/worker-1", bearer: adminBearer, status: 404, problem: "no-claim"},
		{method: "POST", path: "/v1/token", bearer: adminBearer, contentType: jsonType, body: long, status: 413, problem: "body-too-large"},
		{method: "POST", path: "/v1/token", bearer: adminBearer, contentType: "text/yaml", body: "ttl: 1h", status: 415, problem: "unsupported-media-type"},
		{method: "POST", path: "/v1/token", bearer: adminBearer, contentType: jsonType, body: `{"ttl":`, status: 400, problem: "invalid-body"},
		{method: "POST", path: "/v1/token", bearer: adminBearer, contentType: jsonType, body: `{"ttl":"1"}`, status: 400, problem: "invalid-field", field: "ttl"},
		{method: "POST", path: reviewPath, status: 401, problem: "Unauthorized"},
		{method: "POST", path: reviewPath, bearer: adminBearer, contentType: jsonType, body: `{`, status: 400, problem: "BadRequest"},
		{method: "POST", path: reviewPath, bearer: adminBearer, contentType: jsonType, body: long, status: 413, problem: "RequestEntityTooLarge"},
		{method: "POST", path: reviewPath, bearer: adminBearer, contentType: "text/yaml", body: "kind: TokenReview", status: 415, problem: "UnsupportedMediaType"},
		{site: "panics", method: "GET", path: "/v1/token", bearer: adminBearer, status: 500, problem: "internal"},
		{site: "broken", method: "GET", path: "/v1/token", bearer: adminBearer, status: 503, problem: "store-unavailable"},
	} {
		name := test.site + " " + test.method + " " + test.path[:min(len(test.path), 40)]
		got := sites[test.site].do(t, test.method, test.path, test.bearer, test.contentType, test.body)
		if got.status != test.status {
			t.Errorf("%s: %d %s, want %d", name, got.status, got.body, test.status)
			continue
		}
		id := got.header.Get("X-Request-Id")
		if id == "" || !strings.Contains(s.logs.String(), "request="+id) {
			t.Errorf("%s: got request ID %q, want one that is in the log", name, id)
		}
		if got.header.Get("Cache-Control") != "no-store" || got.header.Get("ETag") != "" || strings.Contains(got.body, "hunter2") {
			t.Errorf("%s: %v %s", name, got.header, got.body)
		}
		if strings.HasPrefix(test.path, "/api/") || strings.HasPrefix(test.path, "/apis/") {
			var status struct {
				APIVersion, Kind, Status, Message, Reason string
				Code                                      int
			}
			if err := json.Unmarshal([]byte(got.body), &status); err != nil || status.Kind != "Status" || status.APIVersion != "v1" || status.Status != "Failure" ||
				status.Code != test.status || status.Reason != test.problem || status.Message == "" || got.header.Get("Content-Type") != jsonType {
				t.Errorf("%s: %v %s", name, err, got.body)
			}
			continue
		}
		var p api.Problem
		if err := json.Unmarshal([]byte(got.body), &p); err != nil || !p.Named(test.problem) || p.Field != test.field || p.Status != test.status || p.Title == "" || p.Detail == "" ||
			p.RequestID != id || got.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %v %s, want %s", name, err, got.body, test.problem)
		}
	}
	if !strings.Contains(s.logs.String(), "panic: ") || !strings.Contains(s.logs.String(), "answers_test.go") {
		t.Error("the log has no stack trace of the panic")
	}
}

// Catches a problem type that was renamed or that docs/http-api.md does not list.
func TestProblemsAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../docs/http-api.md")
	if err != nil {
		t.Fatal(err)
	}
	for name := range problemsInSource(t) {
		if !strings.Contains(string(doc), "`"+name+"`") {
			t.Errorf("docs/http-api.md does not list problem %q", name)
		}
	}
}
