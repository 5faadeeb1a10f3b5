package etcd

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// A Network is the path from one client to the members: a TCP proxy for each member. Other clients do not use it, so
// that a test can separate one client from one member.
type Network struct{ links []*link }

// Network returns a new network. Stop it with [Network.Close].
func (c *Cluster) Network() (*Network, error) {
	n := &Network{}
	for _, m := range c.members {
		l, err := newLink(m.address)
		if err != nil {
			n.Close()
			return nil, err
		}
		n.links = append(n.links, l)
	}
	return n, nil
}

// Endpoints returns the URLs of the members on this network.
func (n *Network) Endpoints() []string {
	var all []string
	for _, l := range n.links {
		all = append(all, "https://"+l.listener.Addr().String())
	}
	return all
}

// Cut closes the connections to members and refuses new ones, until Heal. Without members, it cuts all.
func (n *Network) Cut(members ...int) { n.set(condition{cut: true}, members) }

// Drop stops to forward to and from members, as if packets were lost, until Heal. Connections stay open. Without
// members, it drops for all.
func (n *Network) Drop(members ...int) { n.set(condition{drop: true}, members) }

// Delay delays what is sent to and from members, until Heal. Without members, it delays for all.
func (n *Network) Delay(d time.Duration, members ...int) { n.set(condition{delay: d}, members) }

// Heal ends Cut, Drop and Delay for members; without members for all.
func (n *Network) Heal(members ...int) { n.set(condition{}, members) }

func (n *Network) set(to condition, members []int) {
	if len(members) == 0 {
		for i := range n.links {
			members = append(members, i)
		}
	}
	for _, i := range members {
		n.links[i].set(to)
	}
}

// Close closes all connections and listeners.
func (n *Network) Close() {
	for _, l := range n.links {
		l.close()
	}
}

// A condition is the state of a link. The zero condition forwards everything at once.
type condition struct {
	cut, drop bool
	delay     time.Duration
}

// A link forwards TCP connections to one member.
type link struct {
	target   string
	listener net.Listener

	mu      sync.Mutex
	changed *sync.Cond
	now     condition
	open    map[net.Conn]bool // of both sides
	closed  bool
	running sync.WaitGroup
}

func newLink(target string) (*link, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &link{target: target, listener: listener, open: map[net.Conn]bool{}}
	l.changed = sync.NewCond(&l.mu)
	l.running.Go(l.accept)
	return l, nil
}

func (l *link) accept() {
	for {
		client, err := l.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			l.running.Go(func() { l.serve(client) })
		}
	}
}

func (l *link) serve(client net.Conn) {
	defer client.Close()
	if !l.add(client) {
		return
	}
	defer l.remove(client)
	member, err := net.Dial("tcp", l.target)
	if err != nil {
		return
	}
	defer member.Close()
	if !l.add(member) {
		return
	}
	defer l.remove(member)
	var pumps sync.WaitGroup
	for from, to := range map[net.Conn]net.Conn{client: member, member: client} {
		pumps.Go(func() {
			l.pump(from, to)
			// The end of one direction ends the other.
			_ = from.Close()
			_ = to.Close()
			l.changed.Broadcast()
		})
	}
	pumps.Wait()
}

func (l *link) pump(from io.Reader, to net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if !l.pass(to) {
				return
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// pass waits as long as the condition of the link says. It returns false if the connection was cut.
func (l *link) pass(to net.Conn) bool {
	l.mu.Lock()
	for l.now.drop && l.open[to] {
		l.changed.Wait()
	}
	delay, open := l.now.delay, l.open[to]
	l.mu.Unlock()
	if delay > 0 {
		time.Sleep(delay)
	}
	return open
}

// add registers a connection. It returns false if the link is cut.
func (l *link) add(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.now.cut {
		return false
	}
	l.open[c] = true
	return true
}

func (l *link) remove(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, c)
}

func (l *link) set(to condition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = to
	if to.cut {
		l.closeAll()
	}
	l.changed.Broadcast()
}

func (l *link) closeAll() {
	for c := range l.open {
		_ = c.Close()
		delete(l.open, c)
	}
}

func (l *link) close() {
	_ = l.listener.Close()
	l.mu.Lock()
	l.closed = true
	l.closeAll()
	l.changed.Broadcast()
	l.mu.Unlock()
	l.running.Wait()
}
