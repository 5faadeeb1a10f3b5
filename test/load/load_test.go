package load

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
)

// plain builds kubejoin as in a release. The race detector would distort the memory and time that these tests measure.
var plain = sync.OnceValues(func() (string, error) {
	file := filepath.Join(filepath.Dir(harness.Kubejoin()), "kubejoin-plain")
	output, err := exec.Command("go", "build", "-o", file, "github.com/kubejoin/kubejoin/cmd/kubejoin").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building kubejoin: %w\n%s", err, output)
	}
	return file, nil
})

// serveWithTokens starts a standalone kubejoin with n tokens.
func serveWithTokens(t *testing.T, n int, flags ...string) *harness.Program {
	t.Helper()
	file := must.Value(plain())(t)
	dataDir := filepath.Join(t.TempDir(), "data")
	if n > 0 {
		fill(t, dataDir, n)
	}
	p := harness.StartBinary(t, file, t.TempDir(), filepath.Join(dataDir, "curlrc"), append(flags, "--data-dir="+dataDir, "-v=0")...)
	p.WaitReady(t, filepath.Join(dataDir, "ca.crt"))
	return p
}

// fill stores n tokens in a new data folder.
func fill(t *testing.T, dataDir string, n int) {
	t.Helper()
	must.OK(t, os.Mkdir(dataDir, 0o700))
	store := must.Value(boltstore.Open(filepath.Join(dataDir, "kubejoin.db")))(t)
	var writers sync.WaitGroup
	for range 200 { // concurrent writes share fsyncs
		writers.Go(func() {
			for range n / 200 {
				// With 12,000 random IDs, two are equal in one of thirty runs.
				if _, err := store.Create(t.Context(), tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())); err != nil && !errors.Is(err, tokens.ErrExists) {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	must.OK(t, store.Close())
}

// resident returns the resident memory of the program in MiB.
func resident(t *testing.T, p *harness.Program) float64 {
	t.Helper()
	status := must.Value(os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID())))(t)
	for line := range strings.Lines(string(status)) {
		if value, found := strings.CutPrefix(line, "VmRSS:"); found {
			kib := must.Value(strconv.Atoi(strings.Fields(value)[0]))(t)
			return float64(kib) / 1024
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

// descriptors returns the number of open files and connections of the program.
func descriptors(t *testing.T, p *harness.Program) int {
	t.Helper()
	entries := must.Value(os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID())))(t)
	return len(entries)
}

// waitDescriptors waits until the number of open descriptors of the program is at most before.
func waitDescriptors(t *testing.T, p *harness.Program, before int) {
	t.Helper()
	p.HTTP.CloseIdleConnections()
	harness.Wait(t, "descriptors", func() error {
		if now := descriptors(t, p); now > before {
			return fmt.Errorf("got %d open, want at most %d", now, before)
		}
		return nil
	})
}

// dial opens a TLS connection from 127.0.0.host and sends one request over it.
func dial(ctx context.Context, p *harness.Program, host byte) (*tls.Conn, error) {
	// Other tests verify the certificate. Here, 10,000 verifications would take most of the time.
	d := tls.Dialer{
		NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, host)}},
		Config:    &tls.Config{InsecureSkipVerify: true, CurvePreferences: []tls.CurveID{tls.X25519}},
	}
	conn, err := d.DialContext(ctx, "tcp", p.Endpoint)
	if err != nil {
		return nil, err
	}
	c := conn.(*tls.Conn)
	return c, probe(c)
}

// probe requests /healthz and reads the response.
func probe(c *tls.Conn) error {
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: kubejoin\r\n\r\n"); err != nil {
		return err
	}
	response, err := http.ReadResponse(bufio.NewReaderSize(c, 1024), nil)
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, response.Body); err != nil || response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %v", response.Status, err)
	}
	return nil
}

// mint requests a join command as an operator, and returns the time this took.
func mint(ctx context.Context, p *harness.Program, bearer, query string) (time.Duration, error) {
	start := time.Now()
	status, body, err := p.Do(ctx, http.MethodPost, "/v1/token/print-join-command"+query, bearer)
	if err != nil || status != http.StatusOK || !strings.HasPrefix(body, "kubeadm join ") {
		return 0, fmt.Errorf("got %d %v, want a join command", status, err)
	}
	return time.Since(start), nil
}

// TestServesBesideIdleConnections holds ten thousand idle connections. It catches other clients that get no response, a
// connection that needs more than 100 KiB, and leaked descriptors.
func TestServesBesideIdleConnections(t *testing.T) {
	need.Long(t)
	const connections = 10_000
	var files syscall.Rlimit
	must.OK(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files))
	if need := uint64(connections*4/3 + 100); files.Cur < need { // Go raises the soft limit to the hard limit
		t.Fatalf("got a limit of %d file descriptors, want %d: raise the hard limit (ulimit -n)", files.Cur, need)
	}
	p := serveWithTokens(t, 0)
	bearer := p.Bearer(t)
	before, memory := descriptors(t, p), resident(t, p)

	start := time.Now()
	open := make([]*tls.Conn, connections)
	defer func() {
		for _, c := range open {
			if c != nil {
				_ = c.NetConn().Close()
			}
		}
	}()
	var next atomic.Int64
	var clients sync.WaitGroup
	for range 32 {
		clients.Go(func() {
			for i := next.Add(1) - 1; i < connections; i = next.Add(1) - 1 {
				c, err := dial(t.Context(), p, byte(2+i%2)) // each address may use half of the slots
				if open[i] = c; err != nil {
					t.Errorf("connection %d: %v", i, err)
					return
				}
			}
		})
	}
	clients.Wait()
	if t.Failed() {
		return
	}
	opened := time.Since(start)
	held := resident(t, p)
	if now := descriptors(t, p); now < connections {
		t.Errorf("got %d descriptors, want at least %d, one for each connection", now, connections)
	}
	took, err := mint(t.Context(), p, bearer, "")
	if err != nil {
		t.Error(err)
	}
	if status, _, err := p.Get(t.Context(), harness.ClusterInfoPath, ""); err != nil || status != 200 {
		t.Errorf("discovery: %d %v", status, err)
	}
	for _, c := range open[connections-10:] { // the connections still work
		if err := probe(c); err != nil {
			t.Error(err)
		}
	}
	for i, c := range open {
		_ = c.NetConn().Close()
		open[i] = nil
	}
	waitDescriptors(t, p, before)
	t.Logf("%d idle connections in %.1f s: %.0f MiB resident, %.0f before, %.1f KiB each; a join command meanwhile took %s",
		connections, opened.Seconds(), held, memory, (held-memory)*1024/connections, took.Round(time.Millisecond))
	if held-memory > 1024 {
		t.Errorf("got %.0f MiB more than before, want at most 1024: 100 KiB for each connection", held-memory)
	}
}

// TestDiscoveryFloodDoesNotBlockJoinCommands requests cluster-info as fast as possible. It catches requests for join
// commands that fail meanwhile: they must have separate slots, even if clients have no rate limit.
func TestDiscoveryFloodDoesNotBlockJoinCommands(t *testing.T) {
	need.Long(t)
	const n, flooders, joins = 12_000, 64, 200
	p := serveWithTokens(t, n, "--client-qps=0")
	bearer := p.Bearer(t)
	before := descriptors(t, p)
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()
	var answered, refused, failed atomic.Int64
	var flood sync.WaitGroup
	began := time.Now()
	for range flooders {
		flood.Go(func() {
			client := &http.Client{Transport: &http.Transport{
				DialContext:     (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext,
				TLSClientConfig: &tls.Config{RootCAs: p.Roots},
			}}
			defer client.CloseIdleConnections()
			for ctx.Err() == nil {
				r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+p.Endpoint+harness.ClusterInfoPath, nil)
				if err != nil {
					t.Error(err)
					return
				}
				response, err := client.Do(r)
				if err != nil {
					if ctx.Err() == nil {
						failed.Add(1)
						t.Logf("flood: %v", err)
					}
					continue
				}
				_, _ = io.Copy(io.Discard, response.Body) // fails when the flood stops
				_ = response.Body.Close()
				switch response.StatusCode {
				case http.StatusOK:
					answered.Add(1)
				case http.StatusServiceUnavailable:
					refused.Add(1)
				default:
					t.Errorf("discovery: %s", response.Status)
				}
			}
		})
	}
	var mu sync.Mutex
	var times []time.Duration
	var joiners sync.WaitGroup
	for range 4 {
		joiners.Go(func() {
			for range joins / 4 {
				took, err := mint(ctx, p, bearer, "")
				if err != nil {
					t.Errorf("join command: %v", err)
					return
				}
				mu.Lock()
				times = append(times, took)
				mu.Unlock()
			}
		})
	}
	joiners.Wait()
	lasted := time.Since(began)
	stop()
	flood.Wait()
	if n := failed.Load(); n > 0 {
		t.Errorf("got %d failed requests of the flood, want none", n)
	}
	if len(times) != joins {
		t.Fatalf("got %d join commands, want %d", len(times), joins)
	}
	slices.Sort(times)
	t.Logf("%d join commands beside %.0f discovery responses a second (%d refused): p50 %s, p99 %s; %.0f MiB resident", joins,
		float64(answered.Load())/lasted.Seconds(), refused.Load(), times[joins/2].Round(time.Millisecond/10), times[joins*99/100].Round(time.Millisecond/10), resident(t, p))
	waitDescriptors(t, p, before)
}
