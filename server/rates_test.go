package server_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/httplimit"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/tokens"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// atFirst returns a rate with that burst, which does not refill while a test runs.
func atFirst(burst int) server.Rate { return server.Rate{QPS: 1e-6, Burst: burst} }

// from sends a request as if it came from that remote address.
func from(t testing.TB, handler http.Handler, remote, method, path, bearer string, body io.Reader) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, body)
	r.RemoteAddr = remote
	if bearer != "" {
		r.Header.Set("Authorization", "Bearer "+bearer)
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w
}

// wantTooMany fails the test unless the response is 429 with Retry-After.
func wantTooMany(t testing.TB, what string, w *httptest.ResponseRecorder) {
	t.Helper()
	seconds, err := strconv.Atoi(w.Header().Get("Retry-After"))
	if w.Code != http.StatusTooManyRequests || err != nil || seconds < 1 || seconds > 10 {
		t.Fatalf("%s: %d %v %s, want 429 with Retry-After", what, w.Code, w.Header(), w.Body)
	}
	if w.Header().Get("Content-Type") == "application/problem+json" {
		var p api.Problem
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || !p.Named(api.ProblemTooManyRequests) || p.RequestID == "" {
			t.Errorf("%s: %v %s", what, err, w.Body)
		}
		return
	}
	var status metav1.Status
	if err := json.Unmarshal(w.Body.Bytes(), &status); err != nil || status.Kind != "Status" || status.Reason != metav1.StatusReasonTooManyRequests || int(status.Details.RetryAfterSeconds) != seconds {
		t.Errorf("%s: %v %s", what, err, w.Body)
	}
}

func (s *site) refused(t testing.TB, reason string) (n float64) {
	t.Helper()
	families, err := s.registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "kubejoin_http_requests_refused_total" && m.GetLabel()[1].GetValue() == reason {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

// A client is an IPv4 address or an IPv6 /64. Catches a route other than the probes that serves, reads or authenticates
// requests above the rate.
func TestLimitsRateOfOneClient(t *testing.T) {
	s := newSite(t)
	s.Minting.Advertise, s.Limits.ClientRate = "127.0.0.1:9443", atFirst(3)
	authenticate := s.Callers.Authenticate
	asked := 0
	s.Callers.Authenticate = func(r *http.Request) (auth.User, error) { asked++; return authenticate(r) }
	handler := s.Handler()
	for _, c := range []struct{ spends, same, other string }{
		{"192.0.2.1:1", "192.0.2.1:65535", "192.0.2.2:1"},
		{"192.0.2.3:1", "[::ffff:192.0.2.3]:1", "[::192.0.2.3]:1"},
		{"[2001:db8::1]:1", "[2001:db8::ffff:ffff:ffff:ffff]:1", "[2001:db8:0:1::1]:1"},
		{"[fe80::1%eth0]:1", "[fe80::2%eth1]:1", "[fec0::1]:1"},
	} {
		for range 3 {
			if w := from(t, handler, c.spends, "GET", infoPath, "", nil); w.Code != 200 {
				t.Fatalf("%s: %d %s", c.spends, w.Code, w.Body)
			}
		}
		for _, request := range [][2]string{{"GET", infoPath}, {"POST", commandPath}, {"GET", tokenPath}, {"GET", "/version"}, {"GET", "/nowhere"}, {"PATCH", tokenPath}} {
			wantTooMany(t, request[1], from(t, handler, c.same, request[0], request[1], adminBearer, unread{t}))
		}
		for _, probe := range []string{"/healthz", "/readyz"} {
			if w := from(t, handler, c.same, "GET", probe, "", nil); w.Code != 200 {
				t.Errorf("%s: %d %s", probe, w.Code, w.Body)
			}
		}
		if asked > 0 {
			t.Errorf("got %d authentications of refused requests, want none", asked)
		}
		if w := from(t, handler, c.other, "POST", commandPath, adminBearer, nil); w.Code != 200 {
			t.Errorf("another client, %s: %d %s", c.other, w.Code, w.Body)
		}
		asked = 0
	}
	for range 10 { // not over a network
		if w := from(t, handler, "", "GET", infoPath, "", nil); w.Code != 200 {
			t.Fatalf("no address: %d %s", w.Code, w.Body)
		}
	}
	if n := s.refused(t, "client-rate"); n != 4*6 {
		t.Errorf("got %v counted refusals, want %d", n, 4*6)
	}
	said := s.logs.String()
	if n := strings.Count(said, "level=WARN"); n != 1 || !strings.Contains(said, "reason=client-rate from=192.0.2.1 class=discovery") {
		t.Errorf("got %d warnings for %d refusals, want 1:\n%s", n, 4*6, said)
	}
	if len(s.ids(t)) != 4 {
		t.Errorf("got tokens %q, want 4, one for each allowed request", s.ids(t))
	}
}

// After a burst of failures the server checks no more operator credentials from that address, not even valid ones.
// Catches guesses that continue, and lockout of cached users, of valid bootstrap tokens or of other addresses.
//
// In the synctest bubble the clock advances only where the test sleeps.
func TestLimitsFailedAuthentications(t *testing.T) { synctest.Test(t, testFailedAuthentications) }

func testFailedAuthentications(t *testing.T) {
	s, _ := certifying(t)
	s.Limits.ClientRate = server.Rate{}
	token, other := s.token(t, nil), s.token(t, nil)
	authenticate := s.Callers.Authenticate
	var asked atomic.Int64
	s.Callers.Authenticate = func(r *http.Request) (auth.User, error) { asked.Add(1); return authenticate(r) }
	handler := s.Handler()
	const here, there = "192.0.2.1:1", "192.0.2.2:1"
	if w := from(t, handler, here, "GET", tokenPath, viewerBearer, nil); w.Code != 403 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	sign := func(remote, bearer string) *httptest.ResponseRecorder {
		return from(t, handler, remote, "POST", certificatePath, bearer, strings.NewReader(nodeCSR(t, "worker-1")))
	}
	if w := sign(here, token); w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	guess := func() string { return tokens.Generate().Reveal() }
	for i := range httplimit.FailureBurst {
		var w *httptest.ResponseRecorder
		if i%2 == 0 {
			w = sign(here, guess())
		} else {
			w = from(t, handler, here, "POST", commandPath, guess(), nil)
		}
		if w.Code != 401 {
			t.Fatalf("guess %d: %d %s", i, w.Code, w.Body)
		}
	}
	asked.Store(0)
	before := s.refused(t, "failed-authentications")
	refused := func() {
		t.Helper()
		for range 500 {
			wantTooMany(t, "a token", sign(here, guess()))
			wantTooMany(t, "a bearer", from(t, handler, here, "GET", tokenPath, guess(), nil))
		}
	}
	refused()
	time.Sleep(time.Second)
	for range httplimit.FailureQPS {
		if w := from(t, handler, here, "GET", tokenPath, guess(), nil); w.Code != 401 {
			t.Fatalf("after a second: %d %s", w.Code, w.Body)
		}
	}
	refused()
	if n := asked.Load(); n != httplimit.FailureQPS {
		t.Errorf("got %d guesses checked, want %d", n, httplimit.FailureQPS)
	}
	if n := s.refused(t, "failed-authentications") - before; n != 2000 {
		t.Errorf("got %v counted refusals, want 2000", n)
	}
	if w := sign(here, other); w.Code != 200 {
		t.Errorf("machine with a valid token: got %d %s, want 200", w.Code, w.Body)
	}
	ended := s.token(t, func(r *tokens.Record) { r.Expires = time.Now().Add(-time.Minute) })
	if w := sign(here, ended); w.Code != 401 {
		t.Errorf("expired token: got %d %s, want 401", w.Code, w.Body)
	}
	id, _, _ := strings.Cut(other, ".")
	wantTooMany(t, "existing token ID with a wrong secret", sign(here, id+"."+tokens.Generate().RevealSecret()))
	wantTooMany(t, "another operator", from(t, handler, here, "POST", commandPath, adminBearer, nil))
	if w := sign(here, token); w.Code != 200 {
		t.Errorf("token that was used here before: got %d %s, want 200", w.Code, w.Body)
	}
	if w := from(t, handler, here, "GET", tokenPath, viewerBearer, nil); w.Code != 403 {
		t.Errorf("user who was here before: got %d %s, want 403", w.Code, w.Body)
	}
	if w := from(t, handler, here, "GET", infoPath, "", nil); w.Code != 200 {
		t.Errorf("discovery: %d %s", w.Code, w.Body)
	}
	wantTooMany(t, "no visible credential", from(t, handler, here, "GET", tokenPath, "", nil))
	wantTooMany(t, "bootstrap token on a path of operators", from(t, handler, here, "GET", tokenPath, other, nil))
	if w := sign(there, other); w.Code != 200 {
		t.Errorf("from another address: %d %s", w.Code, w.Body)
	}
	// A token that was deleted loses its exemption.
	record, err := tokens.Parse(token)
	if err != nil {
		t.Fatal(err)
	}
	found, err := s.store.Get(t.Context(), record.ID())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.store.Delete(t.Context(), found); err != nil {
		t.Fatal(err)
	}
	if w := sign(here, token); w.Code != 401 {
		t.Errorf("a deleted token: %d %s", w.Code, w.Body)
	}
	wantTooMany(t, "a deleted token", sign(here, token))
	if said := s.logs.String(); !strings.Contains(said, "reason=failed-authentications from=192.0.2.1") {
		t.Error("the log lacks the refusal")
	}
}

// Catches a user that avoids its rate by using several addresses, and one that uses up the rate of another user.
func TestLimitsRateOfOneUser(t *testing.T) {
	s, _ := certifying(t)
	s.Minting.Advertise, s.Limits.UserRate = "127.0.0.1:9443", atFirst(3)
	token := s.token(t, nil)
	handler := s.Handler()
	for i := range 3 {
		if w := from(t, handler, fmt.Sprintf("192.0.2.%d:1", i), "POST", commandPath, adminBearer, nil); w.Code != 200 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		if w := from(t, handler, "192.0.2.1:1", "POST", certificatePath, token, strings.NewReader(nodeCSR(t, "worker-1"))); w.Code != 200 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	before := len(s.ids(t))
	wantTooMany(t, "ada", from(t, handler, "192.0.2.9:1", "POST", commandPath, adminBearer, unread{t}))
	wantTooMany(t, "ada", from(t, handler, "", "GET", tokenPath, adminBearer, nil))
	wantTooMany(t, "the token", from(t, handler, "192.0.2.9:1", "POST", certificatePath, token, unread{t}))
	if after := len(s.ids(t)); after != before {
		t.Errorf("got %d tokens after refused requests, want %d", after, before)
	}
	if w := from(t, handler, "192.0.2.9:1", "POST", commandPath, viewerBearer, nil); w.Code != 403 {
		t.Errorf("another user: %d %s", w.Code, w.Body)
	}
	if n := s.refused(t, "user-rate"); n != 3 {
		t.Errorf("got %v counted refusals, want 3", n)
	}
	if said := s.logs.String(); !strings.Contains(said, "reason=user-rate from=ada class=join-command") {
		t.Errorf("the log lacks the refusal:\n%s", said)
	}
}

// kube-apiserver sends reviews for all of its clients. Catches a rate limit for it, and an unauthenticated client that
// has none on the same path.
func TestKubeAPIServerReviewsHaveNoRate(t *testing.T) {
	s := reviewed(t)
	s.Limits.ClientRate, s.Limits.UserRate = atFirst(5), atFirst(1)
	handler := s.Handler()
	for range 50 {
		if _, w := ask(t, handler, "v1", tokens.Generate().Reveal()); w.Code != 200 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	for range 4 {
		send(handler, reviewPath, "guess-of-a-bearer", "application/json", nil)
	}
	wantTooMany(t, "a stranger", send(handler, reviewPath, "guess-of-a-bearer", "application/json", unread{t}))
	if _, w := ask(t, handler, "v1", tokens.Generate().Reveal()); w.Code != 200 {
		t.Errorf("kube-apiserver, from the same address: %d %s", w.Code, w.Body)
	}
}

// Catches a caller that is valid elsewhere, such as an operator or a node, and that has no rate on the path of reviews.
func TestLimitsRateOfOtherTokenReviewers(t *testing.T) {
	for _, status := range []int{403, 401} {
		s := reviewed(t)
		s.Limits.ClientRate = atFirst(10)
		if status == 403 {
			s.Webhooks.TokenReview.Authenticate = func(*http.Request) (auth.User, error) { return auth.User{}, auth.ErrForbidden }
		}
		handler := s.Handler()
		operator := func() {
			t.Helper()
			if w := send(handler, tokenPath, adminBearer, "application/json", strings.NewReader("{}")); w.Code != 201 {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
		}
		for range 5 {
			operator()
			if w := send(handler, reviewPath, adminBearer, "application/json", nil); w.Code != status {
				t.Fatalf("%d %s, want %d", w.Code, w.Body, status)
			}
		}
		wantTooMany(t, "an operator", send(handler, reviewPath, adminBearer, "application/json", unread{t}))
	}
}

// A thousand machines behind one address join at the same time. Catches default limits that refuse one of them.
func TestThousandMachinesBehindOneAddressJoin(t *testing.T) {
	if testing.Short() {
		t.Skip("takes ten seconds")
	}
	s, _ := certifying(t)
	s.Minting.Advertise, s.Logger = "127.0.0.1:9443", nil
	s.Limits.ClientRate, s.Limits.UserRate = server.Rate{}, server.Rate{}
	token := s.token(t, nil)
	handler := s.Handler()
	const machines = 1000
	key := csrtest.NewKey()
	var next atomic.Int64
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for i := next.Add(1); i <= machines; i = next.Add(1) {
				for _, request := range []struct{ method, path, bearer, body string }{
					{"POST", commandPath, adminBearer, ""}, // as one operator
					{"GET", infoPath, "", ""}, {"GET", infoPath, "", ""},
					{"POST", certificatePath, token, csr(t, ofNode(fmt.Sprintf("worker-%d", i)), key)}, // and with one token
				} {
					if w := from(t, handler, "192.0.2.1:1", request.method, request.path, request.bearer, strings.NewReader(request.body)); w.Code != 200 {
						t.Errorf("machine %d: %s: %d %s", i, request.path, w.Code, w.Body)
					}
				}
			}
		})
	}
	all.Wait()
}

// dialFrom opens a TLS connection from that local address.
func (s *site) dialFrom(t testing.TB, address string, config *tls.Config) (*tls.Conn, error) {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	conn, err := d.DialContext(t.Context(), "tcp", strings.TrimPrefix(s.url, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	config.RootCAs, config.ServerName = x509.NewCertPool(), "127.0.0.1"
	config.RootCAs.AddCert(s.ca.Certificate())
	c := tls.Client(conn, config)
	_ = c.SetDeadline(time.Now().Add(patience))
	return c, c.HandshakeContext(t.Context())
}

// Catches TLS handshakes for a client that opens connections faster than its rate.
func TestLimitsConnectionRate(t *testing.T) {
	s := newSite(t)
	s.Logger, s.Limits.ClientRate = nil, atFirst(3)
	s.start(t)
	for i := range 6 {
		if c, err := s.dialFrom(t, "127.0.0.2", &tls.Config{}); (err == nil) != (i < 3) {
			t.Errorf("connection %d: got %v, want only the first 3 accepted", i, err)
		} else if err == nil {
			_ = c.Close() // a closed connection still counts for the rate
		}
	}
	if _, err := s.dialFrom(t, "127.0.0.3", &tls.Config{}); err != nil {
		t.Errorf("from another address: %v", err)
	}
	if n := s.gauge(t, "kubejoin_http_connections_refused_total", ""); n != 3 {
		t.Errorf("got %v counted refusals, want 3", n)
	}
	s.waitFor(t, "connections are left", func() int { return int(s.gauge(t, "kubejoin_http_connections", "")) - 1 })
}
