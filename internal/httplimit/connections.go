package httplimit

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

// mostConnections is how many connections are open at most, each about 30 KB, if the limit on file descriptors allows it.
const mostConnections = 16_384

// sendBuffer is how many bytes of a response the kernel may buffer for a client that does not read. The default is up to
// 4 MiB. Linux doubles the value that is set.
const sendBuffer = 64 << 10

// connections limits open connections. Of too many it closes the one without a request for longest, idle or never used: a
// client that comes is worth more than one that may come back. If all have requests in flight it closes the new one.
//
// It closes a new connection before TLS if its client opens too many in a short time, or has as many as are free: the client
// could keep a request in flight on each for as long as it likes.
type connections struct {
	most    int
	rate    *buckets // by client; nil is no limit of clients
	open    prometheus.Gauge
	shed    prometheus.Counter
	refused prometheus.Counter

	mu      sync.Mutex
	count   int
	clients map[string]int // how many of those each client has
	unused  *list.List     // of net.Conn without a request in flight, the oldest first
	entries map[net.Conn]*list.Element
}

// Connections returns the ConnState of an http.Server. It limits how many connections are open, how many of those one client
// has, and the rate at which a client opens them. A negative rate is no limit of clients.
func Connections(most int, clients Rate, reg prometheus.Registerer) func(net.Conn, http.ConnState) {
	c := &connections{
		most:    most,
		rate:    newBuckets(clients),
		open:    metrics.Gauge(reg, "kubejoin_http_connections", "Open connections.").WithLabelValues(),
		shed:    metrics.Counter(reg, "kubejoin_http_connections_shed_total", "Connections closed to make room for others.").WithLabelValues(),
		refused: metrics.Counter(reg, "kubejoin_http_connections_refused_total", "Connections closed at once, since too many came from one client, or it has too many.").WithLabelValues(),
		clients: map[string]int{},
		unused:  list.New(),
		entries: map[net.Conn]*list.Element{},
	}
	return c.changed
}

// changed is a ConnState. The server calls it with StateNew before it accepts another connection.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		if tcp, ok := underlying(conn).(*net.TCPConn); ok {
			_ = tcp.SetWriteBuffer(sendBuffer) // fails on a connection that is gone again
		}
		free, refused := c.add(c.client(conn))
		if refused {
			c.refused.Inc()
			_ = underlying(conn).Close() // reported as StateClosed by the server
			break
		}
		c.entries[conn] = c.unused.PushBack(conn)
		if c.count > c.most || !free {
			c.closeOldest()
		}
	case http.StateActive:
		c.forget(conn)
		lift(conn)
	case http.StateIdle:
		c.forget(conn)
		c.entries[conn] = c.unused.PushBack(conn)
	case http.StateClosed, http.StateHijacked:
		c.forget(conn)
		c.count--
		less(c.clients, c.client(conn))
	}
	c.open.Set(float64(c.count))
}

// client returns the client that a connection is counted for, which is empty without limits of clients.
func (c *connections) client(conn net.Conn) string {
	if c.rate == nil {
		return ""
	}
	return clientOf(conn.RemoteAddr().String())
}

// add counts a connection. It reports whether the connection is one of those that are free for its client, and whether it is
// refused. One that is not free replaces another connection, unless its client has its part of all: a newcomer does not wait
// until the idle connections of others end.
func (c *connections) add(client string) (free, refused bool) {
	taken, has := c.count, c.clients[client]
	c.count++
	if client == "" {
		return true, false
	}
	c.clients[client]++
	free = fair(c.most, taken, has)
	part := max(c.most/(len(c.clients)+1), 1)
	return free, !c.rate.take(client, time.Now()) || !free && has >= part
}

func (c *connections) forget(conn net.Conn) {
	if e, found := c.entries[conn]; found {
		c.unused.Remove(e)
		delete(c.entries, conn)
	}
}

// closeOldest closes one connection. Its goroutine notices and reports StateClosed.
func (c *connections) closeOldest() {
	conn, ok := c.unused.Front().Value.(net.Conn) // at least the new one
	if !ok {
		return
	}
	c.forget(conn)
	c.shed.Inc()
	// Closing the TLS connection would write to it, which a client can make slow.
	_ = underlying(conn).Close()
}

// underlying returns the connection below TLS and [LimitHandshakes].
func underlying(conn net.Conn) net.Conn {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	if l, ok := conn.(*limitedConn); ok {
		conn = l.Conn
	}
	return conn
}

// lift ends the limit of [LimitHandshakes].
func lift(conn net.Conn) {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	if l, ok := conn.(*limitedConn); ok {
		l.left.Store(-1)
	}
}
