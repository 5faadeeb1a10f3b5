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
// most requests. So has one that has as many as are free: it could keep a request in flight on each for
// as long as it likes.
type connections struct {
	most    int
	rate    *buckets // by client; nil leaves clients without any of these limits
	open    prometheus.Gauge
	shed    prometheus.Counter
	refused prometheus.Counter

	mu      sync.Mutex
	count   int
	clients map[string]int // how many of those are whose
	unused  *list.List     // of net.Conn without a request in flight, the oldest first
	entries map[net.Conn]*list.Element
}

func newConnections(most int, rate *buckets, reg prometheus.Registerer) *connections {
	return &connections{
		most:    most,
		rate:    rate,
		open:    metrics.Gauge(reg, "kubejoin_http_connections", "Open connections.").WithLabelValues(),
		shed:    metrics.Counter(reg, "kubejoin_http_connections_shed_total", "Connections closed to make room for others.").WithLabelValues(),
		refused: metrics.Counter(reg, "kubejoin_http_connections_refused_total", "Connections closed at once, since too many came from one client, or it has too many.").WithLabelValues(),
		clients: map[string]int{},
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

// client is whom a connection is counted for, or empty if that is nobody.
func (c *connections) client(conn net.Conn) string {
	if c.rate == nil {
		return ""
	}
	return clientOf(conn.RemoteAddr().String())
}

// add counts a connection, and says whether it is one of those that are free for its client. One that is
// not takes the place of another, or is refused if its client has its part of all: where idle ones take
// all that there are nobody else has to wait until they go.
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

// underlying is the connection below TLS and [LimitHandshakes].
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
