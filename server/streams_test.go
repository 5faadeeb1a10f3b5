package server_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/web/httplimit"
	"github.com/kubejoin/kubejoin/server"
)

// Types and flags of HTTP/2 frames (RFC 9113, section 6).
const (
	frameHeaders  = 1
	frameReset    = 3
	frameSettings = 4
	frameGoAway   = 7
	endStream     = 1
	endHeaders    = 4
	ack           = 1
)

// block encodes headers as literals without indexing (RFC 7541, section 6.2.2).
func block(pairs ...string) []byte {
	var b []byte
	for i, text := range pairs {
		if i%2 == 0 {
			b = append(b, 0)
		}
		b = append(append(b, byte(len(text))), text...)
	}
	return b
}

// h2 opens an HTTP/2 connection and exchanges the settings.
func (s *site) h2(t testing.TB) (*tls.Conn, *bufio.Reader) {
	t.Helper()
	c := s.dial(t, "h2")
	_ = c.SetDeadline(time.Now().Add(patience))
	must.Value(c.Write(append([]byte(preface), frame(0, frameSettings, 0, 0, nil)...)))(t)
	r := bufio.NewReader(c)
	for {
		if kind, flags, _, _, err := readFrame(r); err != nil {
			t.Fatal(err)
		} else if kind == frameSettings && flags&ack == 0 {
			break
		}
	}
	must.Value(c.Write(frame(0, frameSettings, ack, 0, nil)))(t)
	return c, r
}

func readFrame(r io.Reader) (kind, flags byte, stream uint32, payload []byte, err error) {
	head := make([]byte, 9)
	if _, err := io.ReadFull(r, head); err != nil {
		return 0, 0, 0, nil, err
	}
	payload = make([]byte, binary.BigEndian.Uint32(head)>>8)
	_, err = io.ReadFull(r, payload)
	return head[3], head[4], binary.BigEndian.Uint32(head[5:]), payload, err
}

// busy is a cluster-info whose JSON blocks until free is closed, even for canceled requests. most is the highest number
// of concurrent calls.
type busy struct {
	server.ClusterInfo
	free      chan struct{}
	now, most atomic.Int64
}

func (b *busy) JSON(ctx context.Context) ([]byte, error) {
	now := b.now.Add(1)
	for most := b.most.Load(); now > most && !b.most.CompareAndSwap(most, now); most = b.most.Load() {
	}
	<-b.free
	b.now.Add(-1)
	return b.ClusterInfo.JSON(ctx)
}

// Catches HTTP/2 streams that take more resources than one connection may, or that leave goroutines or requests behind.
func TestLimitsHTTP2Streams(t *testing.T) {
	s := newSite(t)
	s.Logger = nil
	b := &busy{ClusterInfo: s.ClusterInfo, free: make(chan struct{})}
	s.ClusterInfo = b
	s.start(t)
	get := block(":method", "GET", ":scheme", "https", ":authority", "x", ":path", infoPath)
	post := block(":method", "POST", ":scheme", "https", ":authority", "x", ":path", commandPath,
		"authorization", "Bearer "+adminBearer, "content-type", "application/json", "content-length", "1000")
	if got := s.do(t, "GET", "/healthz", "", "", ""); got.status != 200 {
		t.Fatal(got.status)
	}
	s.http.CloseIdleConnections()
	s.waitFor(t, "connections are left", func() int { return int(s.gauge(t, "kubejoin_http_connections", "")) })
	before := runtime.NumGoroutine()
	idle := func() {
		s.http.CloseIdleConnections()
		s.waitFor(t, "requests are left", func() int { return int(s.inFlight(t, "discovery") + s.inFlight(t, "join-command")) })
		s.waitFor(t, "connections are left", func() int { return int(s.gauge(t, "kubejoin_http_connections", "")) })
		s.waitFor(t, "goroutines are left", func() int { return max(runtime.NumGoroutine()-before, 0) })
	}

	t.Run("rapid reset", func(t *testing.T) { // CVE-2023-44487
		c, r := s.h2(t)
		go func() {
			var all bytes.Buffer
			for id := uint32(1); id < 40_000; id += 2 {
				all.Write(frame(len(get), frameHeaders, endStream|endHeaders, id, get))
				all.Write(frame(4, frameReset, 0, id, []byte{0, 0, 0, 8})) // CANCEL
			}
			_, _ = c.Write(all.Bytes()) // fails when the server closes the connection
		}()
		last := byte(0)
		for {
			kind, _, _, payload, err := readFrame(r)
			if err != nil {
				break
			}
			if last = kind; kind == frameGoAway && binary.BigEndian.Uint32(payload[4:]) != 11 { // ENHANCE_YOUR_CALM
				t.Errorf("got GOAWAY with error %d, want 11", binary.BigEndian.Uint32(payload[4:]))
			}
		}
		if last != frameGoAway {
			t.Errorf("got last frame of type %d, want GOAWAY", last)
		}
		if most := b.most.Load(); most < 1 || most > 64 {
			t.Errorf("got %d concurrent requests of one connection, want 1 to 64", most)
		}
		if got := s.do(t, "POST", commandPath, adminBearer, "", ""); got.status != 500 && got.status != 200 {
			t.Errorf("meanwhile: %d %s", got.status, got.body)
		}
		_ = c.Close()
	})
	close(b.free)

	t.Run("many streams", func(t *testing.T) {
		c, r := s.h2(t)
		const streams = 1000
		var all bytes.Buffer
		for i := range uint32(streams) {
			all.Write(frame(len(post), frameHeaders, endHeaders, 2*i+1, post)) // the body never comes
		}
		must.Value(c.Write(all.Bytes()))(t)
		refused := map[uint32]bool{}
		for len(refused) < streams-64 {
			kind, _, stream, payload, err := readFrame(r)
			if err != nil {
				t.Fatalf("after %d refusals: %v", len(refused), err)
			}
			// REFUSED_STREAM, or PROTOCOL_ERROR once the client knows the limit (RFC 9113, section 5.1.2).
			if kind == frameReset && (binary.BigEndian.Uint32(payload) == 7 || binary.BigEndian.Uint32(payload) == 1) {
				refused[stream] = true
			}
		}
		if n := s.inFlight(t, "join-command"); n > 64 {
			t.Errorf("got %v requests in flight, want at most 64", n)
		}
		if got := s.do(t, "POST", commandPath, adminBearer, "", ""); got.status != 200 {
			t.Errorf("meanwhile: %d %s", got.status, got.body)
		}
		_ = c.Close()
	})

	idle() // so that allocations of the requests above are not measured below
	t.Run("compressed headers", func(t *testing.T) {
		c, r := s.h2(t)
		// One header of 3 kB is added to the table (RFC 7541, section 6.2.1), and 12,000 header fields refer to it.
		bomb := append(bytes.Clone(get), 0x40, 1, 'x', 0x7f)
		for n := 3000 - 127; ; n >>= 7 {
			if n < 128 {
				bomb = append(bomb, byte(n))
				break
			}
			bomb = append(bomb, byte(n)|128)
		}
		bomb = append(append(bomb, strings.Repeat("y", 3000)...), bytes.Repeat([]byte{0x80 | 62}, 12_000)...)
		before := allocatedBytes()
		must.Value(c.Write(frame(len(bomb), frameHeaders, endStream|endHeaders, 1, bomb)))(t)
		kind, _, _, payload, err := readFrame(r)
		for err == nil && kind == frameSettings {
			kind, _, _, payload, err = readFrame(r)
		}
		answered := kind == frameHeaders && bytes.Contains(payload, []byte("431"))
		if took := allocatedBytes() - before; !answered && kind != frameGoAway && err == nil || took > 4<<20 {
			t.Errorf("got frame of type %d %q %v after %d bytes of memory, want 431 or a closed connection", kind, payload, err, took)
		}
		_ = c.Close()
	})
	idle()
}

// A client opens many HTTP/2 streams and reads no response. Catches such a client that blocks discovery or probes
// of others, and short unread responses that are not counted as in flight.
func TestUnreadHTTP2ResponsesBlockNobodyElse(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Logger = nil
	s.Limits.ClientRate, s.Limits.UserRate = server.Rate{}, server.Rate{}
	s.fill(t, 200)
	s.start(t)
	other := &http.Client{Timeout: patience, Transport: &http.Transport{
		TLSClientConfig: s.http.Transport.(*http.Transport).TLSClientConfig,
		DialContext:     (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext,
	}}
	t.Cleanup(other.CloseIdleConnections)
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
			must.Value(conn.Write(all.Bytes()))(t)
			connections = append(connections, conn)
		}
		s.waitFor(t, "of "+class+" are not held yet", func() int { return c.most/2 - int(s.inFlight(t, class)) })
		for range 5 {
			for _, path := range []string{"/healthz", "/readyz", infoPath, "/v1/ca", "/version"} {
				if got := s.send(t, other, "GET", path, "", "", ""); got.status != 200 {
					t.Errorf("%s, while responses from %s are unread: got %d %s, want 200", path, c.path, got.status, got.body)
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
