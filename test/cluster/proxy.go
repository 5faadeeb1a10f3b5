package cluster

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A Proxy forwards TCP connections to one address, until [Proxy.Silence], [Proxy.Stall] or [Proxy.Cut].
type Proxy struct {
	listener net.Listener
	to       string
	dialer   net.Dialer
	whole    context.Context // ends with Close
	end      context.CancelFunc
	passing  sync.WaitGroup
	delay    atomic.Int64 // nanoseconds

	mu       sync.Mutex
	now      context.Context // ends with Cut
	cut      context.CancelFunc
	silenced chan struct{} // closed to silence the open connections
	moving   chan struct{} // not closed while all connections stall
}

// NewProxy listens on a free port of 127.0.0.1. Its own outgoing connections come from the address from. If from is nil,
// they come from any address.
func NewProxy(to string, from net.IP) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	whole, end := context.WithCancel(context.Background())
	p := &Proxy{listener: listener, to: to, whole: whole, end: end, silenced: make(chan struct{}), moving: make(chan struct{})}
	p.connect()
	close(p.moving)
	if from != nil {
		p.dialer.LocalAddr = &net.TCPAddr{IP: from}
	}
	p.passing.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			p.passing.Go(func() { p.pass(c) })
		}
	})
	return p, nil
}

// Address returns the HOST:PORT of the proxy.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// Close closes all connections.
func (p *Proxy) Close() {
	_ = p.listener.Close()
	p.end()
	p.passing.Wait()
}

func (p *Proxy) pass(c net.Conn) {
	defer func() { _ = c.Close() }()
	p.mu.Lock()
	silenced, ctx := p.silenced, p.now
	p.mu.Unlock()
	s, err := p.dialer.DialContext(ctx, "tcp", p.to)
	if err != nil {
		return
	}
	defer func() { _ = s.Close() }()
	defer context.AfterFunc(ctx, func() { _, _ = c.Close(), s.Close() })()
	var ways sync.WaitGroup
	for _, way := range [][2]net.Conn{{c, s}, {s, c}} {
		ways.Go(func() {
			b := make([]byte, 16<<10)
			for {
				n, err := way[0].Read(b)
				p.mu.Lock()
				moving := p.moving
				p.mu.Unlock()
				select {
				case <-moving:
				case <-ctx.Done():
					return
				}
				select {
				case <-silenced:
					<-ctx.Done() // keep the connection open, but forward nothing
					return
				default:
				}
				time.Sleep(time.Duration(p.delay.Load()))
				if _, werr := way[1].Write(b[:n]); err != nil || werr != nil {
					_, _ = c.Close(), s.Close()
					return
				}
			}
		})
	}
	ways.Wait()
}

// Silence silences all open connections: the proxy keeps them open but forwards nothing, like a load balancer whose back
// end has lost power. New connections work.
func (p *Proxy) Silence() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.silenced)
	p.silenced = make(chan struct{})
}

// Stall delays all data of open and new connections until resume is called. Then the proxy delivers the data, as TCP does
// after a network partition.
func (p *Proxy) Stall() (resume func()) {
	moving := make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moving = moving
	return func() { close(moving) }
}

// Cut closes all connections and refuses new ones, until resume is called.
func (p *Proxy) Cut() (resume func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut()
	return p.connect
}

func (p *Proxy) connect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now, p.cut = context.WithCancel(p.whole)
}

// Delay delays data in both directions, until resume is called.
func (p *Proxy) Delay(by time.Duration) (resume func()) {
	p.delay.Store(int64(by))
	return func() { p.delay.Store(0) }
}
