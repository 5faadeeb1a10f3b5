package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"
)

// A slowServer forwards TCP connections to the API server. It delays all data from the API server, keeps the order, and
// does not limit the bandwidth.
type slowServer struct {
	listener net.Listener
	to       string
	delay    atomic.Int64 // nanoseconds
}

func newSlowServer(to string) (*slowServer, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &slowServer{listener: listener, to: to}
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go s.pass(c)
		}
	}()
	return s, nil
}

func (s *slowServer) address() string { return s.listener.Addr().String() }

// close stops accepting connections. An open connection ends when its client or the API server closes it.
func (s *slowServer) close() { _ = s.listener.Close() }

func (s *slowServer) pass(client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp", s.to)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	go func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	}()
	type chunk struct {
		data []byte
		due  time.Time
	}
	held := make(chan chunk, 4096)
	go func() {
		defer close(held)
		b := make([]byte, 16<<10)
		for {
			n, err := server.Read(b)
			held <- chunk{bytes.Clone(b[:n]), time.Now().Add(time.Duration(s.delay.Load()))}
			if err != nil {
				return
			}
		}
	}()
	for c := range held {
		time.Sleep(time.Until(c.due))
		if _, err := client.Write(c.data); err != nil {
			_ = server.Close() // ends the goroutine that reads
		}
	}
}

// slowLoads are the bursts with an API server whose responses arrive late.
func slowLoads(n int) (loads []csrLoad) {
	for _, delay := range []time.Duration{20 * time.Millisecond, 50 * time.Millisecond, 200 * time.Millisecond} {
		loads = append(loads, csrLoad{name: fmt.Sprintf("a token each, responses take %d ms", delay.Milliseconds()), requests: n, tokens: n, delay: delay})
	}
	return loads
}

// slowBursts measures the slow loads with one contender, which it starts as a new process. The requests of the load itself
// are not delayed.
func (b *bench) slowBursts(ctx context.Context, who contender) (err error) {
	if err := b.clear(ctx); err != nil {
		return err
	}
	server, err := newSlowServer(b.cluster.Address)
	if err != nil {
		return err
	}
	defer server.close()
	p, _, err := b.launchSigning(ctx, who, server.address())
	if err != nil {
		return err
	}
	defer p.end(&err)
	for _, load := range slowLoads(b.slow) {
		server.delay.Store(int64(load.delay))
		if err := b.csrBurst(ctx, who, p, load); err != nil {
			return fmt.Errorf("%s: %w", load.name, err)
		}
	}
	return nil
}
