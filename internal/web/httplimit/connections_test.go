package httplimit

import (
	"net"
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// A wire is a connection without data.
type wire struct {
	net.Conn
	from   net.Addr
	closed bool
}

func (w *wire) RemoteAddr() net.Addr { return w.from }
func (w *wire) Close() error         { w.closed = true; return nil }

// wires are the connections of clients to a server that limits connections.
type wires struct {
	changed func(net.Conn, http.ConnState)
	open    []*wire // oldest first
}

func newWires(most int, rate Rate) *wires {
	return &wires{changed: Connections(most, rate, prometheus.NewPedanticRegistry())}
}

// dial opens a connection of a client and reports whether it stays open. It removes connections that were closed.
func (w *wires) dial(client int, busy bool) bool {
	one := &wire{from: &net.TCPAddr{IP: net.IPv4(192, 0, 2, byte(client)), Port: 1}}
	w.changed(one, http.StateNew)
	w.open = append(w.open, one)
	if busy && !one.closed {
		w.changed(one, http.StateActive)
	}
	left := w.open[:0]
	for _, other := range w.open {
		if other.closed {
			w.changed(other, http.StateClosed)
		} else {
			left = append(left, other)
		}
	}
	w.open = left
	return !one.closed
}

// hangUp closes the oldest connection.
func (w *wires) hangUp() {
	w.changed(w.open[0], http.StateClosed)
	w.open = w.open[1:]
}

func (w *wires) of(client int) (n int) {
	for _, one := range w.open {
		if one.from.(*net.TCPAddr).IP[15] == byte(client) {
			n++
		}
	}
	return n
}

// Clients that keep requests in flight on every connection they get end up with equal shares, and leave one share
// to the next client.
func TestClientsShareConnectionsEqually(t *testing.T) {
	const most, clients = 1640, 40
	w := newWires(most, Rate{QPS: 1e-6, Burst: 1e9})
	take := func() {
		for taken := true; taken; {
			taken = false
			for client := range clients {
				for w.dial(client, true) {
					taken = true
				}
			}
		}
	}
	take()
	for range most {
		w.hangUp()
		take()
	}
	const part = most / (clients + 1)
	for client := range clients {
		if n := w.of(client); n < part-1 || n > part+1 {
			t.Errorf("client %d has %d connections, want %d", client, n, part)
		}
	}
	n := 0
	for w.dial(clients, true) {
		n++
	}
	if n < part/2-1 {
		t.Errorf("a newcomer has %d, want half of the %d that are left", n, part)
	}
	for len(w.open) > 0 {
		w.hangUp()
	}
	for range most/2 - 1 {
		if !w.dial(1, true) {
			t.Fatal("what has been closed is still counted")
		}
	}
}

// If idle connections take all slots, a client must still get its share.
func TestClientGetsItsShareBesideIdleConnections(t *testing.T) {
	const most, clients = 1024, 15
	w := newWires(most, Rate{QPS: 1e-6, Burst: 1e9})
	for client := range clients {
		for range most {
			w.dial(client, false)
		}
	}
	if len(w.open) < most-1 {
		t.Fatalf("%d connections are open", len(w.open))
	}
	n := 0
	for w.dial(clients, true) {
		n++
	}
	if part := most / (clients + 2); n < part-1 || n > most/2 {
		t.Errorf("a newcomer has %d connections, want %d at least", n, part)
	}
	if len(w.open) > most {
		t.Errorf("%d connections are open", len(w.open))
	}
}

// Without limits per client, one client may have all connections.
func TestClientMayTakeAllConnectionsWithoutLimits(t *testing.T) {
	const most = 16
	w := newWires(most, Rate{QPS: -1})
	for i := range most {
		if !w.dial(1, true) {
			t.Errorf("connection %d is closed", i)
		}
	}
	if w.dial(2, true) {
		t.Error("a connection above the limit stays open")
	}
}

// userWire is a connection that names its client, like a connection of a Unix socket.
type userWire struct {
	wire
	user string
}

func (w *userWire) Client() string { return w.user }

// Catches connections of a Unix socket that are all counted for one client.
func TestConnectionNamesItsClient(t *testing.T) {
	const most = 16
	changed := Connections(most, Rate{QPS: 1e-6, Burst: 1e9}, prometheus.NewPedanticRegistry())
	open := func(user string) (n int) {
		for range most {
			one := &userWire{wire{from: &net.UnixAddr{Net: "unix", Name: "@"}}, user}
			changed(one, http.StateNew)
			if one.closed {
				changed(one, http.StateClosed)
			} else {
				changed(one, http.StateActive)
				n++
			}
		}
		return n
	}
	if first, second := open("1"), open("2"); first != most/2 || second < most/4 {
		t.Errorf("two users have %d and %d connections, want half and at least a quarter of %d", first, second, most)
	}
}
