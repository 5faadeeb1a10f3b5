package server_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/kubejoin/kubejoin/internal/httplimit"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// heldClusterInfo is a cluster-info whose calls block until free is closed.
type heldClusterInfo struct {
	server.ClusterInfo
	entered                    chan struct{}
	holdJSON, holdSigned, free chan struct{} // JSON and WaitSigned block if holdJSON and holdSigned are not nil
}

func (h *heldClusterInfo) JSON(ctx context.Context) ([]byte, error) {
	h.hold(h.holdJSON)
	return h.ClusterInfo.JSON(ctx)
}

func (h *heldClusterInfo) WaitSigned(ctx context.Context, t tokens.Token) ([]byte, error) {
	h.hold(h.holdSigned)
	return h.ClusterInfo.WaitSigned(ctx, t)
}

func (h *heldClusterInfo) hold(at chan struct{}) {
	if at != nil {
		h.entered <- struct{}{}
		<-h.free
	}
}

// unread fails the test when it is read.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body of a refused request was read")
	return 0, io.EOF
}

// Catches a flood of one class that blocks another class, or that is read or authenticated before it is refused.
func TestFloodOfOneClassLeavesOthersFree(t *testing.T) {
	for _, test := range []struct {
		flood                string
		method, path         string
		most                 int
		otherMethod, another string
		contentType          string
	}{
		{"discovery", "GET", infoPath, httplimit.MaxDiscovery, "POST", commandPath, "application/json"},
		{"join-command", "POST", commandPath, httplimit.MaxJoinCommands, "GET", infoPath, "application/problem+json"},
		{"lifecycle", "GET", tokenPath, httplimit.MaxLifecycle, "POST", commandPath, "application/problem+json"},
	} {
		t.Run(test.flood, func(t *testing.T) {
			s := newSite(t)
			s.Minting.Advertise = "127.0.0.1:9443"
			on := make(chan struct{})
			h := &heldClusterInfo{ClusterInfo: s.ClusterInfo, entered: make(chan struct{}), free: make(chan struct{})}
			if test.flood == "join-command" {
				h.holdSigned = on
			} else {
				h.holdJSON = on
			}
			s.ClusterInfo = h
			s.Logger = nil
			var authenticated sync.Map
			authenticate := s.Callers.Authenticate
			s.Callers.Authenticate = func(r *http.Request) (auth.User, error) {
				authenticated.Store(r.Header.Get("X-Test"), true)
				return authenticate(r)
			}
			handler := s.Handler()
			ask := func(method, path, name string, body io.Reader) *httptest.ResponseRecorder {
				r := httptest.NewRequestWithContext(t.Context(), method, path, body)
				r.Header.Set("Authorization", "Bearer "+adminBearer)
				r.Header.Set("X-Test", name)
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, r)
				return w
			}

			var flood sync.WaitGroup
			for range test.most {
				flood.Go(func() {
					if w := ask(test.method, test.path, "flood", nil); w.Code != 200 {
						t.Errorf("within the limit: got %d %s, want 200", w.Code, w.Body)
					}
				})
			}
			for range test.most {
				<-h.entered
			}
			w := ask(test.method, test.path, "beyond", unread{t})
			if w.Code != 503 || w.Header().Get("Retry-After") != "1" || w.Header().Get("Content-Type") != test.contentType || !strings.Contains(w.Body.String(), "too many requests") {
				t.Errorf("above the limit: got %d %v %s, want 503 and Retry-After 1", w.Code, w.Header(), w.Body)
			}
			if _, asked := authenticated.Load("beyond"); asked {
				t.Error("the sender of a refused request was authenticated")
			}
			for _, path := range []string{"/healthz", "/readyz", "/version", "/nowhere"} {
				if w := ask("GET", path, "other", nil); w.Code == 503 {
					t.Errorf("%s: %d", path, w.Code)
				}
			}
			if w := ask(test.otherMethod, test.another, "other", nil); w.Code != 200 {
				t.Errorf("the other class: %d %s", w.Code, w.Body)
			}
			expected := `
# HELP kubejoin_http_requests_refused_total Requests refused, by class and reason: too many of the class in flight (overloaded), or the client or user is over a limit.
# TYPE kubejoin_http_requests_refused_total counter
`
			for _, class := range []string{"discovery", "join-command", "lifecycle", "other", "probe"} {
				for _, reason := range []string{"certificate-rate", "client-in-flight", "client-rate", "failed-authentications", "overloaded", "user-in-flight", "user-rate"} {
					expected += `kubejoin_http_requests_refused_total{class="` + class + `",reason="` + reason + `"} ` + map[bool]string{true: "1", false: "0"}[class == test.flood && reason == "overloaded"] + "\n"
				}
			}
			if err := testutil.GatherAndCompare(s.registry(), strings.NewReader(expected), "kubejoin_http_requests_refused_total"); err != nil {
				t.Error(err)
			}
			close(h.free)
			flood.Wait()
			h.holdJSON, h.holdSigned = nil, nil
			if w := ask(test.method, test.path, "after", nil); w.Code != 200 {
				t.Errorf("after the flood: %d %s", w.Code, w.Body)
			}
		})
	}
}

// Concurrent readiness requests share a round of checks. Catches a request that gets the result of a round that began
// before it.
func TestConcurrentReadinessChecksShareARound(t *testing.T) { synctest.Test(t, testReadinessRounds) }

func testReadinessRounds(t *testing.T) {
	s := newSite(t)
	began, finish := make(chan struct{}, 100), make(chan error)
	s.Status.Checks = []server.Check{{Name: "slow", Ready: func(context.Context) error {
		began <- struct{}{}
		return <-finish
	}}}
	handler := s.Handler()
	ask := func(ctx context.Context) int {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/readyz", nil))
		return w.Code
	}
	first := make(chan int)
	go func() { first <- ask(t.Context()) }()
	<-began

	const n = 100
	later := make(chan int, n)
	left, leave := context.WithCancel(t.Context())
	go func() { later <- ask(left) }() // this one starts the next round
	synctest.Wait()
	for range n - 1 {
		go func() { later <- ask(t.Context()) }()
	}
	synctest.Wait()
	leave()
	if code := <-later; code != 500 {
		t.Errorf("canceled request: got %d, want 500", code)
	}
	finish <- errors.New("not yet")
	if code := <-first; code != 503 {
		t.Errorf("first round: got %d, want 503", code)
	}
	close(finish)
	for range n - 1 {
		if code := <-later; code != 200 {
			t.Errorf("later round: got %d, want 200", code)
		}
	}
	if rounds := 1 + len(began); rounds != 2 {
		t.Errorf("got %d rounds for %d requests, want 2", rounds, n+1)
	}
	if strings.Contains(s.logs.String(), "panic") {
		t.Errorf("the canceled request panicked:\n%s", s.logs)
	}
}

// Catches a route that parses a query with too many bytes or parameters.
func TestRefusesLongQueriesUnparsed(t *testing.T) {
	s := newSite(t)
	handler := s.Server.Handler()
	for name, query := range map[string]string{
		"10,000 parameters":             strings.Repeat("a&", 5000),
		"1 MiB":                         "ttl=" + strings.Repeat("1", 1<<20),
		"100,000 parameters":            strings.Repeat("a=b&", 100_000),
		"100,000 different parameters ": "0" + strings.Repeat("&a%61=1", 100_000),
	} {
		for _, request := range [][2]string{{"POST", commandPath}, {"GET", tokenPath}, {"GET", "/readyz"}, {"GET", infoPath}, {"DELETE", tokenPath + "/abcdef"}} {
			r := httptest.NewRequest(request[0], request[1], unread{t})
			r.URL.RawQuery = query
			r.Header.Set("Authorization", "Bearer "+adminBearer)
			w := httptest.NewRecorder()
			allocated := testing.AllocsPerRun(5, func() { w = httptest.NewRecorder(); handler.ServeHTTP(w, r) })
			if w.Code != http.StatusRequestURITooLong || allocated > 300 {
				t.Errorf("%s, %s: %d %.200s, %v allocations", name, request[1], w.Code, w.Body, allocated)
			}
		}
	}
	if w := from(t, handler, "192.0.2.1:1", "GET", "/readyz?"+strings.Repeat("verbose&", 999), "", nil); w.Code != 200 {
		t.Errorf("1000 parameters: %d %s", w.Code, w.Body)
	}
}
