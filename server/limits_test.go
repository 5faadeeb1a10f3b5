package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/web/httplimit"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
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
	stranger := tokens.Generate().Reveal()
	review := `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","spec":{"token":"` + stranger + `"}}`
	classes := []struct {
		name                       string
		method, path, bearer, body string // a request that waits
		other                      string // another path of the class, whose requests do not wait
		most                       int
	}{
		{"discovery", "GET", infoPath, "", "", "/v1/ca", httplimit.MaxDiscovery},
		{"join-command", "POST", commandPath, adminBearer, "", tokenPath + "?x", httplimit.MaxJoinCommands},
		{"lifecycle", "GET", tokenPath, adminBearer, "", "/v1/claim", httplimit.MaxLifecycle},
		{"watch", "GET", "/v1/join", adminBearer, "", "/v1/join?x", httplimit.MaxWatches},
		{"certificate", "POST", certificatePath, stranger, "", certificatePath + "?x", httplimit.MaxCertificates},
		{"token-review", "POST", reviewPath, reviewerBearer, review, reviewPath, httplimit.MaxTokenReviews},
	}
	for _, flooded := range classes {
		t.Run(flooded.name, func(t *testing.T) {
			s, _ := certifying(t)
			s.Webhooks.TokenReview = reviewed(t).Webhooks.TokenReview
			s.Minting.Advertise, s.Logger = "127.0.0.1:9443", nil
			h := &heldClusterInfo{ClusterInfo: s.ClusterInfo, entered: make(chan struct{}), free: make(chan struct{})}
			s.ClusterInfo = h
			switch flooded.name {
			case "join-command":
				h.holdSigned = make(chan struct{})
			case "discovery", "lifecycle":
				h.holdJSON = make(chan struct{})
			case "watch":
				s.Cluster.Joins = func(ctx context.Context, node, token string) (api.JoinList, error) {
					h.hold(h.free)
					return listed(ctx, node, token)
				}
			default:
				s.Tokens = storetest.Before(func() error { h.entered <- struct{}{}; <-h.free; return nil }, "Store.Get").Store(s.store)
			}
			var authenticated atomic.Bool
			authenticate := s.Callers.Authenticate
			s.Callers.Authenticate = func(r *http.Request) (auth.User, error) { authenticated.Store(true); return authenticate(r) }
			handler := s.Handler()
			ask := func(body io.Reader) *httptest.ResponseRecorder {
				r := httptest.NewRequestWithContext(t.Context(), flooded.method, flooded.path, body)
				r.Header.Set("Content-Type", "application/json")
				if flooded.bearer != "" {
					r.Header.Set("Authorization", "Bearer "+flooded.bearer)
				}
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, r)
				return w
			}
			var flood sync.WaitGroup
			for range flooded.most {
				flood.Go(func() {
					if w := ask(strings.NewReader(flooded.body)); w.Code == 503 || w.Code == 429 {
						t.Errorf("within the limit: got %d %s", w.Code, w.Body)
					}
				})
			}
			for range flooded.most {
				<-h.entered
			}
			authenticated.Store(false)
			if w := ask(unread{t}); w.Code != 503 || w.Header().Get("Retry-After") != "1" || !strings.Contains(w.Body.String(), "too many requests") || authenticated.Load() {
				t.Errorf("above the limit: got %d %v %s, authenticated %t, want 503 and Retry-After 1", w.Code, w.Header(), w.Body, authenticated.Load())
			}
			for _, path := range []string{"/healthz", "/readyz", "/version", "/nowhere"} {
				if w := get(t, handler, path); w.Code == 503 {
					t.Errorf("%s: %d", path, w.Code)
				}
			}
			for _, other := range classes {
				w := from(t, handler, "192.0.2.1:1", other.method, other.other, map[bool]string{true: adminBearer}[other.bearer == adminBearer], nil)
				if (w.Code == 503) != (other.name == flooded.name) {
					t.Errorf("%s: %d %s", other.other, w.Code, w.Body)
				}
			}
			if n, all := s.refused(t, "overloaded", flooded.name), s.refused(t, "overloaded", ""); n != 2 || all != 2 {
				t.Errorf("got %v counted refusals of the class and %v in all, want 2", n, all)
			}
			close(h.free)
			flood.Wait()
			if n := s.inFlight(t, flooded.name); n != 0 {
				t.Errorf("got %v in flight at the end, want 0", n)
			}
		})
	}
}

// Concurrent readiness requests share a round of checks. Catches a request that gets the result of a round that began
// before it, and a round that fails because a client disconnects.
func TestConcurrentReadinessChecksShareARound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.Status.Metrics = http.NotFoundHandler()
		began, finish := 0, make(chan error)
		s.Status.Checks = []server.Check{{Name: "slow", Ready: func(ctx context.Context) error {
			began++
			select {
			case err := <-finish:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}}}
		handler := s.Handler()
		ask := func(ctx context.Context, path string) chan int {
			code := make(chan int, 1)
			go func() {
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, asAdmin(httptest.NewRequestWithContext(ctx, "GET", path, nil)))
				code <- w.Code
			}()
			synctest.Wait()
			return code
		}
		left, leave := context.WithCancel(t.Context())
		canceled, later := []chan int{ask(left, "/readyz"), ask(left, "/metrics")}, []chan int{ask(t.Context(), "/readyz"), ask(t.Context(), "/readyz")}
		leave()
		for _, code := range canceled {
			if code := <-code; code != 500 || strings.Contains(s.logs.String(), "panic") {
				t.Errorf("canceled request: got %d, want 500\n%s", code, s.logs)
			}
		}
		finish <- nil
		synctest.Wait()
		if ready := s.gauge(t, "kubejoin_ready", "slow"); ready != 1 {
			t.Errorf("after the first round: got kubejoin_ready %v, want 1", ready)
		}
		finish <- errors.New("not yet")
		for _, code := range later {
			if code := <-code; code != 503 {
				t.Errorf("later round: got %d, want 503", code)
			}
		}
		if began != 2 {
			t.Errorf("got %d rounds for 3 requests, want 2", began)
		}
	})
}

// Catches a route that parses a query with too many bytes or parameters.
func TestRefusesLongQueriesUnparsed(t *testing.T) {
	s := newSite(t)
	handler := must.Get(s.Server.Handler())
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

// One client may use at most as many slots of a class as are free. Catches a client that takes all slots. Package
// httplimit tests the shares.
func TestLimitsRequestsInFlightOfOneClient(t *testing.T) {
	s := newSite(t)
	s.Limits.ClientRate, s.Limits.UserRate = server.Rate{}, server.Rate{}
	h := &heldClusterInfo{ClusterInfo: s.ClusterInfo, entered: make(chan struct{}), free: make(chan struct{}), holdJSON: make(chan struct{})}
	s.ClusterInfo = h
	handler := s.Handler()
	var held sync.WaitGroup
	hold := func(remote string, n int) {
		for range n {
			held.Go(func() {
				if w := from(t, handler, remote, "GET", infoPath, "", nil); w.Code != 200 {
					t.Errorf("%s: %d %s", remote, w.Code, w.Body)
				}
			})
			<-h.entered
		}
	}
	hold("192.0.2.1:1", httplimit.MaxDiscovery/2)
	wantTooMany(t, "half of all", from(t, handler, "192.0.2.1:2", "GET", infoPath, "", nil))
	hold("[2001:db8::1]:1", httplimit.MaxDiscovery/4)
	wantTooMany(t, "half of the rest for a /64", from(t, handler, "[2001:db8::2]:1", "GET", infoPath, "", nil))
	hold("", httplimit.MaxDiscovery/4) // not over a network, so the requests have no client address
	if w := from(t, handler, "192.0.2.1:1", "GET", "/version", "", nil); w.Code != 200 {
		t.Errorf("another class: got %d %s, want 200", w.Code, w.Body)
	}
	if n := s.refused(t, "client-in-flight", "discovery"); n != 2 || !strings.Contains(s.logs.String(), "reason=client-in-flight from=192.0.2.1 class=discovery") {
		t.Errorf("got %v client-in-flight refusals, want 2 and one in the log:\n%s", n, s.logs)
	}
	close(h.free)
	held.Wait()
	h.holdJSON = nil
	if w := from(t, handler, "192.0.2.1:1", "GET", infoPath, "", nil); w.Code != 200 {
		t.Errorf("after all responses: got %d %s, want 200", w.Code, w.Body)
	}
}

// Without limits of clients, catches a user with unfinished requests who takes all certificate slots.
func TestLimitsRequestsInFlightOfOneUser(t *testing.T) {
	s, _ := certifying(t)
	s.Logger = nil
	s.Limits.UserRate = server.Rate{}
	stolen, other := s.token(t, nil), s.token(t, nil)
	handler := s.Handler()
	reading, end := make(chan struct{}), make(chan struct{})
	ask := func(i int, bearer string, body io.Reader) *httptest.ResponseRecorder {
		return from(t, handler, fmt.Sprintf("192.0.2.%d:1", i%250), "POST", certificatePath, bearer, body)
	}
	var slow sync.WaitGroup
	for i := range httplimit.MaxCertificates / 2 {
		slow.Go(func() { // the server has the user of a request while it reads the body
			if w := ask(i, stolen, readFunc(func([]byte) (int, error) { reading <- struct{}{}; <-end; return 0, io.ErrUnexpectedEOF })); w.Code != 400 {
				t.Errorf("truncated body: got %d %s, want 400", w.Code, w.Body)
			}
		})
		<-reading
	}
	wantTooMany(t, "half of all", ask(0, stolen, strings.NewReader(nodeCSR(t, "worker-1"))))
	if w := ask(1, other, strings.NewReader(nodeCSR(t, "worker-2"))); w.Code != 200 {
		t.Errorf("another token: %d %s", w.Code, w.Body)
	}
	if n := s.refused(t, "user-in-flight", "certificate"); n != 1 {
		t.Errorf("got %v user-in-flight refusals, want 1", n)
	}
	close(end)
	slow.Wait()
	if w := ask(0, stolen, strings.NewReader(nodeCSR(t, "worker-1"))); w.Code != 200 {
		t.Errorf("after all responses: got %d %s, want 200", w.Code, w.Body)
	}
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

// Browsers send a client certificate with requests from pages of any site. Catches a route that executes such a
// request.
func TestRefusesCrossSiteRequests(t *testing.T) {
	s := newSite(t)
	handler := s.Handler()
	for _, test := range []struct {
		method, path, site, origin string
		want                       int
	}{
		{"POST", tokenPath, "same-origin", "https://example.com", 201},
		{"POST", tokenPath, "", "https://example.com", 201}, // an older browser
		{"POST", tokenPath, "none", "", 201},                // a URL typed by a person
		{"POST", tokenPath, "cross-site", "https://evil.example", 403},
		{"POST", tokenPath, "same-site", "", 403},
		{"POST", tokenPath, "", "https://evil.example", 403},
		{"DELETE", tokenPath + "/abcdef", "", "null", 403},
		{"GET", infoPath, "cross-site", "", 200}, // a link
	} {
		r := asAdmin(newRequest(test.method, test.path, ""))
		for name, value := range map[string]string{"Sec-Fetch-Site": test.site, "Origin": test.origin} {
			if value != "" {
				r.Header.Set(name, value)
			}
		}
		before := len(s.ids(t))
		if status, body := served(handler, r); status != test.want || (len(s.ids(t)) > before) != (status == 201) {
			t.Errorf("%+v: %d %s", test, status, body)
		}
	}
}

// The page can use the client certificate of a browser. Catches a call of the page that fails then, and another site that can use
// the certificate.
func TestOnlyOwnPageUsesClientCertificate(t *testing.T) {
	s := newSite(t)
	s.Callers = server.Callers{
		Authenticate: auth.HeaderOrCertificate(s.Callers.Authenticate, auth.ClientCertificate{CAs: s.roots, Everybody: true}.Authenticate),
		Authorize:    func(*http.Request, auth.User, auth.Access) error { return nil },
	}
	s.start(t)
	browser := s.showing(t, *s.userCertificate(t, "ada"))
	for site, want := range map[string]int{"same-origin": 200, "same-site": 403, "cross-site": 403} {
		r := must.Get(http.NewRequestWithContext(t.Context(), "POST", s.url+commandPath, strings.NewReader(`{"maxNodes":1,"ttl":"2h","format":"text"}`)))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Sec-Fetch-Site", site)
		before := len(s.ids(t))
		response := must.Get(browser.Do(r))
		must.OK(t, response.Body.Close())
		if response.StatusCode != want || (len(s.ids(t)) > before) != (want == 200) {
			t.Errorf("%s: got %s, want %d", site, response.Status, want)
		}
	}
}
