package server_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kubejoin/kubejoin/internal/httplimit"
	"github.com/kubejoin/kubejoin/server"
)

// One client may use at most as many slots of a class as are free. Catches a client that takes all of them.
func TestLimitsRequestsInFlightOfOneClient(t *testing.T) {
	s := newSite(t)
	s.Limits.ClientRate, s.Limits.UserRate = server.Rate{}, server.Rate{}
	h := &heldClusterInfo{ClusterInfo: s.ClusterInfo, entered: make(chan struct{}), free: make(chan struct{}), holdJSON: make(chan struct{})}
	s.ClusterInfo = h
	handler := s.Handler()
	var held sync.WaitGroup
	hold := func(remote string, n int) {
		t.Helper()
		for range n {
			held.Go(func() {
				if w := from(t, handler, remote, "GET", infoPath, "", nil); w.Code != 200 {
					t.Errorf("%s: %d %s", remote, w.Code, w.Body)
				}
			})
		}
		for range n {
			<-h.entered
		}
	}
	hold("192.0.2.1:1", httplimit.MaxDiscovery/2)
	wantTooMany(t, "half of all", from(t, handler, "192.0.2.1:2", "GET", infoPath, "", nil))
	hold("192.0.2.2:1", httplimit.MaxDiscovery/4)
	wantTooMany(t, "half of the rest", from(t, handler, "192.0.2.2:2", "GET", infoPath, "", nil))
	hold("[2001:db8::1]:1", httplimit.MaxDiscovery/8)
	wantTooMany(t, "half of the rest for a /64", from(t, handler, "[2001:db8::2]:1", "GET", infoPath, "", nil))
	hold("[2001:db8:0:1::1]:1", httplimit.MaxDiscovery/16)
	hold("", httplimit.MaxDiscovery/16) // not over a network, and so without a client address to count
	if w := from(t, handler, "192.0.2.3:1", "GET", infoPath, "", nil); w.Code != 503 {
		t.Errorf("no free slot: got %d %s, want 503", w.Code, w.Body)
	}
	if w := from(t, handler, "192.0.2.1:1", "GET", "/version", "", nil); w.Code != 200 {
		t.Errorf("another class: got %d %s, want 200", w.Code, w.Body)
	}
	if n, m := s.refused(t, "client-in-flight"), s.refused(t, "overloaded"); n != 3 || m != 1 {
		t.Errorf("got %v client-in-flight and %v overloaded refusals, want 3 and 1", n, m)
	}
	if said := s.logs.String(); !strings.Contains(said, "reason=client-in-flight from=192.0.2.1 class=discovery") {
		t.Errorf("the log lacks the refusal:\n%s", said)
	}
	close(h.free)
	held.Wait()
	h.holdJSON = nil
	for _, remote := range []string{"192.0.2.1:1", "192.0.2.2:1", "[2001:db8::1]:1"} {
		if w := from(t, handler, remote, "GET", infoPath, "", nil); w.Code != 200 {
			t.Errorf("%s, after all responses: got %d %s, want 200", remote, w.Code, w.Body)
		}
	}
	if n := s.inFlight(t, "discovery"); n != 0 {
		t.Errorf("got %v in flight at the end, want 0", n)
	}
}

// unfinished is a body that blocks until the channel is closed, and then ends early.
type unfinished chan struct{}

func (u unfinished) Read([]byte) (int, error) { <-u; return 0, io.ErrUnexpectedEOF }

// Catches a user with unfinished requests from many addresses who takes all certificate slots.
func TestLimitsRequestsInFlightOfOneUser(t *testing.T) {
	s, _ := certifying(t)
	s.Certificates.Authority.Unthrottled = true
	s.Logger = nil
	s.Limits.ClientRate, s.Limits.UserRate = server.Rate{}, server.Rate{}
	stolen, other := s.token(t, nil), s.token(t, nil)
	handler := s.Handler()
	body := make(unfinished)
	var slow sync.WaitGroup
	var reading atomic.Int32
	ask := func(i int, bearer string, body io.Reader) *httptest.ResponseRecorder {
		return from(t, handler, fmt.Sprintf("192.0.2.%d:1", i%250), "POST", certificatePath, bearer, body)
	}
	for i := range httplimit.MaxCertificates / 2 {
		slow.Go(func() {
			var once sync.Once
			counted := readFunc(func(p []byte) (int, error) {
				once.Do(func() { reading.Add(1) })
				return body.Read(p)
			})
			if w := ask(i, stolen, counted); w.Code != 400 {
				t.Errorf("truncated body: got %d %s, want 400", w.Code, w.Body)
			}
		})
	}
	// A request whose body is read is counted for its user.
	s.waitFor(t, "bodies are not read yet", func() int { return httplimit.MaxCertificates/2 - int(reading.Load()) })
	wantTooMany(t, "half of all", ask(0, stolen, strings.NewReader(nodeCSR(t, "worker-1"))))
	for i := range httplimit.MaxCertificates { // sequentially
		if w := ask(i, other, strings.NewReader(nodeCSR(t, fmt.Sprint("worker-", i+2)))); w.Code != 200 {
			t.Fatalf("another token: %d %s", w.Code, w.Body)
		}
	}
	if n := s.refused(t, "user-in-flight"); n != 1 {
		t.Errorf("got %v user-in-flight refusals, want 1", n)
	}
	close(body)
	slow.Wait()
	if w := ask(0, stolen, strings.NewReader(nodeCSR(t, "worker-1"))); w.Code != 200 {
		t.Errorf("after all responses: got %d %s, want 200", w.Code, w.Body)
	}
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

// A client opens many HTTP/2 streams and reads no response. Catches it blocking discovery or probes of others, and
// short responses that do not count as in flight while they are unread.
func TestUnreadHTTP2ResponsesBlockNobodyElse(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Logger = nil
	s.Limits.ClientRate, s.Limits.UserRate = server.Rate{}, server.Rate{}
	s.fill(t, 200)
	s.start(t)
	other := &http.Client{Transport: &http.Transport{
		TLSClientConfig: s.http.Transport.(*http.Transport).TLSClientConfig,
		DialContext:     (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext,
	}}
	t.Cleanup(other.CloseIdleConnections)
	ask := func(path string) (int, error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, "GET", s.url+path, nil)
		if err != nil {
			return 0, err
		}
		answer, err := other.Do(r)
		if err != nil {
			return 0, err
		}
		_, err = io.Copy(io.Discard, answer.Body)
		return answer.StatusCode, errors.Join(err, answer.Body.Close())
	}
	for class, c := range map[string]struct {
		path string
		most int
	}{"probe": {"/healthz", httplimit.MaxProbes}, "discovery": {infoPath, httplimit.MaxDiscovery}, "other": {"/", 256}} {
		get := block(":method", "GET", ":scheme", "https", ":authority", "x", ":path", c.path)
		var all bytes.Buffer
		all.WriteString(preface)
		all.Write(frame(6, frameSettings, 0, 0, []byte{0, 4, 0, 0, 0, 0})) // SETTINGS_INITIAL_WINDOW_SIZE 0
		for id := uint32(1); id < 2*64; id += 2 {
			all.Write(frame(len(get), frameHeaders, endStream|endHeaders, id, get))
		}
		var connections []*tls.Conn
		for range c.most/64 + 4 {
			conn := s.dial(t, "h2")
			if _, err := conn.Write(all.Bytes()); err != nil {
				t.Fatal(err)
			}
			connections = append(connections, conn)
		}
		s.waitFor(t, "of "+class+" are not held yet", func() int { return c.most/2 - int(s.inFlight(t, class)) })
		for range 20 {
			for _, path := range []string{"/healthz", "/readyz", infoPath, "/v1/ca", "/version"} {
				if status, err := ask(path); status != 200 || err != nil {
					t.Errorf("%s, while responses from %s are unread: got %d %v, want 200", path, c.path, status, err)
				}
			}
		}
		if n := int(s.inFlight(t, class)); n > c.most/2+1 {
			t.Errorf("%s: got %d in flight, want at most %d", class, n, c.most/2+1)
		}
		for _, conn := range connections {
			_ = conn.NetConn().Close()
		}
		s.waitFor(t, "of "+class+" are left", func() int { return int(s.inFlight(t, class)) })
	}
}

// Browsers send a client certificate with requests from pages of any site. Catches such a request that changes
// something.
func TestRefusesCrossSiteRequests(t *testing.T) {
	s := newSite(t)
	handler := s.Handler()
	for name, test := range map[string]struct {
		method, path string
		header       http.Header
		want         int
	}{
		"curl":                                {"POST", tokenPath, nil, 201},
		"a page of its own":                   {"POST", tokenPath, http.Header{"Sec-Fetch-Site": {"same-origin"}, "Origin": {"https://example.com"}}, 201},
		"an older browser, a page of its own": {"POST", tokenPath, http.Header{"Origin": {"https://example.com"}}, 201},
		"typed by a person":                   {"POST", tokenPath, http.Header{"Sec-Fetch-Site": {"none"}}, 201},
		"another site":                        {"POST", tokenPath, http.Header{"Sec-Fetch-Site": {"cross-site"}, "Origin": {"https://evil.example"}}, 403},
		"another host of the same site":       {"POST", tokenPath, http.Header{"Sec-Fetch-Site": {"same-site"}}, 403},
		"an older browser, another site":      {"POST", tokenPath, http.Header{"Origin": {"https://evil.example"}}, 403},
		"a page without an origin":            {"DELETE", tokenPath + "/abcdef", http.Header{"Origin": {"null"}}, 403},
		"a link":                              {"GET", infoPath, http.Header{"Sec-Fetch-Site": {"cross-site"}}, 200},
	} {
		r := httptest.NewRequestWithContext(t.Context(), test.method, test.path, nil)
		r.Header = test.header.Clone()
		if r.Header == nil {
			r.Header = http.Header{}
		}
		r.Header.Set("Authorization", "Bearer "+adminBearer)
		w := httptest.NewRecorder()
		before := len(s.ids(t))
		if handler.ServeHTTP(w, r); w.Code != test.want {
			t.Errorf("%s: %d %s, want %d", name, w.Code, w.Body, test.want)
		}
		if made := len(s.ids(t)) - before; made != 0 && w.Code == 403 {
			t.Errorf("%s: got %d new tokens, want none", name, made)
		}
	}
}
