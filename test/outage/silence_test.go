package outage

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
	"github.com/kubejoin/kubejoin/test/harness"
)

// A proxy forwards connections until it silences them: it then forwards and closes nothing, like a load balancer whose
// back end lost power.
type proxy struct {
	net.Listener
	to string

	mu       sync.Mutex
	silenced chan struct{}
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{Listener: listener, to: to, silenced: make(chan struct{})}
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

func (p *proxy) pass(ctx context.Context, c net.Conn) {
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
					<-ctx.Done() // neither forward nor close
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

// silence silences all open connections. New connections work.
func (p *proxy) silence() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.silenced)
	p.silenced = make(chan struct{})
}

// TestReplacesSilentConnections silences all connections to the API server. It catches a kubejoin that waits for them
// instead of opening new ones.
func TestReplacesSilentConnections(t *testing.T) {
	harness.Parallel(t)
	s := harness.PrepareSite(t, cluster.Options{})
	p := newProxy(t, s.Address)
	kubeconfig, err := os.ReadFile(s.OwnKubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	through := filepath.Join(s.WorkDir, "through.conf")
	if err := os.WriteFile(through, bytes.ReplaceAll(kubeconfig, []byte(s.Address), []byte(p.Addr().String())), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Start(t, "--kubeconfig="+through)
	s.WaitLeader(t)
	l := harness.NewLedger(t, s.Cluster)
	machine := harness.AsMachine(t, s.Cluster)
	if err := harness.CreateRequest(t.Context(), machine, "before", "kubernetes.io/kube-apiserver-client-kubelet", "worker-1"); err != nil {
		t.Fatal(err)
	}
	l.WaitIssued(t, []string{"before"})

	p.silence()
	began := time.Now()
	if err := harness.CreateRequest(t.Context(), machine, "after", "kubernetes.io/kube-apiserver-client-kubelet", "worker-2"); err != nil {
		t.Fatal(err)
	}
	var m minted
	if _, err := m.ask(t.Context(), s.Program, s.Bearer(t)); err != nil {
		t.Error(err)
	}
	took := time.Since(began)
	last := l.WaitIssued(t, []string{"after"}).Sub(began)
	t.Logf("a join command after %s, a certificate after %s; responses: %v", took.Round(time.Millisecond), last.Round(time.Millisecond), m.statuses)
	if max(took, last) > 35*time.Second {
		t.Errorf("join command after %s, certificate after %s, want at most 35s: silent connections time out after 15 s", took, last)
	}
	m.check(t, s.Client())
	if strings.Count(s.Log(), "became leader, starting controllers") > 2 {
		t.Error("kubejoin became leader more than twice, want at most 2")
	}
}
