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

// mostConnections is the maximum number of open connections, unless the limit of file descriptors is lower. A
// connection takes about 30 KB.
const mostConnections = 16_384

// sendBuffer limits the bytes of a response that the kernel buffers for a client that does not read. The default of
// the kernel is up to 4 MiB. Linux doubles this value.
const sendBuffer = 64 << 10

// connections limits open connections. If there are too many, it closes the connection that has had no request for
// the longest time. A new client is more important than an idle connection. If all connections have requests in
// flight, it closes the new one.
//
// It closes a new connection before TLS in two cases: the client opens connections too fast, or the client has its
// share of all connections, and at least as many as are free. Without this limit, a client could keep a request in
// flight on each connection for any time.
type connections struct {
	most    int
	rate    *buckets // new connections by client; nil means no limits per client
	open    prometheus.Gauge
	shed    prometheus.Counter
	refused prometheus.Counter

	mu      sync.Mutex
	count   int
	clients map[string]int // number of connections by client
	unused  *list.List     // net.Conns without a request in flight, oldest first
	entries map[net.Conn]*list.Element
}

// Connections returns the ConnState of an http.Server. It limits the open connections, the open connections per client,
// and the rate at which a client opens them. A negative rate disables the limits per client. If the connection has a
// method Client() string, its result is the client. Otherwise, the client is derived from the remote address.
func Connections(most int, clients Rate, reg prometheus.Registerer) func(net.Conn, http.ConnState) {
	c := &connections{
		most:    most,
		rate:    newBuckets(clients),
		open:    metrics.Gauge(reg, "kubejoin_http_connections", "Open connections.").WithLabelValues(),
		shed:    metrics.Counter(reg, "kubejoin_http_connections_shed_total", "Connections closed because too many were open: the longest idle one, or else the new one.").WithLabelValues(),
		refused: metrics.Counter(reg, "kubejoin_http_connections_refused_total", "Connections refused because their client opens or holds too many.").WithLabelValues(),
		clients: map[string]int{},
		unused:  list.New(),
		entries: map[net.Conn]*list.Element{},
	}
	return c.changed
}

// changed implements http.Server.ConnState. The server calls it with StateNew before it accepts another connection.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		if tcp, ok := underlying(conn).(*net.TCPConn); ok {
			_ = tcp.SetWriteBuffer(sendBuffer) // fails if the connection is already closed
		}
		free, refused := c.add(c.client(conn))
		if refused {
			c.refused.Inc()
			_ = underlying(conn).Close() // the server then reports StateClosed
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

// client returns the client of a connection; empty if there are no limits per client.
func (c *connections) client(conn net.Conn) string {
	if c.rate == nil {
		return ""
	}
	if own, ok := conn.(interface{ Client() string }); ok {
		return own.Client()
	}
	return clientOf(conn.RemoteAddr().String())
}

// add counts a connection. free reports whether the client had fewer connections than were free. refused reports that
// the caller must close the connection. That is the case if the client opens connections too fast, or if free is
// false and the client already has its share of all connections. A connection that is neither free nor refused
// replaces another one, so that a newcomer need not wait for the idle connections of others.
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

// closeOldest closes the connection that has had no request for the longest time. The server then reports StateClosed.
func (c *connections) closeOldest() {
	conn, ok := c.unused.Front().Value.(net.Conn) // the list has at least the new connection
	if !ok {
		return
	}
	c.forget(conn)
	c.shed.Inc()
	// Do not close the TLS connection itself: that would write to it, and a client can make the write slow.
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
