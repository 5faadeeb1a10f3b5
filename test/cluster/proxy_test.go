package cluster_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
)

// TestStalledProxyDeliversLater catches a stalled proxy that delivers data too early, or that loses data.
func TestStalledProxyDeliversLater(t *testing.T) {
	echo := must.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = echo.Close() }()
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c) }() // until the proxy closes the connection
		}
	}()
	p := must.Value(cluster.NewProxy(echo.Addr().String(), nil))(t)
	defer p.Close()
	c := must.Value(net.Dial("tcp", p.Address()))(t)
	defer func() { _ = c.Close() }()
	exchange := func(text string, wait time.Duration) (string, error) {
		must.Value(io.WriteString(c, text))(t)
		_ = c.SetReadDeadline(time.Now().Add(wait))
		b := make([]byte, 2)
		n, err := io.ReadFull(c, b)
		return string(b[:n]), err
	}
	if got, err := exchange("ab", time.Minute); got != "ab" || err != nil {
		t.Fatalf("before: got %q, %v", got, err)
	}
	resume := p.Stall()
	if got, err := exchange("cd", 100*time.Millisecond); got != "" || err == nil {
		t.Errorf("stalled: got %q, %v, want nothing", got, err)
	}
	resume()
	if got, err := exchange("ef", time.Minute); got != "cd" || err != nil {
		t.Errorf("resumed: got %q, %v, want what was sent meanwhile", got, err)
	}
}
