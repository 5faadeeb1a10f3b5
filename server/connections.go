package server

import (
	"container/list"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/prometheus/client_golang/prometheus"
)

// mostConnections is how many connections are open at most, each about 30 KB, where the limit
// on file descriptors lets it.
const mostConnections = 16_384

// sendBuffer is what the kernel may keep of an answer that a client does not read. It would
// take 4 MiB, and twice what it is told.
const sendBuffer = 64 << 10

// connections bounds how many there are. One too many makes that one go which has been without
// a request for longest, be it idle or never used: a client that comes is worth more than one
// that may come back. If all have requests in flight the new one goes.
//
// A client that opens too many in a short time has new ones closed before TLS, which costs more than
// most requests.
type connections struct {
	most    int
	rate    *buckets // by client
	open    prometheus.Gauge
	shed    prometheus.Counter
	refused prometheus.Counter

	mu      sync.Mutex
	count   int
	unused  *list.List // of net.Conn without a request in flight, the oldest first
	entries map[net.Conn]*list.Element
}

func newConnections(most int, rate *buckets, reg prometheus.Registerer) *connections {
	return &connections{
		most:    most,
		rate:    rate,
		open:    metrics.Gauge(reg, "kubejoin_http_connections", "Open connections.").WithLabelValues(),
		shed:    metrics.Counter(reg, "kubejoin_http_connections_shed_total", "Connections closed to make room for others.").WithLabelValues(),
		refused: metrics.Counter(reg, "kubejoin_http_connections_refused_total", "Connections closed at once, since too many came from one client.").WithLabelValues(),
		unused:  list.New(),
		entries: map[net.Conn]*list.Element{},
	}
}

// changed is the ConnState of an http.Server. The server calls it with StateNew before it
// accepts another connection.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		if tcp, ok := underlying(conn).(*net.TCPConn); ok {
			_ = tcp.SetWriteBuffer(sendBuffer) // fails on a connection that is gone again
		}
		c.count++
		if client := clientOf(conn.RemoteAddr().String()); client != "" && !c.rate.take(client, time.Now()) {
			c.refused.Inc()
			_ = underlying(conn).Close() // reported as StateClosed by the server
			break
		}
		c.entries[conn] = c.unused.PushBack(conn)
		if c.count > c.most {
			c.closeOldest()
		}
	case http.StateActive:
		c.forget(conn)
	case http.StateIdle:
		c.forget(conn)
		c.entries[conn] = c.unused.PushBack(conn)
	case http.StateClosed, http.StateHijacked:
		c.forget(conn)
		c.count--
	}
	c.open.Set(float64(c.count))
}

func (c *connections) forget(conn net.Conn) {
	if e, found := c.entries[conn]; found {
		c.unused.Remove(e)
		delete(c.entries, conn)
	}
}

// closeOldest closes one connection; its goroutine finds that out and reports StateClosed.
func (c *connections) closeOldest() {
	conn, ok := c.unused.Front().Value.(net.Conn) // one at least: the new one
	if !ok {
		return
	}
	c.forget(conn)
	c.shed.Inc()
	// Without the farewell of TLS, for which a client could make us wait.
	_ = underlying(conn).Close()
}

func underlying(conn net.Conn) net.Conn {
	if t, ok := conn.(*tls.Conn); ok {
		return t.NetConn()
	}
	return conn
}
