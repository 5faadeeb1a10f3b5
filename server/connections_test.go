package server_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kubejoin/kubejoin/internal/httplimit"
)

// A machine without a credential that has a request in flight on every connection that it gets, for as long
// as it likes, leaves others theirs.
func TestLimitsConnectionsOfOneClient(t *testing.T) {
	s := newSite(t)
	s.Logger, s.ClientRate = nil, atFirst(1000)
	const most = 8
	limit := httplimit.Connections(most, httplimit.Rate(s.ClientRate), s.registry())
	var active atomic.Int64
	s.connState = func(c net.Conn, state http.ConnState) {
		if limit(c, state); state == http.StateActive {
			active.Add(1)
		}
	}
	s.start(t)
	for range most { // one byte of two: it is answered when the other one has come
		c, err := s.dialFrom(t, "127.0.0.2", &tls.Config{})
		if err == nil {
			_, _ = io.WriteString(c, "POST "+commandPath+" HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{")
		}
	}
	s.waitFor(t, "connections have no request yet", func() int {
		return most - int(active.Load()) - int(s.gauge(t, "kubejoin_http_connections_refused_total", ""))
	})
	for _, address := range []string{"127.0.0.3", "127.0.0.4"} {
		c, err := s.dialFrom(t, address, &tls.Config{})
		if err != nil {
			t.Fatalf("another client is kept out: %v", err)
		}
		if status := ask200(c); status != "" {
			t.Errorf("another client: %s", status)
		}
	}
	if n := s.gauge(t, "kubejoin_http_connections_refused_total", ""); n != most/2 {
		t.Errorf("%v connections are refused, want half of %d", n, most)
	}
}

// ask200 is what an answer of 200 lacks.
func ask200(c *tls.Conn) string {
	if _, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return err.Error()
	}
	answer := make([]byte, 4096)
	if n, err := c.Read(answer); err != nil || !strings.HasPrefix(string(answer[:n]), "HTTP/1.1 200 ") {
		return fmt.Sprintf("%q %v", answer[:n], err)
	}
	return ""
}
