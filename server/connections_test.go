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

// Catches a client without a credential that occupies all connections by requests that never end.
func TestLimitsConnectionsOfOneClient(t *testing.T) {
	s := newSite(t)
	s.Logger, s.Limits.ClientRate = nil, atFirst(1000)
	const most = 8
	limit := httplimit.Connections(most, httplimit.Rate(s.Limits.ClientRate), s.registry())
	var active atomic.Int64
	s.connState = func(c net.Conn, state http.ConnState) {
		if limit(c, state); state == http.StateActive {
			active.Add(1)
		}
	}
	s.start(t)
	for range most { // the body is one of two bytes, so that the request does not end
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
			t.Fatalf("another client at %s: got %v, want a connection", address, err)
		}
		if status := ask200(c); status != "" {
			t.Errorf("another client: %s", status)
		}
	}
	if n := s.gauge(t, "kubejoin_http_connections_refused_total", ""); n != most/2 {
		t.Errorf("got %v refused connections, want %d", n, most/2)
	}
}

// ask200 sends a request and returns what is wrong with the response, or "" if its status is 200.
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
