package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

func TestJoinCommandLeadsToDiscovery(t *testing.T) {
	s := newSite(t)
	s.start(t)
	got := s.do(t, "POST", commandPath+"?ttl=2h&description=rack%207", adminBearer, "", "")
	if got.status != 200 || got.header.Get("Content-Type") != "text/plain; charset=utf-8" || got.header.Get("Cache-Control") != "no-store" {
		t.Fatalf("%d %v", got.status, got.header)
	}
	if timing := got.header.Get("Server-Timing"); !strings.Contains(timing, "sign;dur=") {
		t.Errorf("Server-Timing: %q", timing)
	}
	endpoint, token, pins := parseLine(t, got.body)
	found, err := clusterinfo.Discover(t.Context(), endpoint, token, pins)
	if err != nil {
		t.Fatal(err)
	}
	if found.Server != "https://api.example.com:6443" {
		t.Errorf("discovered server %s", found.Server)
	}
	record, err := s.store.Get(t.Context(), token.ID())
	if err != nil {
		t.Fatal(err)
	}
	if left := time.Until(record.Expires); left < 119*time.Minute || left > 2*time.Hour+time.Second {
		t.Errorf("expires in %v, want 2h", left)
	}
	if record.Description != "rack 7" || !record.Signing || !record.Authentication || len(record.Groups) != 1 || record.Groups[0] != tokens.DefaultGroup {
		t.Errorf("record %+v", record)
	}
	for name, secret := range map[string]string{"token": token.RevealSecret(), "bearer": adminBearer} {
		if strings.Contains(s.logs.String(), secret) {
			t.Errorf("the %s is in the log", name)
		}
	}
	if !strings.Contains(s.logs.String(), "user=ada token="+token.ID()) {
		t.Errorf("the log does not name the creator of token %s:\n%s", token.ID(), s.logs)
	}
}

// Catches a join command that lacks a CA during a CA rotation.
func TestJoinCommandPinsEveryCA(t *testing.T) {
	s := newSite(t)
	next, err := signer.GenerateCA("kubernetes", time.Now(), 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	cas := append(s.ca.Bundle(), next.Bundle()...)
	kubeconfig, err := clusterinfo.Kubeconfig("https://api.example.com:6443", cas)
	if err != nil {
		t.Fatal(err)
	}
	s.ClusterInfo = &clusterinfo.Computed{Tokens: s.store, Kubeconfig: kubeconfig}
	s.start(t)
	endpoint, token, pins := parseLine(t, s.do(t, "POST", commandPath, adminBearer, "", "").body)
	if !slices.Equal(pins, clusterinfo.Pins(cas)) {
		t.Errorf("pins %v, want those of both CAs, %v", pins, clusterinfo.Pins(cas))
	}
	if _, err := clusterinfo.Discover(t.Context(), endpoint, token, pins); err != nil {
		t.Error(err)
	}
}

func TestJoinCommandRequests(t *testing.T) {
	s := newSite(t)
	s.start(t)
	const jsonType = "application/json"
	for _, test := range []struct {
		name, query, contentType, body string
		status                         int
		want                           string // part of the problem's detail
		ttl                            time.Duration
	}{
		{name: "nothing asked", status: 200, ttl: 24 * time.Hour},
		{name: "for ever", query: "?ttl=0", status: 200},
		{name: "json", contentType: jsonType, body: `{"ttl": "90m", "description": "日本"}`, status: 200, ttl: 90 * time.Minute},
		{name: "what curl -d sends", contentType: "application/x-www-form-urlencoded", body: `{"ttl": "90m"}`, status: 200, ttl: 90 * time.Minute},
		{name: "empty object", contentType: jsonType, body: `{}`, status: 200, ttl: 24 * time.Hour},
		{name: "one in each", query: "?ttl=1h", contentType: jsonType, body: `{"description": "x"}`, status: 200, ttl: time.Hour},
		{name: "negative", query: "?ttl=-1h", status: 400, want: "ttl: -1h0m0s given; want 1s to"},
		{name: "too short", query: "?ttl=1ns", status: 400, want: "ttl: 1ns given"},
		{name: "absurd", query: "?ttl=2000000h", status: 400, want: "ttl: 2000000h0m0s given"},
		{name: "no unit", query: "?ttl=24", status: 400, want: `ttl: "24" is not a duration`},
		{name: "empty ttl", query: "?ttl=", status: 400, want: "ttl: is empty"},
		{name: "overflow", query: "?ttl=99999999999h", status: 400, want: "is not a duration"},
		{name: "twice", query: "?ttl=1h&ttl=2h", status: 400, want: "ttl: given more than once"},
		{name: "in both", query: "?ttl=1h", contentType: jsonType, body: `{"ttl": "1h"}`, status: 400, want: "ttl: given more than once"},
		{name: "unknown parameter", query: "?tll=1h", status: 400, want: `unknown query parameter "tll"`},
		{name: "bad escape", query: "?ttl=%zz", status: 400, want: "malformed query"},
		{name: "unknown field", contentType: jsonType, body: `{"TTL": "1h"}`, status: 400, want: `unknown field "TTL"; known: ttl,`},
		{name: "repeated field", contentType: jsonType, body: `{"ttl": "1h", "ttl": "2h"}`, status: 400, want: "ttl: given more than once"},
		{name: "wrong kind", contentType: jsonType, body: `{"ttl": 3600}`, status: 400, want: "ttl: a number given, want a string"},
		{name: "not json", contentType: jsonType, body: `ttl=1h`, status: 400, want: "not a JSON object"},
		{name: "two values", contentType: jsonType, body: `{}{}`, status: 400, want: "not a JSON object"},
		{name: "other type", contentType: "text/yaml", body: `ttl: 1h`, status: 415, want: "application/json"},
		{name: "too large", contentType: jsonType, body: `{"description": "` + strings.Repeat("x", server.MaxBody) + `"}`, status: 413, want: "65536 bytes"},
		{name: "long description", contentType: jsonType, body: `{"description": "` + strings.Repeat("x", 1025) + `"}`, status: 400, want: "description: 1025 bytes given, 1024 allowed"},
		{name: "two lines", query: "?description=a%0Ab", status: 400, want: "description: want one line"},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := s.ids(t)
			got := s.do(t, "POST", commandPath+test.query, adminBearer, test.contentType, test.body)
			if got.status != test.status {
				t.Fatalf("status %d, want %d: %s", got.status, test.status, got.body)
			}
			if test.status != 200 {
				var p struct{ Type, Title, Detail, Field, RequestID string }
				if err := json.Unmarshal([]byte(got.body), &p); err != nil || got.header.Get("Content-Type") != "application/problem+json" {
					t.Fatalf("not a problem document: %s %v", got.body, err)
				}
				if !strings.Contains(p.Detail, test.want) || p.RequestID == "" || p.RequestID != got.header.Get("X-Request-Id") || !strings.HasPrefix(p.Type, "https://kubejoin.io/problems/") {
					t.Errorf("problem %+v, want %q", p, test.want)
				}
				if now := s.ids(t); len(now) != len(before) {
					t.Errorf("got %d new tokens after a refused request, want none", len(now)-len(before))
				}
				return
			}
			_, token, _ := parseLine(t, got.body)
			record, err := s.store.Get(t.Context(), token.ID())
			if err != nil {
				t.Fatal(err)
			}
			if test.ttl == 0 {
				if !record.Expires.IsZero() {
					t.Errorf("expires %v, want never", record.Expires)
				}
			} else if left := time.Until(record.Expires); left > test.ttl+time.Second || left < test.ttl-time.Minute {
				t.Errorf("expires in %v, want %v", left, test.ttl)
			}
		})
	}
}

// neverSigned is a cluster-info that never gets a signature.
type neverSigned struct{ server.ClusterInfo }

func (neverSigned) WaitSigned(ctx context.Context, _ tokens.Token) ([]byte, error) {
	<-ctx.Done()
	return nil, errors.New("cluster-info has no signature of it")
}

// failingDelete returns the store of a site. While failures is positive, another writer changes the record before each
// deletion, which fails.
func (s *site) failingDelete(failures *int) tokens.Store {
	return storetest.Faulty(func(c *storetest.Call, do func() error) error {
		if c.Method != "Store.Delete" || *failures == 0 {
			return do()
		}
		*failures--
		if _, err := s.store.Update(c.Context, c.Key, func(r *tokens.Record) error { r.Description += "."; return nil }); err != nil {
			return err
		}
		return errors.New("connection reset")
	}).Store(s.store)
}

func TestAuthenticationAndAuthorization(t *testing.T) {
	broken := func(*http.Request) (auth.User, error) { return auth.User{}, errors.New("reviewer down") }
	for _, test := range []struct {
		name, bearer string
		change       func(*server.Server)
		status       int
	}{
		{name: "admin", bearer: adminBearer, status: 200},
		{name: "another user", bearer: viewerBearer, status: 403},
		{name: "no bearer", status: 401},
		{name: "unknown bearer", bearer: adminBearer + "x", status: 401},
		{name: "a prefix", bearer: adminBearer[:20], status: 401},
		{name: "no authenticator", bearer: adminBearer, change: func(s *server.Server) { s.Callers.Authenticate = nil }, status: 403},
		{name: "no authorizer", bearer: adminBearer, change: func(s *server.Server) { s.Callers.Authorize = nil }, status: 403},
		{name: "no authorizer and no bearer", change: func(s *server.Server) { s.Callers.Authorize = nil }, status: 403},
		{name: "authenticator away", bearer: adminBearer, change: func(s *server.Server) { s.Callers.Authenticate = broken }, status: 503},
		{name: "authorizer away", bearer: adminBearer, change: func(s *server.Server) {
			s.Callers.Authorize = func(*http.Request, auth.User, auth.Access) error { return errors.New("reviewer down") }
		}, status: 503},
		{name: "no group at all", bearer: viewerBearer, change: func(s *server.Server) { s.Callers.Authorize = auth.AllowGroup("") }, status: 403},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newSite(t)
			s.Status.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/plain")
				_, _ = io.WriteString(w, "metrics")
			})
			if test.change != nil {
				test.change(&s.Server)
			}
			s.start(t)
			for _, route := range [][2]string{{"POST", commandPath}, {"GET", "/metrics"}} {
				got := s.do(t, route[0], route[1], test.bearer, "", "")
				if got.status != test.status {
					t.Errorf("%s: status %d, want %d: %s", route[1], got.status, test.status, got.body)
				}
				if strings.Contains(got.body, "reviewer down") {
					t.Errorf("%s: the response shows an internal error: %s", route[1], got.body)
				}
				if (got.status == 401) != (got.header.Get("WWW-Authenticate") != "") || (got.status == 503) != (got.header.Get("Retry-After") != "") {
					t.Errorf("%s: status %d with headers %v", route[1], got.status, got.header)
				}
			}
			for _, path := range []string{infoPath, "/healthz", "/readyz", "/version"} {
				if got := s.do(t, "GET", path, "", "", ""); got.status != 200 {
					t.Errorf("%s without a credential: got %d, want 200", path, got.status)
				}
			}
		})
	}
}

func TestPaths(t *testing.T) {
	s := newSite(t)
	s.Status.Checks = []server.Check{
		{Name: "good", Ready: func(context.Context) error { return nil }},
		{Name: "bad", Ready: func(context.Context) error { return errors.New("it is dark") }},
	}
	s.start(t)
	for _, test := range []struct {
		method, path string
		status       int
		want         string
	}{
		{"GET", "/healthz", 200, "ok\n"},
		{"HEAD", "/healthz", 200, ""},
		{"GET", "/readyz", 503, "[+]good ok\n[-]bad failed: it is dark\nreadyz check failed\n"},
		{"GET", "/version", 200, `{"version":"v0.0.0","goVersion":"","platform":""}` + "\n"},
		{"GET", commandPath, 405, "does not support the method"},
		{"HEAD", tokenPath, 401, ""},
		{"PUT", "/v1/claim", 405, "does not support the method"},
		{"GET", "/nothing", 404, "nothing at this path"},
		{"GET", "/metrics", 404, "nothing at this path"},
		{"GET", "/api/v1/namespaces/kube-system/configmaps/cluster-info", 404, `"kind":"Status"`},
		{"DELETE", infoPath, 405, `"kind":"Status"`},
		{"GET", infoPath, 200, `"kind":"ConfigMap"`},
	} {
		got := s.do(t, test.method, test.path, "", "", "")
		if allow := got.header.Get("Allow"); (got.status == 405) != (allow == "POST" || allow == "GET, HEAD") {
			t.Errorf("%s %s: %d with Allow %q", test.method, test.path, got.status, allow)
		}
		if got.status != test.status || !strings.Contains(got.body, test.want) {
			t.Errorf("%s %s: %d %s, want %d %s", test.method, test.path, got.status, got.body, test.status, test.want)
		}
	}
}
