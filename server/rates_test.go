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
	"github.com/kubejoin/kubejoin/server/client"
	"github.com/kubejoin/kubejoin/tokens"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// atFirst is what a bucket holds at first, and no more while a test runs.
func atFirst(burst int) server.Rate { return server.Rate{QPS: 1e-6, Burst: burst} }

// from sends a request as if it came from an address.
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

// wantTooMany is about an answer to who sends too many requests.
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
	s.Advertise, s.ClientRate = "127.0.0.1:9443", atFirst(3)
	authenticate := s.Authenticate
	asked := 0
	s.Authenticate = func(r *http.Request) (auth.User, error) { asked++; return authenticate(r) }
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

// Guesses end after a hundred, be they of an operator's bearer token or of a bootstrap token, and
// also an operator's right one is not looked at then. Who has come in from there before still does, so
// does a machine with a bootstrap token that there is, and so does everybody elsewhere.
//
// The clock stands still but where the test waits.
func TestLimitsFailedAuthentications(t *testing.T) { synctest.Test(t, testFailedAuthentications) }

func testFailedAuthentications(t *testing.T) {
	s, _ := certifying(t)
	s.ClientRate = server.Rate{}
	token, other := s.token(t, nil), s.token(t, nil)
	authenticate := s.Authenticate
	var asked atomic.Int64
	s.Authenticate = func(r *http.Request) (auth.User, error) { asked.Add(1); return authenticate(r) }
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
		t.Errorf("%d guesses were looked at, want %d", n, httplimit.FailureQPS)
	}
	if n := s.refused(t, "failed-authentications") - before; n != 2000 {
		t.Errorf("%v refusals are counted", n)
	}
	if w := sign(here, other); w.Code != 200 {
		t.Errorf("a machine with a token that there is: %d %s", w.Code, w.Body)
	}
	ended := s.token(t, func(r *tokens.Record) { r.Expires = time.Now().Add(-time.Minute) })
	if w := sign(here, ended); w.Code != 401 {
		t.Errorf("a token that has ended: %d %s", w.Code, w.Body)
	}
	id, _, _ := strings.Cut(other, ".")
	wantTooMany(t, "another secret of a token that there is", sign(here, id+"."+tokens.Generate().RevealSecret()))
	wantTooMany(t, "another operator", from(t, handler, here, "POST", commandPath, adminBearer, nil))
	if w := sign(here, token); w.Code != 200 {
		t.Errorf("the token that was good here: %d %s", w.Code, w.Body)
	}
	if w := from(t, handler, here, "GET", tokenPath, viewerBearer, nil); w.Code != 403 {
		t.Errorf("the operator who was here: %d %s", w.Code, w.Body)
	}
	if w := from(t, handler, here, "GET", infoPath, "", nil); w.Code != 200 {
		t.Errorf("discovery: %d %s", w.Code, w.Body)
	}
	wantTooMany(t, "credentials that are not seen, if any", from(t, handler, here, "GET", tokenPath, "", nil))
	wantTooMany(t, "a token that there is where it is good for nothing", from(t, handler, here, "GET", tokenPath, other, nil))
	if w := sign(there, other); w.Code != 200 {
		t.Errorf("from another address: %d %s", w.Code, w.Body)
	}
	// One that was good and is not any more has no privilege.
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
		t.Error("the log does not say it")
	}
}

// A user has a rate of his own, from wherever he asks.
func TestLimitsRateOfOneUser(t *testing.T) {
	s, _ := certifying(t)
	s.Advertise, s.UserRate = "127.0.0.1:9443", atFirst(3)
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
		t.Errorf("%d tokens, there were %d", after, before)
	}
	if w := from(t, handler, "192.0.2.9:1", "POST", commandPath, viewerBearer, nil); w.Code != 403 {
		t.Errorf("another user: %d %s", w.Code, w.Body)
	}
	if n := s.refused(t, "user-rate"); n != 3 {
		t.Errorf("%v are counted", n)
	}
	if said := s.logs.String(); !strings.Contains(said, "reason=user-rate from=ada class=join-command") {
		t.Errorf("the log does not say it:\n%s", said)
	}
	s.Registerer = nil
	in := client.InProcess(s.Server.InProcess())
	for range 5 {
		if _, err := in.PrintJoinCommand(t.Context(), api.PrintJoinCommand{}); err != nil {
			t.Errorf("in process: %v", err)
		}
	}
}

// kube-apiserver asks for all of its own clients, and is not slowed; a stranger at its path is.
func TestKubeAPIServerReviewsHaveNoRate(t *testing.T) {
	s := reviewed(t)
	s.ClientRate, s.UserRate = atFirst(5), atFirst(1)
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

// Who is let in elsewhere is no kube-apiserver, be it known there as another, as a node is by its
// certificate, or not at all.
func TestLimitsRateOfOtherTokenReviewers(t *testing.T) {
	for _, status := range []int{403, 401} {
		s := reviewed(t)
		s.ClientRate = atFirst(10)
		if status == 403 {
			s.TokenReview.Authenticate = func(*http.Request) (auth.User, error) { return auth.User{}, auth.ErrForbidden }
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
	s.Advertise, s.Logger = "127.0.0.1:9443", nil
	s.ClientRate, s.UserRate = server.Rate{}, server.Rate{}
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

// dialFrom is a TLS connection from an address of this machine.
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
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return c, c.HandshakeContext(t.Context())
}

// Who opens connections too fast is not worth a handshake.
func TestLimitsConnectionRate(t *testing.T) {
	s := newSite(t)
	s.Logger, s.ClientRate = nil, atFirst(3)
	s.start(t)
	for i := range 6 {
		if c, err := s.dialFrom(t, "127.0.0.2", &tls.Config{}); (err == nil) != (i < 3) {
			t.Errorf("connection %d: %v", i, err)
		} else if err == nil {
			_ = c.Close() // that it is gone does not count
		}
	}
	if _, err := s.dialFrom(t, "127.0.0.3", &tls.Config{}); err != nil {
		t.Errorf("from another address: %v", err)
	}
	if n := s.gauge(t, "kubejoin_http_connections_refused_total", ""); n != 3 {
		t.Errorf("%v are counted", n)
	}
	s.waitFor(t, "connections are left", func() int { return int(s.gauge(t, "kubejoin_http_connections", "")) - 1 })
}
