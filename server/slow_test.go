package server_test

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/internal/web/httplimit"
	"github.com/kubejoin/kubejoin/server"
)

// dial opens a new TLS connection with that ALPN protocol.
func (s *site) dial(t testing.TB, protocol string) *tls.Conn {
	t.Helper()
	c := must.Value(s.dialFrom(t, "127.0.0.1", &tls.Config{NextProtos: []string{protocol}}))(t)
	_ = c.SetDeadline(time.Time{})
	if err := c.NetConn().(*net.TCPConn).SetReadBuffer(32 << 10); err != nil { // so that unread data stays with the server
		t.Fatal(err)
	}
	return c
}

// drip sends the text one every 50 ms until the connection fails.
func drip(w io.Writer, one string) error {
	for tick := time.Tick(50 * time.Millisecond); ; <-tick {
		if _, err := io.WriteString(w, one); err != nil {
			return err
		}
	}
}

// frame returns an HTTP/2 frame (RFC 9113, section 4.1). The payload may be shorter than length.
func frame(length int, kind, flags byte, stream uint32, payload []byte) []byte {
	head := make([]byte, 9)
	binary.BigEndian.PutUint32(head, uint32(length)<<8)
	head[3], head[4] = kind, flags
	binary.BigEndian.PutUint32(head[5:], stream)
	return append(head, payload...)
}

const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// TestDisconnectsSlowClients runs one client of each kind concurrently. Catches a client that stays connected
// for two minutes, which is a multiple of the longest timeout.
func TestDisconnectsSlowClients(t *testing.T) {
	need.Long(t)
	t.Parallel()
	s := newSite(t)
	s.Minting.Advertise = "127.0.0.1:9443"
	s.strict = true
	s.Logger = nil // the clients would log while the test reads the log
	s.fill(t, 12_000)
	s.idle = 3 * time.Second // the default is a minute
	s.start(t)
	if got := s.do(t, "GET", infoPath, "", "", ""); got.status != 200 { // computes all signatures, which takes long on a slow machine
		t.Fatalf("%d %s", got.status, got.body)
	}
	before := runtime.NumGoroutine()
	head := func(method, path, more string) string {
		return method + " " + path + " HTTP/1.1\r\nHost: x\r\n" + more
	}
	authorized := "Authorization: Bearer " + adminBearer + "\r\n"
	get := block(":method", "GET", ":scheme", "https", ":authority", "x", ":path", infoPath)
	settings := frame(0, frameSettings, 0, 0, nil)
	noWindow := frame(6, frameSettings, 0, 0, []byte{0, 4, 0, 0, 0, 0}) // SETTINGS_INITIAL_WINDOW_SIZE 0
	const jsonBody = "Content-Type: application/json\r\n"
	writes := func(text string) func(*tls.Conn) error {
		return func(c *tls.Conn) error { _, err := io.WriteString(c, text); return err }
	}
	drips := func(first, one string) func(*tls.Conn) error {
		return func(c *tls.Conn) error { _, _ = io.WriteString(c, first); return drip(c, one) }
	}
	closes := func(text string) func(*tls.Conn) error {
		return func(c *tls.Conn) error { _, _ = io.WriteString(c, text); return c.CloseWrite() }
	}
	begun, disconnected := make(chan struct{}), make(chan struct{})
	clients := map[string]func(c *tls.Conn) error{
		"sends nothing":         writes(""),
		"drips a request line":  drips("", "G"),
		"drips headers":         drips(head("GET", infoPath, ""), "X"),
		"drips a body":          drips(head("POST", commandPath, authorized+jsonBody+"Content-Length: 1000\r\n\r\n"), " "),
		"drips chunks":          drips(head("POST", commandPath, authorized+jsonBody+"Transfer-Encoding: chunked\r\n\r\n"), "1\r\n \r\n"),
		"drips a body, unknown": drips(head("POST", commandPath, "Content-Length: 1000\r\n\r\n"), " "),
		"idles after an answer": writes(head("GET", "/healthz", "\r\n")),
		"does not read 1 MiB": func(c *tls.Conn) error {
			_, _ = io.WriteString(c, head("GET", infoPath, "\r\n"))
			_, err := c.Read(make([]byte, 1))
			close(begun)
			<-disconnected
			_ = c.NetConn().(*net.TCPConn).SetReadBuffer(1 << 20)
			return err
		},
		"half-closes": closes(head("GET", "/healthz", "\r\n")),
		"half-closes TCP": func(c *tls.Conn) error {
			_, _ = io.WriteString(c, head("GET", "/healthz", "\r\n"))
			return c.NetConn().(*net.TCPConn).CloseWrite()
		},
		"half-closes in headers": closes(head("GET", "/healthz", "")),
		"half-closes in a body":  closes(head("POST", commandPath, authorized+jsonBody+"Content-Length: 1000\r\n\r\n{")),
		"h2 sends no preface":    writes(""),
		"h2 sends no settings":   writes(preface),
		"h2 drips headers":       drips(preface+string(append(settings, frame(1000, frameHeaders, endStream|endHeaders, 1, nil)...)), "\x00"),
		"h2 never ends its headers": drips(preface+string(append(settings, frame(len(get), frameHeaders, endStream, 1, get)...)),
			string(frame(3, 9, 0, 1, []byte{0x20, 0x20, 0x20}))), // CONTINUATION without headers
		"h2 opens no window": writes(preface + string(append(noWindow, frame(len(get), frameHeaders, endStream|endHeaders, 1, get)...))),
	}
	var all sync.WaitGroup
	for name, send := range clients {
		protocol := "http/1.1"
		if strings.HasPrefix(name, "h2") {
			protocol = "h2"
		}
		c := s.dial(t, protocol)
		start := time.Now()
		_ = c.SetReadDeadline(start.Add(patience))
		sent := make(chan struct{})
		go func() { defer close(sent); _ = send(c) }() // the error is expected when the server disconnects
		all.Go(func() {
			<-sent
			n, err := io.Copy(io.Discard, c)
			if nerr, ok := err.(net.Error); ok && nerr.Timeout() {
				t.Errorf("%s: still connected after %s", name, time.Since(start))
			}
			if name == "does not read 1 MiB" && n > 1<<20 {
				t.Errorf("%s: got %d bytes of the response, want it cut off before 1 MiB", name, n)
			}
			t.Logf("%-28s disconnected after %4.1f s", name, time.Since(start).Seconds())
		})
	}
	// Other clients are served during that time.
	if got := s.do(t, "POST", commandPath, adminBearer, "", ""); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	<-begun
	s.waitFor(t, "unread responses are in flight", func() int { return int(s.inFlight(t, "discovery")) })
	close(disconnected)
	all.Wait()
	s.http.CloseIdleConnections()
	s.waitFor(t, "connections are left", func() int { return int(s.gauge(t, "kubejoin_http_connections", "")) })
	s.waitFor(t, "requests are left", func() int { return int(s.inFlight(t, "discovery") + s.inFlight(t, "join-command")) })
	s.waitFor(t, "goroutines are left", func() int { return max(runtime.NumGoroutine()-before, 0) })
}

// waitFor waits until count is zero.
func (s *site) waitFor(t testing.TB, what string, count func() int) {
	t.Helper()
	wait.OK(t, "wait for zero", func() error {
		if n := count(); n > 0 {
			return fmt.Errorf("%d %s", n, what)
		}
		return nil
	})
}

// Catches an oversized header, request line or body that is accepted or read in full.
func TestRefusesOversizedRequests(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start(t)
	long := strings.Repeat("x", 32<<10)
	for name, request := range map[string]string{
		"header":       "GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: " + long + "\r\n\r\n",
		"many headers": "GET /healthz HTTP/1.1\r\nHost: x\r\n" + strings.Repeat("X-A: b\r\n", 4<<10) + "\r\n",
		"request line": "GET /" + long + " HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		c := s.dial(t, "http/1.1")
		if _, err := io.WriteString(c, request); err != nil {
			continue // the server refused it before it was sent completely
		}
		answer, err := io.ReadAll(c)
		if len(answer) > 0 && !strings.HasPrefix(string(answer), "HTTP/1.1 431 ") {
			t.Errorf("%s: %v %.60s", name, err, answer)
		}
	}
	r := must.Value(http.NewRequestWithContext(t.Context(), "GET", s.url+"/healthz", nil))(t)
	r.Header.Set("X-Long", long)
	if response, err := s.http.Do(r); err == nil {
		if _ = response.Body.Close(); response.StatusCode != http.StatusRequestHeaderFieldsTooLarge || response.ProtoMajor != 2 {
			t.Errorf("over HTTP/%d: %s", response.ProtoMajor, response.Status)
		}
	}
	for _, bearer := range []string{"", adminBearer} {
		body := &counter{left: 64 << 20}
		r := must.Value(http.NewRequestWithContext(t.Context(), "POST", s.url+commandPath, body))(t)
		r.Header.Set("Content-Type", "application/json")
		want := http.StatusUnauthorized
		if bearer != "" {
			r.Header.Set("Authorization", "Bearer "+bearer)
			want = http.StatusRequestEntityTooLarge
		}
		response := must.Value(s.http.Do(r))(t)
		if _ = response.Body.Close(); response.StatusCode != want || body.sent > 1<<20 {
			t.Errorf("body of 64 MiB: %s after %d bytes, want %d", response.Status, body.sent, want)
		}
	}
}

type counter struct{ sent, left int }

func (c *counter) Read(p []byte) (int, error) {
	n := min(len(p), c.left)
	if c.sent += n; n == 0 {
		return 0, io.EOF
	}
	c.left -= n
	return n, nil
}

// Above the limit the server closes the oldest connections without a request. Catches a connection that is closed
// during a request, and silent connections that block new connections.
func TestClosesOldestIdleConnections(t *testing.T) {
	s := newSite(t)
	s.Logger = nil
	h := &heldClusterInfo{ClusterInfo: s.ClusterInfo, entered: make(chan struct{}), holdJSON: make(chan struct{}), free: make(chan struct{})}
	s.ClusterInfo = h
	const most = 4
	idled := make(chan struct{}, 100)
	limit := httplimit.Connections(most, httplimit.Rate(s.Limits.ClientRate), s.registry())
	s.connState = func(c net.Conn, state http.ConnState) {
		if limit(c, state); state == http.StateIdle {
			idled <- struct{}{}
		}
	}
	s.start(t)
	ask := func(c *tls.Conn, path string) {
		_ = c.SetReadDeadline(time.Now().Add(patience))
		_, _ = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path) // served reports an error
	}
	served := func(c *tls.Conn) bool {
		answer := make([]byte, 4096)
		n, err := c.Read(answer)
		return err == nil && strings.HasPrefix(string(answer[:n]), "HTTP/1.1 200 ")
	}
	idle := func() *tls.Conn {
		t.Helper()
		c := s.dial(t, "http/1.1")
		if ask(c, "/healthz"); !served(c) {
			t.Fatal("a new connection is not served")
		}
		<-idled // shortly after the response
		return c
	}
	busy := s.dial(t, "http/1.1")
	ask(busy, infoPath)
	<-h.entered
	first, second, third := idle(), idle(), idle()
	fresh := idle() // the fifth
	for c, want := range map[*tls.Conn]bool{first: false, second: true, third: true, fresh: true} {
		if ask(c, "/healthz"); served(c) != want {
			t.Errorf("want the connection served %t, and only the oldest idle one closed", want)
		}
	}
	for range 2 * most { // connections that never send anything must not block others
		conn := must.Value(net.Dial("tcp", strings.TrimPrefix(s.url, "https://")))(t)
		defer func() { _ = conn.Close() }()
	}
	idle()
	close(h.free)
	if !served(busy) {
		t.Error("the connection with a request in flight was closed")
	}
	if shed := s.gauge(t, "kubejoin_http_connections_shed_total", ""); shed < 2*most {
		t.Errorf("got %v closed connections, want at least %d", shed, 2*most)
	}
}

// Catches a response that waits for a body that the handler does not read, and a connection that is closed although its
// body arrived.
func TestRespondsBeforeTheBodyArrives(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Logger = nil
	s.start(t)
	for name, test := range map[string]struct {
		head       string
		length     int
		want       string
		authorized bool
	}{
		"not authenticated": {head: "POST " + commandPath, length: 1000, want: "401"},
		"found nothing":     {head: "GET /nowhere", length: 1000, want: "404"},
		"public":            {head: "GET /v1/ca", length: 1000, want: "200"},
		"too large":         {head: "POST " + commandPath, length: 100 << 10, want: "413", authorized: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := s.dial(t, "http/1.1")
			send := func(length, sent int) {
				t.Helper()
				head := test.head + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(length) + "\r\n"
				if test.authorized {
					head += "Authorization: Bearer " + adminBearer + "\r\n"
				}
				must.Value(io.WriteString(c, head+"\r\n"+strings.Repeat(" ", sent)))(t)
			}
			from := bufio.NewReader(c)
			_ = c.SetReadDeadline(time.Now().Add(patience / 2)) // before the request times out, which would end a wait for the body
			answer := func() *http.Response {
				t.Helper()
				r := must.Value(http.ReadResponse(from, nil))(t)
				must.Value(io.Copy(io.Discard, r.Body))(t)
				_ = r.Body.Close()
				return r
			}
			if !test.authorized {
				for range 3 {
					send(10, 10)
					if r := answer(); r.Close || r.Status[:3] != test.want {
						t.Errorf("short body: got %s and Connection: close %t, want %s and false", r.Status, r.Close, test.want)
					}
				}
			}
			send(test.length, min(test.length-1, server.MaxBody+1))
			if r := answer(); !r.Close || r.Status[:3] != test.want {
				t.Errorf("got %s and Connection: close %t, want %s and true", r.Status, r.Close, test.want)
			}
			if _, err := from.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("after the response: got %v, want the connection closed", err)
			}
		})
	}
}
