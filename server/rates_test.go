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
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/servingcert"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/client"
	"github.com/kubejoin/kubejoin/signer"
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

// A client is an address, or a network of IPv6 that one machine may have. Who sends too much is
// refused before anything is done for it, on every route but those that keep kubejoin alive.
func TestClientRate(t *testing.T) {
	s := newSite(t)
	s.Advertise, s.ClientRate = "127.0.0.1:9443", atFirst(3)
	authenticate := s.Authenticate
	asked := 0
	s.Authenticate = func(r *http.Request) (server.User, error) { asked++; return authenticate(r) }
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
			t.Errorf("the sender of a refused request was authenticated")
		}
		if w := from(t, handler, c.other, "POST", commandPath, adminBearer, nil); w.Code != 200 {
			t.Errorf("another client, %s: %d %s", c.other, w.Code, w.Body)
		}
		asked = 0
	}
	for range 10 { // over no network
		if w := from(t, handler, "", "GET", infoPath, "", nil); w.Code != 200 {
			t.Fatalf("no address: %d %s", w.Code, w.Body)
		}
	}
	if n := s.refused(t, "client-rate"); n != 4*6 {
		t.Errorf("%v requests are counted as refused, want %d", n, 4*6)
	}
	said := s.logs.String()
	if n := strings.Count(said, "level=WARN"); n != 1 || !strings.Contains(said, "reason=client-rate from=192.0.2.1 class=discovery") {
		t.Errorf("the log warns %d times of %d refusals:\n%s", n, 4*6, said)
	}
	if len(s.ids(t)) != 4 {
		t.Errorf("tokens %q, want one for each that was let in", s.ids(t))
	}
}

// Guesses end after a hundred, be they of an operator's bearer token or of a bootstrap token, and
// also an operator's right one is not looked at then. Who has come in from there before still does, so
// does a machine with a bootstrap token that there is, and so does everybody elsewhere.
//
// The clock stands still but where the test waits.
func TestFailedAuthentications(t *testing.T) { synctest.Test(t, testFailedAuthentications) }

func testFailedAuthentications(t *testing.T) {
	s, _ := certifying(t)
	s.ClientRate = server.Rate{}
	token, other := s.token(t, nil), s.token(t, nil)
	authenticate := s.Authenticate
	var asked atomic.Int64
	s.Authenticate = func(r *http.Request) (server.User, error) { asked.Add(1); return authenticate(r) }
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
	for i := range server.FailureBurst {
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
	for range server.FailureQPS {
		if w := from(t, handler, here, "GET", tokenPath, guess(), nil); w.Code != 401 {
			t.Fatalf("after a second: %d %s", w.Code, w.Body)
		}
	}
	refused()
	if n := asked.Load(); n != server.FailureQPS {
		t.Errorf("%d guesses were looked at, want %d", n, server.FailureQPS)
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
	if w := from(t, handler, here, "GET", tokenPath, "", nil); w.Code != 401 {
		t.Errorf("no credentials: %d %s", w.Code, w.Body)
	}
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
func TestUserRate(t *testing.T) {
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
	in := client.InProcess(s.Server)
	for range 5 {
		if _, err := in.PrintJoinCommand(t.Context(), api.PrintJoinCommand{}); err != nil {
			t.Errorf("in process: %v", err)
		}
	}
}

// kube-apiserver asks for all of its own clients, and is not slowed; a stranger at its path is.
func TestTokenReviewsHaveNoRate(t *testing.T) {
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
func TestTokenReviewsOfOthersHaveARate(t *testing.T) {
	for _, status := range []int{403, 401} {
		s := reviewed(t)
		s.ClientRate = atFirst(10)
		if status == 403 {
			s.TokenReview.Authenticate = func(*http.Request) (server.User, error) { return server.User{}, server.ErrForbidden }
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

// Of two credentials that have one place in common neither takes the other's.
func TestLetInKeepsBoth(t *testing.T) {
	l := server.NewLetIn()
	for i := range 20 {
		one := fmt.Sprint("credential ", i)
		other := l.Beside(one)
		l.Add(one)
		l.Add(other)
		l.Add(one)
		if !l.Has(one) || !l.Has(other) {
			t.Errorf("%s and %s: %t, %t", one, other, l.Has(one), l.Has(other))
		}
		if l.Remove(one); l.Has(one) || !l.Has(other) {
			t.Errorf("%s removed beside %s: %t, %t", one, other, l.Has(one), l.Has(other))
		}
		l.Remove(other)
	}
	for i := range 100_000 {
		if l.Add(strconv.Itoa(i)); !l.Has(strconv.Itoa(i)) {
			t.Fatalf("the last of %d is forgotten", i)
		}
	}
}

// A rack of a thousand machines behind one address that are switched on at once: nobody is refused.
func TestRackBehindOneAddress(t *testing.T) {
	s, _ := certifying(t)
	s.Advertise, s.Logger = "127.0.0.1:9443", nil
	s.ClientRate, s.UserRate = server.Rate{}, server.Rate{}
	token := s.token(t, nil)
	handler := s.Handler()
	const machines = 1000
	key := newKey(t)
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

// A flood of addresses takes the memory of the table and no more, and gives nobody a fresh bucket.
func TestBucketsOfManyClients(t *testing.T) {
	now := time.Now()
	b := server.NewBuckets(server.Rate{QPS: 10, Burst: 100})
	spend := func(key string) (n int) {
		for b.Take(key, now) {
			n++
		}
		return n
	}
	if n := spend("attacker"); n != 100 {
		t.Errorf("%d at once, want 100", n)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range 400_000 {
		b.Take("flood-"+strconv.Itoa(i), now)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); b.Used() != 2*8192 || grown > 4<<20 {
		t.Errorf("%d buckets of %d bytes in all", b.Used(), grown)
	}
	if b.Take("attacker", now) {
		t.Error("after 400,000 others there is a fresh bucket")
	}
	now = now.Add(time.Second)
	if n := spend("attacker"); n < 8 || n > 12 {
		t.Errorf("%d after a second, want 10", n)
	}

	// A hundred addresses that keep theirs empty take nobody else's.
	b = server.NewBuckets(server.Rate{QPS: 10, Burst: 100})
	for i := range 100 {
		spend("attacker-" + strconv.Itoa(i))
	}
	denied := 0
	for i := range 10_000 {
		if !b.Take("honest-"+strconv.Itoa(i), now) {
			denied++
		}
	}
	if denied > 20 { // 1.5 expected
		t.Errorf("%d of 10,000 others are refused", denied)
	}
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
func TestConnectionRate(t *testing.T) {
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

func TestTLSVersions(t *testing.T) {
	for _, test := range []struct {
		least   uint16 // of the server
		client  *tls.Config
		version uint16 // zero is refused
	}{
		{0, &tls.Config{}, tls.VersionTLS13},
		{0, &tls.Config{MaxVersion: tls.VersionTLS12}, 0},
		{tls.VersionTLS12, &tls.Config{}, tls.VersionTLS13},
		{tls.VersionTLS12, &tls.Config{MaxVersion: tls.VersionTLS12}, tls.VersionTLS12},
		{tls.VersionTLS10, &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, 0},
		// The site has a P-256 certificate.
		{tls.VersionTLS12, &tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, tls.TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA, tls.TLS_RSA_WITH_AES_128_GCM_SHA256}}, 0},
		{tls.VersionTLS12, &tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256}}, tls.VersionTLS12},
	} {
		t.Run(fmt.Sprintf("%x %x %x", test.least, test.client.MaxVersion, test.client.CipherSuites), func(t *testing.T) {
			s := newSite(t)
			s.Logger = nil
			certificate := &servingcert.Issued{CA: func() *signer.CA { return s.ca }, Names: []string{"127.0.0.1"}}
			if _, err := certificate.Step(t.Context()); err != nil {
				t.Fatal(err)
			}
			web := s.HTTPServer(&tls.Config{GetCertificate: certificate.GetCertificate, MinVersion: test.least})
			if least := web.TLSConfig.MinVersion; least < tls.VersionTLS12 {
				t.Errorf("TLS from %x on", least)
			}
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			go func() { _ = web.ServeTLS(listener, "", "") }()
			defer func() { _ = web.Close() }()
			s.url = "https://" + listener.Addr().String()
			test.client.NextProtos = []string{"h2"}
			c, err := s.dialFrom(t, "127.0.0.1", test.client)
			if state := c.ConnectionState(); test.version == 0 && err == nil || test.version != 0 && (err != nil || state.Version != test.version || state.NegotiatedProtocol != "h2") {
				t.Errorf("%v, version %x, protocol %q", err, state.Version, state.NegotiatedProtocol)
			}
		})
	}
}

// Queries are not read if they are too long, or have too many parameters, on any route.
func TestLongQueries(t *testing.T) {
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
			allocated := testing.AllocsPerRun(1, func() { w = httptest.NewRecorder(); handler.ServeHTTP(w, r) })
			if w.Code != http.StatusRequestURITooLong || allocated > 300 {
				t.Errorf("%s, %s: %d %.200s, %v allocations", name, request[1], w.Code, w.Body, allocated)
			}
		}
	}
	if w := from(t, handler, "192.0.2.1:1", "GET", "/readyz?"+strings.Repeat("verbose&", 999), "", nil); w.Code != 200 {
		t.Errorf("1000 parameters: %d %s", w.Code, w.Body)
	}
}

// What asks about the server as a whole (RFC 9110, section 7.1) is a request as any other.
func TestOptionsOfServer(t *testing.T) {
	s := newSite(t)
	s.Logger, s.ClientRate = nil, atFirst(3)
	s.start(t)
	first := s.http.Transport.(*http.Transport)
	older := &http.Transport{TLSClientConfig: first.TLSClientConfig.Clone()}
	t.Cleanup(older.CloseIdleConnections)
	older.TLSClientConfig.NextProtos = []string{"http/1.1"}
	for i, want := range []int{404, 404, 404, 429} {
		transport := []*http.Transport{older, first}[i%2]
		r := &http.Request{Method: "OPTIONS", URL: &url.URL{Scheme: "https", Host: strings.TrimPrefix(s.url, "https://"), Opaque: "*"}, Header: http.Header{}}
		answer, err := transport.RoundTrip(r.WithContext(t.Context()))
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != want || answer.ProtoMajor != 1+i%2 || answer.Header.Get("X-Request-Id") == "" {
			t.Errorf("over %s: %s %v, want %d", answer.Proto, answer.Status, answer.Header, want)
		}
	}
	if n := s.refused(t, "client-rate"); n != 1 {
		t.Errorf("%v are counted as refused, want 1", n)
	}
}
