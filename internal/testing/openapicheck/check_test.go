package openapicheck_test

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/openapicheck"
)

const description = `
openapi: 3.1.0
info: {title: test, version: v1}
paths:
  /v1/thing/{id}:
    parameters:
      - {name: id, in: path, required: true, schema: {type: string}}
    get:
      operationId: get-thing
      x-problems: [no-thing, broken]
      parameters:
        - {name: wide, in: query, schema: {type: boolean}}
      responses:
        "200":
          description: a thing
          headers:
            X-Request-Id: {$ref: '#/components/headers/X-Request-Id'}
            Content-Encoding: {schema: {const: gzip}}
          content:
            application/json: {schema: {$ref: '#/components/schemas/Thing'}}
            text/plain: {schema: {pattern: '^thing'}}
        "404": {$ref: '#/components/responses/NotFound'}
  /v1/thing/all:
    post:
      operationId: make-thing
      requestBody: {content: {application/json: {schema: {$ref: '#/components/schemas/Thing'}}}}
      responses:
        "200": {description: done, headers: {X-Request-Id: {$ref: '#/components/headers/X-Request-Id'}}}
components:
  headers:
    X-Request-Id: {required: true, schema: {type: string, pattern: '^[A-Z]+$'}}
    Retry-After: {schema: {type: integer, minimum: 1}}
  schemas:
    Thing:
      type: object
      additionalProperties: false
      required: [name]
      properties:
        name: {type: string}
        made: {type: string, format: date-time}
    Problem: {type: object, required: [type, status]}
  responses:
    NotFound: &problem
      description: not there
      headers: {X-Request-Id: {$ref: '#/components/headers/X-Request-Id'}}
      content: {application/problem+json: {schema: {$ref: '#/components/schemas/Problem'}}}
    MethodNotAllowed: *problem
    QueryTooLong: *problem
    TooManyRequests: *problem
    Unavailable:
      description: later
      headers: {X-Request-Id: {$ref: '#/components/headers/X-Request-Id'}, Retry-After: {$ref: '#/components/headers/Retry-After'}}
      content: {application/problem+json: {schema: {$ref: '#/components/schemas/Problem'}}}
    KubernetesStatus: *problem
    KubernetesMethodNotAllowed: *problem
    KubernetesTooManyRequests: *problem
    KubernetesUnavailable: *problem
`

func parse(t *testing.T) *openapicheck.Document {
	t.Helper()
	return must.Value(openapicheck.Parse([]byte(description)))(t)
}

// Check must find each difference from the description.
func TestCheck(t *testing.T) {
	d := parse(t)
	const problem = "application/problem+json"
	packed := func(text string) string {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, _ = w.Write([]byte(text))
		_ = w.Close()
		return b.String()
	}
	for _, test := range []struct {
		name, method, path, sent string
		status                   int
		header                   []string // in addition to the headers of all responses
		without                  string   // removes one of these headers
		media, body              string
		operation, wrong         string
	}{
		{name: "as described", body: `{"name":"a","made":"2026-11-20T00:00:00Z"}`},
		{name: "another type", media: "text/plain; charset=utf-8", body: "thing"},
		{name: "compressed", header: []string{"Content-Encoding", "gzip"}, body: packed(`{"name":"a"}`)},
		{name: "compressed and wrong", header: []string{"Content-Encoding", "gzip"}, body: packed(`{}`), wrong: "missing property 'name'"},
		{name: "not compressed", header: []string{"Content-Encoding", "gzip"}, body: `{"name":"a"}`, wrong: "gzip: "},
		{name: "head", method: "HEAD", body: ""},
		{name: "query", path: "/v1/thing/a?wide=true", body: `{"name":"a"}`},
		{name: "unknown query", path: "/v1/thing/a?deep=true", body: `{"name":"a"}`, wrong: `query parameter "deep" is accepted`},
		{name: "more fields", body: `{"name":"a","size":1}`, wrong: "'size' not allowed"},
		{name: "fewer fields", body: `{}`, wrong: "missing property 'name'"},
		{name: "no time", body: `{"name":"a","made":"today"}`, wrong: "'today' is not valid date-time"},
		{name: "no body", wrong: "the body is not JSON"},
		{name: "another encoding", media: "text/plain", header: []string{"Content-Encoding", "br"}, body: "thing", wrong: "header Content-Encoding: "},
		{name: "no JSON", body: `thing`, wrong: "the body is not JSON"},
		{name: "other text", media: "text/plain", body: "a thing", wrong: "does not match pattern"},
		{name: "type not described", media: "text/html", body: "thing", wrong: `content type "text/html" is not described`},
		{name: "header not described", header: []string{"X-Powered-By", "go"}, body: `{"name":"a"}`, wrong: "header X-Powered-By is not described"},
		{name: "header missing", without: "X-Request-Id", body: `{"name":"a"}`, wrong: "header X-Request-Id is missing"},
		{name: "header wrong", header: []string{"X-Request-Id", "id"}, body: `{"name":"a"}`, wrong: "header X-Request-Id: "},
		{name: "may be sniffed", without: "X-Content-Type-Options", body: `{"name":"a"}`, wrong: "X-Content-Type-Options"},
		{name: "status", status: 202, body: `{"name":"a"}`, wrong: "the status is not described"},
		{name: "problem", status: 404, media: problem, body: `{"type":"https://x/no-thing","status":404,"requestID":"ABC"}`},
		{name: "problem not described", status: 404, media: problem, body: `{"type":"https://x/no-luck","status":404,"requestID":"ABC"}`, wrong: "problem no-luck is not described"},
		{name: "problem of another status", status: 404, media: problem, body: `{"type":"https://x/no-thing","status":500,"requestID":"ABC"}`, wrong: "the problem says status 500"},
		{name: "problem of another request", status: 404, media: problem, body: `{"type":"https://x/no-thing","status":404,"requestID":"ABD"}`, wrong: "the problem says request ABD"},
		{name: "problem with a token", status: 404, media: problem, body: `{"type":"https://x/no-thing","status":404,"requestID":"ABC","detail":"abcdef.0123456789abcdef"}`, wrong: "the form of a token"},
		{name: "no path", path: "/v2", status: 404, media: problem, body: `{"type":"https://x/not-found","status":404,"requestID":"ABC"}`, operation: "elsewhere"},
		{name: "no path, and an answer", path: "/v2", body: "{}", operation: "elsewhere", wrong: "the status is not described"},
		{name: "no method", path: "/v1/thing/all", status: 405, media: problem, body: `{"type":"https://x/method-not-allowed","status":405,"requestID":"ABC"}`, operation: "elsewhere"},
		{name: "later", path: "/v2", status: 503, header: []string{"Retry-After", "soon"}, media: problem, body: `{"type":"https://x/later","status":503,"requestID":"ABC"}`, operation: "elsewhere", wrong: "header Retry-After: "},
		{name: "body", method: "POST", path: "/v1/thing/all", sent: `{"name":"a"}`, media: "none", operation: "make-thing"},
		{name: "body that is not described", method: "POST", path: "/v1/thing/all", sent: `{"nam":"a"}`, media: "none", operation: "make-thing", wrong: "a body is accepted that is not described"},
		{name: "answer that is not described", method: "POST", path: "/v1/thing/all", body: "{}", operation: "make-thing", wrong: "none is described"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var found openapicheck.Result
			h := d.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var sent bytes.Buffer
				if _, err := sent.ReadFrom(r.Body); err != nil || sent.String() != test.sent {
					t.Errorf("%q is sent: %v", sent.String(), err)
				}
				w.Header().Set("X-Request-Id", "ABC")
				w.Header().Set("X-Content-Type-Options", "nosniff")
				if test.media != "none" {
					w.Header().Set("Content-Type", or(test.media, "application/json"))
				}
				for i := 0; i < len(test.header); i += 2 {
					w.Header().Set(test.header[i], test.header[i+1])
				}
				w.Header().Del(test.without)
				if test.status != 0 {
					w.WriteHeader(test.status)
				}
				_, _ = w.Write([]byte(test.body))
			}), func(f openapicheck.Result) { found = f })
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), or(test.method, "GET"), or(test.path, "/v1/thing/a"), strings.NewReader(test.sent)))
			if w.Body.String() != test.body {
				t.Errorf("the client gets %q", w.Body)
			}
			if found.Operation != or(test.operation, "get-thing") {
				t.Errorf("operation %s", found.Operation)
			}
			if (found.Wrong == "") != (test.wrong == "") || !strings.Contains(found.Wrong, test.wrong) {
				t.Errorf("found %q, want %q", found.Wrong, test.wrong)
			}
		})
	}
}

func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// Large responses must reach the client completely. The handler checks only some of them.
func TestLargeAnswers(t *testing.T) {
	d := parse(t)
	body := `{"name":"` + strings.Repeat("a", 300<<10) + `","size":1}`
	wrong := 0
	h := d.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Request-Id", "ABC")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(body[:100]))
		_, _ = w.Write([]byte(body[100:]))
	}), func(f openapicheck.Result) {
		if f.Wrong != "" {
			wrong++
		}
	})
	for range 100 {
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/v1/thing/a", nil)); w.Body.String() != body {
			t.Fatal("the client gets something else")
		}
	}
	if wrong != 5 { // responses 1, 2, 3, 50 and 100
		t.Errorf("%d of 100 large answers were looked at, want 5", wrong)
	}
}

func TestTally(t *testing.T) {
	d := parse(t)
	file := filepath.Join(t.TempDir(), "answers")
	var all sync.WaitGroup
	for range 4 { // as if in 4 processes
		report := must.Value(openapicheck.Append(file))(t)
		all.Go(func() {
			for range 100 {
				report(openapicheck.Result{Operation: "get-thing", Status: 404, Problem: "no-thing"})
			}
		})
	}
	all.Wait()
	var tally openapicheck.Tally
	if err := tally.AddFile(file); err != nil || tally.Len() != 400 || tally.Err() != nil {
		t.Fatalf("%d found: %v %v", tally.Len(), err, tally.Err())
	}
	if unseen := tally.Unseen(d, 400); len(unseen) != 2 {
		t.Errorf("unseen %q: an operation that has only failed is not seen", unseen)
	}
	if unseen := tally.UnseenProblems(d); len(unseen) != 1 || unseen[0] != "broken" {
		t.Errorf("unseen problems %q", unseen)
	}
	for range 40 {
		tally.Add(openapicheck.Result{Operation: "make-thing", Status: 200, Wrong: "the sky"})
	}
	if err := tally.Err(); err == nil || !strings.Contains(err.Error(), "the sky") || !strings.Contains(err.Error(), "and 10 more") {
		t.Errorf("%v", err)
	}
	if unseen := tally.Unseen(d, 400); len(unseen) != 1 || !strings.Contains(tally.String(), "440 responses") {
		t.Errorf("unseen %q, %s", unseen, tally.String())
	}
}
