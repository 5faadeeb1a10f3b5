package clusterinfo_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
)

// An endpoint is a discovery endpoint that tests can make misbehave.
type endpoint struct {
	ca, other  *tls.Certificate
	token      tokens.Token
	kubeconfig []byte // contains both CAs
	asked      atomic.Int32
	answer     func(w http.ResponseWriter, r *http.Request, nth int32)
	server     *httptest.Server
}

func newEndpoint(t *testing.T) *endpoint {
	t.Helper()
	e := &endpoint{ca: certtest.CA(t, "cluster"), other: certtest.CA(t, "other"), token: mustToken(t, "abcdef.9876543210fedcba")}

	e.kubeconfig = must.Value(clusterinfo.Kubeconfig("https://api.example:6443", []*x509.Certificate{e.ca.Leaf, e.other.Leaf}))(t)
	e.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/namespaces/kube-public/configmaps/cluster-info" || r.Header.Get("Authorization") != "" || r.Method != http.MethodGet {
			t.Errorf("got request %s %s with Authorization %q", r.Method, r.URL, r.Header.Get("Authorization"))
		}
		nth := e.asked.Add(1)
		if e.answer != nil {
			e.answer(w, r, nth)
			return
		}
		e.write(t, w, e.kubeconfig)
	}))
	e.server.TLS = &tls.Config{Certificates: []tls.Certificate{certtest.Serving(t, e.ca, "127.0.0.1")}}
	e.server.Config.ErrorLog = log.New(io.Discard, "", 0) // handshakes fail on purpose
	e.server.StartTLS()
	t.Cleanup(e.server.Close)
	return e
}

func (e *endpoint) write(t *testing.T, w io.Writer, kubeconfig []byte) {
	jws, err := clusterinfo.Sign(kubeconfig, e.token)
	if err != nil {
		t.Error(err)
	}
	e.writeData(t, w, map[string]string{"kubeconfig": string(kubeconfig), "jws-kubeconfig-abcdef": jws})
}

func (e *endpoint) writeData(t *testing.T, w io.Writer, data map[string]string) {
	b, err := clusterinfo.MarshalConfigMap(data)
	if err != nil {
		t.Error(err)
	}
	_, _ = w.Write(b)
}

func (e *endpoint) discovery(pins ...string) clusterinfo.Discovery {
	return clusterinfo.Discovery{
		Endpoint: e.server.Listener.Addr().String(), Token: e.token, Pins: pins,
		Retry: time.Millisecond, Timeout: time.Minute, // an attempt that a slow machine interrupts would be another request
	}
}

func TestDiscover(t *testing.T) {
	e := newEndpoint(t)
	found := must.Value(clusterinfo.Discover(t.Context(), e.server.Listener.Addr().String(), e.token, []string{clusterinfo.Pin(e.ca.Leaf)}))(t)
	if found.Server != "https://api.example:6443" || len(found.CAs) != 1 || !found.CAs[0].Equal(e.ca.Leaf) {
		t.Errorf("got %s and %d CAs, want only the pinned one", found.Server, len(found.CAs))
	}
	server, cas, err := clusterinfo.ParseKubeconfig(found.Kubeconfig)
	if err != nil || server != found.Server || len(cas) != 1 || !cas[0].Equal(e.ca.Leaf) {
		t.Errorf("kubeconfig with %s and %d CAs, %v", server, len(cas), err)
	}
	if n := e.asked.Load(); n != 2 {
		t.Errorf("got %d requests, want 2", n)
	}
}

func TestDiscoverWaits(t *testing.T) {
	e := newEndpoint(t)
	e.answer = func(w http.ResponseWriter, r *http.Request, nth int32) {
		switch nth {
		case 1:
			w.WriteHeader(http.StatusForbidden)
		case 2:
			w.WriteHeader(http.StatusServiceUnavailable)
		case 3: // only signed by another token
			e.writeData(t, w, map[string]string{"kubeconfig": string(e.kubeconfig), "jws-kubeconfig-zzzzzz": "e30..AA"})
		case 4:
			e.writeData(t, w, map[string]string{"kubeconfig": string(e.kubeconfig), "jws-kubeconfig-abcdef": ""})
		case 6: // after the first valid signature
			panic(http.ErrAbortHandler)
		default:
			e.write(t, w, e.kubeconfig)
		}
	}
	if _, err := e.discovery(clusterinfo.Pin(e.ca.Leaf)).Run(t.Context()); err != nil {
		t.Error(err)
	}
	if n := e.asked.Load(); n != 7 {
		t.Errorf("got %d requests, want 7", n)
	}
}

// Catches an error response whose body is read as cluster-info, and a client that does not wait as long as the
// endpoint says.
func TestDiscoverRetriesErrorsWithoutTheirBody(t *testing.T) {
	t.Parallel()
	for code, wait := range map[int]time.Duration{404: 0, 429: time.Second, 503: time.Second} {
		t.Run(strconv.Itoa(code), func(t *testing.T) {
			t.Parallel()
			e := newEndpoint(t)
			var refused time.Time
			e.answer = func(w http.ResponseWriter, _ *http.Request, nth int32) {
				switch nth {
				case 1:
					refused = time.Now()
					w.Header().Set("Retry-After", "1")
					w.WriteHeader(code)
				case 2:
					if waited := time.Since(refused); waited < wait {
						t.Errorf("got the next request after %s, want %s", waited, wait)
					}
				}
				e.write(t, w, e.kubeconfig) // a valid body, even of an error
			}
			if _, err := e.discovery(clusterinfo.Pin(e.ca.Leaf)).Run(t.Context()); err != nil || e.asked.Load() != 3 {
				t.Errorf("got %v after %d requests, want success after 3", err, e.asked.Load())
			}
		})
	}
}

func TestRetryAfterIsBounded(t *testing.T) {
	for _, test := range []struct {
		code   int
		header string
		want   time.Duration
	}{
		{429, "7", 7 * time.Second}, {503, "7", 7 * time.Second}, {503, "30", 30 * time.Second}, {503, "31", 30 * time.Second},
		{429, "4294967295", 30 * time.Second}, {429, "99999999999999999999", 0}, {429, "-1", 0}, {429, "", 0}, {429, "soon", 0},
		{404, "7", 0}, {500, "7", 0}, {302, "7", 0},
	} {
		if got := clusterinfo.RetryAfter(test.code, http.Header{"Retry-After": {test.header}}); got != test.want {
			t.Errorf("%d with %q: got %s, want %s", test.code, test.header, got, test.want)
		}
	}
}

func TestDiscoverRefuses(t *testing.T) {
	type answer = func(e *endpoint, w http.ResponseWriter, r *http.Request, nth int32)
	pinOfCA := func(e *endpoint) []string { return []string{clusterinfo.Pin(e.ca.Leaf)} }
	for name, test := range map[string]struct {
		pins   func(*endpoint) []string
		answer answer
		want   string
		asked  int32
	}{
		"signature by another secret": {pinOfCA, func(e *endpoint, w http.ResponseWriter, _ *http.Request, _ int32) {
			jws, _ := clusterinfo.Sign(e.kubeconfig, mustToken(t, "abcdef.9876543210fedcbb"))
			e.writeData(t, w, map[string]string{"kubeconfig": string(e.kubeconfig), "jws-kubeconfig-abcdef": jws})
		}, "signature does not verify", 1},
		"kubeconfig altered": {pinOfCA, func(e *endpoint, w http.ResponseWriter, _ *http.Request, _ int32) {
			jws, _ := clusterinfo.Sign(e.kubeconfig, e.token)
			e.writeData(t, w, map[string]string{"kubeconfig": string(e.kubeconfig) + " ", "jws-kubeconfig-abcdef": jws})
		}, "signature does not verify", 1},
		"no pinned CA": {func(*endpoint) []string { return []string{pin1, pin2} }, nil, "has one of the 2 pins", 1},
		// The pinned CA is in the bundle, but another CA of the bundle issued the serving certificate.
		"served by the CA that is not pinned": {func(e *endpoint) []string { return []string{clusterinfo.Pin(e.other.Leaf)} }, nil, "signed by unknown authority", 1},
		"other kubeconfig each time": {pinOfCA, func(e *endpoint, w http.ResponseWriter, _ *http.Request, nth int32) {
			server := "https://api.example:6443"
			if nth%2 == 0 {
				server = "https://evil.example:6443"
			}
			kubeconfig, _ := clusterinfo.Kubeconfig(server, []*x509.Certificate{e.ca.Leaf})
			e.write(t, w, kubeconfig)
		}, "its kubeconfig differs over the verified connection", 3},
		"kubeconfig with a credential": {pinOfCA, func(e *endpoint, w http.ResponseWriter, _ *http.Request, _ int32) {
			e.write(t, w, []byte(strings.Replace(string(e.kubeconfig), "users: null", "users: [{name: a, user: {token: hunter2}}]", 1)))
		}, "users", 1},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEndpoint(t)
			if test.answer != nil {
				e.answer = func(w http.ResponseWriter, r *http.Request, nth int32) { test.answer(e, w, r, nth) }
			}
			found, err := e.discovery(test.pins(e)...).Run(t.Context())
			if !errors.Is(err, clusterinfo.ErrUntrusted) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want ErrUntrusted about %q", err, test.want)
			}
			if found.Server != "" || found.CAs != nil || found.Kubeconfig != nil {
				t.Errorf("an error and %v", found)
			}
			if n := e.asked.Load(); n != test.asked {
				t.Errorf("got %d requests, want %d", n, test.asked)
			}
			if err != nil && (strings.Contains(err.Error(), "9876543210") || strings.Contains(err.Error(), "hunter2")) {
				t.Errorf("the error contains a secret: %v", err)
			}
		})
	}
}

// A CA rotation may change cluster-info between the two requests. Catches a join that fails after such a change.
func TestDiscoverFollowsChange(t *testing.T) {
	e := newEndpoint(t)
	e.answer = func(w http.ResponseWriter, _ *http.Request, nth int32) {
		cas := []*x509.Certificate{e.ca.Leaf, e.other.Leaf}
		if nth == 1 {
			cas = cas[:1]
		}
		kubeconfig, _ := clusterinfo.Kubeconfig("https://api.example:6443", cas)
		e.write(t, w, kubeconfig)
	}
	found := must.Value(e.discovery(clusterinfo.Pin(e.ca.Leaf), clusterinfo.Pin(e.other.Leaf)).Run(t.Context()))(t)
	if len(found.CAs) != 2 || e.asked.Load() != 3 {
		t.Errorf("got %d CAs after %d requests, want both after 3", len(found.CAs), e.asked.Load())
	}
}

// Run must retry temporary failures until the context ends, and return the last failure.
func TestDiscoverReturnsLastFailure(t *testing.T) {
	for name, test := range map[string]struct {
		answer func(w http.ResponseWriter, r *http.Request)
		want   string
	}{
		"no cluster-info":   {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }, "response 404 Not Found"},
		"too many requests": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) }, "response 429 Too Many Requests"},
		"forbidden":         {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }, "response 403 Forbidden"},
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusFound) // following it would fail newEndpoint's check of the path
		}, "response 302 Found"},
		"not JSON":   {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }, "not a ConfigMap in JSON"},
		"unsigned":   {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"data":{"kubeconfig":"x"}}`) }, "no signature by token abcdef"},
		"slow":       {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "deadline"},
		"hanging up": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEndpoint(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			e.answer = func(w http.ResponseWriter, r *http.Request, nth int32) {
				if nth == 3 {
					cancel()
				}
				test.answer(w, r)
			}
			d := e.discovery(clusterinfo.Pin(e.ca.Leaf))
			if name == "slow" {
				d.Timeout = time.Second
			}
			_, err := d.Run(ctx)
			if !errors.Is(err, context.Canceled) || errors.Is(err, clusterinfo.ErrUntrusted) {
				t.Errorf("got %v, want the context's error", err)
			}
			if n := e.asked.Load(); n < 3 {
				t.Errorf("got %d requests, want 3", n)
			}
		})
		t.Run(name+", reason", func(t *testing.T) {
			t.Parallel()
			e := newEndpoint(t)
			e.answer = func(w http.ResponseWriter, r *http.Request, _ int32) { test.answer(w, r) }
			d := e.discovery(clusterinfo.Pin(e.ca.Leaf))
			d.Retry = time.Hour
			for timeout := time.Second; ; timeout *= 4 { // on a slow machine the server responds late
				if name == "slow" {
					d.Timeout = timeout / 3
				}
				ctx, cancel := context.WithTimeout(t.Context(), timeout)
				_, err := d.Run(ctx)
				cancel()
				if errors.Is(err, context.DeadlineExceeded) && strings.Contains(strings.ToLower(err.Error()), strings.ToLower(test.want)) {
					break
				}
				if err == nil || timeout > time.Minute {
					t.Fatalf("got %v, want an error with %q", err, test.want)
				}
			}
		})
	}
}

// An endless response must not be kept in memory.
func TestDiscoverRefusesHugeResponse(t *testing.T) {
	e := newEndpoint(t)
	ctx, cancel := context.WithCancel(t.Context())
	e.answer = func(w http.ResponseWriter, _ *http.Request, _ int32) {
		defer cancel()
		_, _ = io.Copy(w, zeros{}) // until the client closes the connection
	}
	d := e.discovery(clusterinfo.Pin(e.ca.Leaf))
	d.Timeout, d.Retry = time.Minute, time.Hour
	if _, err := d.Run(ctx); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "response of more than") {
		t.Errorf("got %v", err)
	}
}

func TestDiscoverChecksItsInput(t *testing.T) {
	token := mustToken(t, "abcdef.9876543210fedcba")
	for name, d := range map[string]clusterinfo.Discovery{
		"endpoint": {Endpoint: "https://a:1", Token: token, Pins: []string{pin1}},
		"token":    {Endpoint: "a:1", Pins: []string{pin1}},
		"pin":      {Endpoint: "a:1", Token: token},
		"CA pin":   {Endpoint: "a:1", Token: token, Pins: []string{"sha256:00"}},
	} {
		if _, err := d.Run(t.Context()); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
