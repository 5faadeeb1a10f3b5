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

// mostConnections is the maximum number of open connections, about 30 KB each, if the limit of file descriptors
// allows it.
const mostConnections = 16_384

// sendBuffer is how many bytes of a response the kernel may buffer for a client that does not read. The default is up
// to 4 MiB. Linux doubles the configured value.
const sendBuffer = 64 << 10

// connections limits open connections. If there are too many, it closes the one that has been without a request for
// longest, idle or never used: a new client matters more than one that may come back. If all have requests in flight,
// it closes the new one.
//
// It closes a new connection before TLS if its client opens connections too fast, or already has its share and as
// many as are free. The client could keep a request in flight on each of them for as long as it likes.
type connections struct {
	most    int
	rate    *buckets // by client; nil: no limits per client
	open    prometheus.Gauge
	shed    prometheus.Counter
	refused prometheus.Counter

	mu      sync.Mutex
	count   int
	clients map[string]int // number of connections by client
	unused  *list.List     // net.Conns without a request in flight, oldest first
	entries map[net.Conn]*list.Element
}

// Connections returns the ConnState of an http.Server. It limits the open connections, the open connections per
// client, and the rate at which a client opens them. A negative rate disables the limits per client. The client is that
// of the remote address, or the result of the method Client() string of the connection if it has one.
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

// changed is the ConnState. The server calls it with StateNew before it accepts another connection.
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

// client returns the client of a connection. It is empty without limits per client.
func (c *connections) client(conn net.Conn) string {
	if c.rate == nil {
		return ""
	}
	if own, ok := conn.(interface{ Client() string }); ok {
		return own.Client()
	}
	return clientOf(conn.RemoteAddr().String())
}

// add counts a connection. free reports whether its client had fewer connections than were free. refused reports that
// the caller must close it: its client opens them too fast, or the connection is not free and the client has its
// share of all. A connection that is neither free nor refused replaces another one, so that a newcomer does not wait
// for the idle connections of others.
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
	conn, ok := c.unused.Front().Value.(net.Conn) // the new connection at least
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
