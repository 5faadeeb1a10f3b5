package server_test

import (
	"crypto/tls"
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

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/web/httplimit"
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

// refused returns how many requests of a class were refused for that reason. An empty class means all.
func (s *site) refused(t testing.TB, reason, class string) (n float64) {
	t.Helper()
	families := must.Get(s.registry().Gather())
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "kubejoin_http_requests_refused_total" && m.GetLabel()[1].GetValue() == reason && (class == "" || m.GetLabel()[0].GetValue() == class) {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

// A client is an IPv4 address or an IPv6 /64. Catches a route, except the probes, that serves, reads or authenticates
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
	if n := s.refused(t, "client-rate", ""); n != 4*6 {
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
	list := func(bearer string) *httptest.ResponseRecorder {
		return from(t, handler, here, "GET", tokenPath, bearer, nil)
	}
	sign := func(remote, bearer string) *httptest.ResponseRecorder {
		return from(t, handler, remote, "POST", certificatePath, bearer, strings.NewReader(nodeCSR(t, "worker-1")))
	}
	want := func(what string, w *httptest.ResponseRecorder, status int) {
		t.Helper()
		if w.Code != status {
			t.Fatalf("%s: got %d %s, want %d", what, w.Code, w.Body, status)
		}
	}
	guess := func() string { return tokens.Generate().Reveal() }
	want("user", list(viewerBearer), 403)
	want("token", sign(here, token), 200)
	for range httplimit.FailureBurst / 2 {
		want("guess of a token", sign(here, guess()), 401)
		want("guess of a bearer", list(guess()), 401)
	}
	asked.Store(0)
	for range 200 {
		wantTooMany(t, "a token", sign(here, guess()))
		wantTooMany(t, "a bearer", list(guess()))
	}
	time.Sleep(time.Second)
	for range httplimit.FailureQPS {
		want("after a second", list(guess()), 401)
	}
	wantTooMany(t, "a bearer", list(guess()))
	if n, refused := asked.Load(), s.refused(t, "failed-authentications", ""); n != httplimit.FailureQPS || refused != 401 {
		t.Errorf("got %d guesses checked and %v counted refusals, want %d and 401", n, refused, httplimit.FailureQPS)
	}
	want("machine with a valid token", sign(here, other), 200)
	want("expired token", sign(here, s.token(t, func(r *tokens.Record) { r.Expires = time.Now().Add(-time.Minute) })), 401)
	wantTooMany(t, "existing token ID with a wrong secret", sign(here, other[:7]+tokens.Generate().RevealSecret()))
	wantTooMany(t, "another operator", list(adminBearer))
	want("token that was used here before", sign(here, token), 200)
	want("user who was here before", list(viewerBearer), 403)
	want("discovery", from(t, handler, here, "GET", infoPath, "", nil), 200)
	wantTooMany(t, "no visible credential", list(""))
	wantTooMany(t, "bootstrap token on a path of operators", list(other))
	want("from another address", sign(there, other), 200)
	must.OK(t, s.store.Delete(t.Context(), s.record(t, token[:6])))
	want("a deleted token", sign(here, token), 401) // the deleted token is no longer exempt
	wantTooMany(t, "a deleted token", sign(here, token))
	s.Certificates.ClientCertificate = nil
	wantTooMany(t, "no credential, without client certificates", sign(here, ""))
	if said := s.logs.String(); !strings.Contains(said, "reason=failed-authentications from=192.0.2.1") {
		t.Error("the log lacks the refusal")
	}
}

// Without limits of clients, catches a user that avoids its rate by using several addresses. Catches a user that uses
// up the rate of another user.
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
	wantTooMany(t, "the token", from(t, handler, "192.0.2.9:1", "POST", turnPath, token, unread{t}))
	if after := len(s.ids(t)); after != before {
		t.Errorf("got %d tokens after refused requests, want %d", after, before)
	}
	if w := from(t, handler, "192.0.2.9:1", "POST", commandPath, viewerBearer, nil); w.Code != 403 {
		t.Errorf("another user: %d %s", w.Code, w.Body)
	}
	if n := s.refused(t, "user-rate", ""); n != 4 {
		t.Errorf("got %v counted refusals, want 4", n)
	}
	if said := s.logs.String(); !strings.Contains(said, "reason=user-rate from=ada class=join-command") {
		t.Errorf("the log lacks the refusal:\n%s", said)
	}
}

// kube-apiserver sends reviews for all of its clients. Catches a rate limit for kube-apiserver, and an unauthenticated
// client without a rate limit on the same path.
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

// Catches a caller, for example an operator or a node, that has no rate limit on the path of reviews.
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

// A thousand machines behind one address join at the same time. Catches default limits that refuse one of them. The
// test uses cheap requests of the same classes and users.
func TestThousandMachinesBehindOneAddressJoin(t *testing.T) {
	s, _ := certifying(t)
	s.Logger = nil
	s.Limits.ClientRate, s.Limits.UserRate = server.Rate{}, server.Rate{}
	token := s.token(t, nil)
	handler := must.Get(s.Server.Handler())
	var next atomic.Int64
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for next.Add(1) <= 1000 {
				for path, bearer := range map[string]string{
					tokenPath + "?x": adminBearer, // as one operator
					"/v1/ca":         "", "/v1/cluster-info": "",
					certificatePath + "?x": token, // and with one token
				} {
					method, status := "POST", 400
					if bearer == "" {
						method, status = "GET", 200
					}
					if w := from(t, handler, "192.0.2.1:1", method, path, bearer, nil); w.Code != status {
						t.Errorf("%s: %d %s", path, w.Code, w.Body)
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
	conn := must.Value(d.DialContext(t.Context(), "tcp", strings.TrimPrefix(s.url, "https://")))(t)
	t.Cleanup(func() { _ = conn.Close() })
	config.RootCAs, config.ServerName = s.roots(), "127.0.0.1"
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
			_ = c.Close() // a closed connection still uses up the rate
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

// sends requests the token list with the headers, and returns the status.
func sends(t testing.TB, handler http.Handler, remote string, headers http.Header) int {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), "GET", tokenPath, nil)
	r.RemoteAddr = remote
	r.Header = headers
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w.Code
}

func authorized(values ...string) http.Header { return http.Header{"Authorization": values} }

// guessing returns the handler of a site that accepts any bearer token of the form NAME-ANYTHING.
func guessing(t *testing.T) http.Handler {
	s := newSite(t)
	s.Logger, s.Limits.ClientRate = nil, server.Rate{QPS: 1e6}
	s.Callers.Authenticate = func(r *http.Request) (auth.User, error) {
		bearer, err := auth.Bearer(r)
		name, _, known := strings.Cut(bearer, "-")
		if err == nil && !known {
			err = auth.ErrBadCredentials
		}
		return auth.User{Name: name}, err
	}
	return s.Handler()
}

// Catches a cached credential that is exempt from the failure limit at other addresses, too.
func TestCachedCredentialCountsOnlyForItsAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler := guessing(t)
		const known = "192.0.2.1:1"
		if code := sends(t, handler, known, authorized("Bearer ada-1")); code != 403 {
			t.Fatal(code)
		}
		for remote, want := range map[string]int{known: 403, "192.0.2.2:1": 429, "[2001:db8::1]:1": 429} {
			for range httplimit.FailureBurst {
				if code := sends(t, handler, remote, authorized("Bearer guess")); code != 401 {
					t.Fatal(code)
				}
			}
			if code := sends(t, handler, remote, authorized("Bearer ada-1")); code != want {
				t.Errorf("%s: %d, want %d", remote, code, want)
			}
		}
	})
}

// Catches a malformed Authorization header that is not treated as a failed authentication.
func TestMalformedCredentialsCountAsFailures(t *testing.T) {
	for _, header := range []http.Header{
		authorized("Basic YTpi"), authorized("Bearer"), authorized("Bearer "), authorized(""), authorized("ada-1"), authorized("Bearer\tada-1"),
		authorized("Bearer ada-1", "Bearer ada-1"), authorized("Bearer " + strings.Repeat("x", auth.MaxBearer+1)),
	} {
		synctest.Test(t, func(t *testing.T) {
			handler := guessing(t)
			const here = "192.0.2.1:1"
			sends(t, handler, here, authorized("Bearer ada-1"))
			for i := range 2 * httplimit.FailureBurst {
				want := 401
				if i >= httplimit.FailureBurst {
					want = 429
				}
				if code := sends(t, handler, here, header); code != want {
					t.Fatalf("%.60q, the %d.: %d, want %d", header, i, code, want)
				}
			}
			if code := sends(t, handler, here, authorized("Bearer ada-1")); code != 403 {
				t.Errorf("cached credential: got %d, want 403", code)
			}
		})
	}
}

// A custom Authenticate may read credentials from any header. Catches guesses in such a header that avoid the
// failure limit because the client also sends a valid credential sometimes, or in another header.
func TestLimitsGuessesInCustomHeaders(t *testing.T) {
	t.Parallel()
	for what, beside := range map[string]func(testing.TB, *site) []http.Header{
		"beside another header": func(testing.TB, *site) []http.Header { return []http.Header{authorized("Bearer something-else")} },
		"beside a bootstrap token": func(t testing.TB, s *site) []http.Header {
			return []http.Header{authorized("Bearer " + s.token(t, nil))}
		},
		"beside an expired token": func(t testing.TB, s *site) []http.Header {
			return []http.Header{authorized("Bearer " + s.token(t, func(r *tokens.Record) { r.Expires = time.Now().Add(-time.Minute) }))}
		},
		"alternating with a valid one alone": func(testing.TB, *site) []http.Header {
			return []http.Header{{"X-Rack-Key": {"own"}}, {}}
		},
		"alternating with a valid one": func(testing.TB, *site) []http.Header {
			own := authorized("Bearer something-else")
			own.Set("X-Rack-Key", "own")
			return []http.Header{own, authorized("Bearer something-else")}
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _ := certifying(t)
				s.Logger, s.Limits.ClientRate = nil, server.Rate{QPS: 1e6}
				looked := 0
				s.Callers.Authenticate = func(r *http.Request) (auth.User, error) {
					switch key := r.Header.Get("X-Rack-Key"); key {
					case "":
						return auth.User{}, auth.ErrNoCredentials
					case "own":
						return auth.User{Name: "ada"}, nil
					default:
						looked++
						return auth.User{}, fmt.Errorf("%w: not known", auth.ErrBadCredentials)
					}
				}
				handler, headers := s.Handler(), beside(t, s)
				for _, path := range []string{tokenPath, certificatePath} {
					for i := range 4 * httplimit.FailureBurst {
						r := httptest.NewRequestWithContext(t.Context(), map[string]string{tokenPath: "GET", certificatePath: "POST"}[path], path, nil)
						r.RemoteAddr, r.Header = "192.0.2.1:1", headers[i%len(headers)].Clone()
						if r.Header.Get("X-Rack-Key") == "" {
							r.Header.Set("X-Rack-Key", fmt.Sprintf("guess %d", i))
						}
						handler.ServeHTTP(httptest.NewRecorder(), r)
					}
				}
				if looked > httplimit.FailureBurst+1 { // a client that succeeded before gets one more
					t.Errorf("got %d guesses checked, want at most %d", looked, httplimit.FailureBurst+1)
				}
			})
		})
	}
}
