package test

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/test/cluster"
)

// A passage passes connections on to an address, until they are silenced: nothing comes through
// then, and nobody is told, as when a load balancer's back end loses its power.
type passage struct {
	net.Listener
	to string

	mu       sync.Mutex
	silenced chan struct{}
}

func newPassage(t *testing.T, to string) *passage {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &passage{Listener: listener, to: to, silenced: make(chan struct{})}
	ctx, end := context.WithCancel(context.Background())
	var passing sync.WaitGroup
	passing.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			passing.Go(func() { p.pass(ctx, c) })
		}
	})
	t.Cleanup(func() { _ = listener.Close(); end(); passing.Wait() })
	return p
}

func (p *passage) pass(ctx context.Context, c net.Conn) {
	defer func() { _ = c.Close() }()
	p.mu.Lock()
	silenced := p.silenced
	p.mu.Unlock()
	s, err := net.Dial("tcp", p.to)
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
				select {
				case <-silenced:
					<-ctx.Done() // neither passed on nor closed
					return
				default:
				}
				if _, werr := way[1].Write(b[:n]); err != nil || werr != nil {
					_, _ = c.Close(), s.Close()
					return
				}
			}
		})
	}
	ways.Wait()
}

// silence ends all that passes, and lets new connections pass.
func (p *passage) silence() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.silenced)
	p.silenced = make(chan struct{})
}

// All connections to the API server fall silent, and new ones are good.
func TestSilentConnections(t *testing.T) {
	t.Parallel()
	s := prepare(t, cluster.Options{})
	p := newPassage(t, s.Address)
	kubeconfig, err := os.ReadFile(s.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	through := filepath.Join(s.dir, "through.conf")
	if err := os.WriteFile(through, bytes.ReplaceAll(kubeconfig, []byte(s.Address), []byte(p.Addr().String())), 0o600); err != nil {
		t.Fatal(err)
	}
	s.start(t, "--kubeconfig="+through)
	s.leads(t)
	l := keepLedger(t, s.Cluster)
	machine := machine(t, s.Cluster)
	if err := request(t.Context(), machine, "before", "kubernetes.io/kube-apiserver-client-kubelet", "worker-1"); err != nil {
		t.Fatal(err)
	}
	l.issued(t, []string{"before"})

	p.silence()
	began := time.Now()
	if err := request(t.Context(), machine, "after", "kubernetes.io/kube-apiserver-client-kubelet", "worker-2"); err != nil {
		t.Fatal(err)
	}
	var m minted
	if _, err := m.ask(t.Context(), s.program, s.bearer(t)); err != nil {
		t.Error(err)
	}
	took := time.Since(began)
	last := l.issued(t, []string{"after"}).Sub(began)
	t.Logf("a join command after %s, a certificate after %s; answers: %v", took.Round(time.Millisecond), last.Round(time.Millisecond), m.statuses)
	if max(took, last) > 35*time.Second {
		t.Error("that is too late: want the connections given up after 15 s")
	}
	m.check(t, s.Client())
	if strings.Count(s.Log(), "leading: controllers start") > 2 {
		t.Error("it led more than twice")
	}
}
