package load

import (
	"bufio"
	"bytes"
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

	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
)

// plain builds kubejoin as shipped. The race detector would distort the memory and time that these tests measure.
var plain = sync.OnceValues(func() (string, error) {
	file := filepath.Join(filepath.Dir(harness.Kubejoin), "kubejoin-plain")
	output, err := exec.Command("go", "build", "-o", file, "github.com/kubejoin/kubejoin/cmd/kubejoin").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building kubejoin: %w\n%s", err, output)
	}
	return file, nil
})

// serveWithTokens starts a standalone kubejoin with n tokens.
func serveWithTokens(t *testing.T, n int, flags ...string) *harness.Program {
	t.Helper()
	file, err := plain()
	if err != nil {
		t.Fatal(err)
	}
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
	if err := os.Mkdir(dataDir, 0o700); err != nil {
		t.Fatal(err)
	}
	store, err := boltstore.Open(filepath.Join(dataDir, "kubejoin.db"))
	if err != nil {
		t.Fatal(err)
	}
	var writers sync.WaitGroup
	for range 200 { // concurrent writes share fsyncs
		writers.Go(func() {
			for range n / 200 {
				// With 12,000 random IDs, a collision happens in one of thirty runs.
				if _, err := store.Create(t.Context(), tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())); err != nil && !errors.Is(err, tokens.ErrExists) {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
}

// resident returns the resident memory of the program in MiB.
func resident(t *testing.T, p *harness.Program) float64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if value, found := strings.CutPrefix(line, "VmRSS:"); found {
			kib, err := strconv.Atoi(strings.Fields(value)[0])
			if err != nil {
				t.Fatal(err)
			}
			return float64(kib) / 1024
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

// descriptors returns the number of open files and connections of the program.
func descriptors(t *testing.T, p *harness.Program) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// waitDescriptors waits until the program has no more descriptors open than before.
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
	// Other tests verify the certificate. Here, 10,000 verifications would be most of the work.
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
func mint(ctx context.Context, p *harness.Program, bearer string) (time.Duration, error) {
	start := time.Now()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+p.Endpoint+"/v1/token/print-join-command", nil)
	if err != nil {
		return 0, err
	}
	r.Header.Set("Authorization", "Bearer "+bearer)
	response, err := p.HTTP.Do(r)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK || !bytes.HasPrefix(body, []byte("kubeadm join ")) {
		return 0, fmt.Errorf("%s %v", response.Status, err)
	}
	return time.Since(start), nil
}

// TestServesBesideIdleConnections holds ten thousand idle connections. It catches other clients that get no response,
// more than 100 KiB for each connection, and leaked descriptors.
func TestServesBesideIdleConnections(t *testing.T) {
	const connections = 10_000
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
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
	took, err := mint(t.Context(), p, bearer)
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

// TestDiscardsUnauthenticatedBodies lets a thousand clients without credentials send 1 MiB each. It catches a kubejoin
// that buffers these bodies.
func TestDiscardsUnauthenticatedBodies(t *testing.T) {
	const clients, size = 1000, 1 << 20
	p := serveWithTokens(t, 0)
	before, memory := descriptors(t, p), resident(t, p)
	most := memory
	payload := make([]byte, 64<<10)
	start := make(chan struct{})
	var all sync.WaitGroup
	var answered atomic.Int64
	for range clients {
		c, err := dial(t.Context(), p, 2)
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			defer func() { _ = c.NetConn().Close() }()
			<-start
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			_, err := fmt.Fprintf(c, "POST /v1/token/print-join-command HTTP/1.1\r\nHost: kubejoin\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", size)
			for sent := 0; err == nil && sent < size; sent += len(payload) {
				_, err = c.Write(payload) // kubejoin closes the connection at some point
			}
			answer := make([]byte, 12)
			if _, err := io.ReadFull(c, answer); err == nil {
				if string(answer) != "HTTP/1.1 401" {
					t.Errorf("got response %q, want 401", answer)
				}
				answered.Add(1)
			}
		})
	}
	connected := resident(t, p)
	close(start)
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for running := true; running; {
		select {
		case <-done:
			running = false
		case <-tick.C:
			most = max(most, resident(t, p))
		}
	}
	waitDescriptors(t, p, before)
	t.Logf("%d clients sent 1 MiB each and %d read a 401: %.0f MiB resident at most, %.0f with all connected, %.0f before", clients, answered.Load(), most, connected, memory)
	if most-memory > 200 {
		t.Errorf("got %.0f MiB more than before, want at most 200", most-memory)
	}
}

// TestDiscoveryFloodDoesNotBlockJoinCommands requests cluster-info as fast as possible. It catches join commands that
// fail meanwhile: they have separate slots, even if clients have no rate limit.
func TestDiscoveryFloodDoesNotBlockJoinCommands(t *testing.T) {
	for _, n := range []int{0, 12_000} {
		t.Run(fmt.Sprintf("tokens=%d", n), func(t *testing.T) { floodOfDiscovery(t, n, 0, "--client-qps=0") })
	}
	// A rate limit applies to each address. The flood does not use up the rate of other addresses.
	t.Run("rate", func(t *testing.T) { floodOfDiscovery(t, 0, 100, "--client-qps=100", "--client-burst=500") })
}

func floodOfDiscovery(t *testing.T, n, rate int, flags ...string) {
	const flooders, joins = 64, 200
	p := serveWithTokens(t, n, flags...)
	bearer := p.Bearer(t)
	before := descriptors(t, p)
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()
	var answered, refused, tooMany, failed atomic.Int64
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
				case http.StatusTooManyRequests:
					tooMany.Add(1)
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
				took, err := mint(ctx, p, bearer)
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
	for rate > 0 && tooMany.Load() == 0 && ctx.Err() == nil { // until the flood exceeds its burst
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	flood.Wait()
	if n := failed.Load(); n > 0 {
		t.Errorf("got %d failed requests of the flood, want none", n)
	}
	// A client has two buckets. Concurrent requests may take the last token of different buckets, so allow 5 % more.
	if most := 1.05 * (500 + float64(rate)*time.Since(began).Seconds()); rate > 0 && (tooMany.Load() == 0 || float64(answered.Load()) > most) || rate == 0 && tooMany.Load() > 0 {
		t.Errorf("got %d responses 200 and %d responses 429 in the flood with a rate of %d, want at most %.0f of the first", answered.Load(), tooMany.Load(), rate, most)
	}
	if len(times) != joins {
		t.Fatalf("got %d join commands, want %d", len(times), joins)
	}
	slices.Sort(times)
	t.Logf("%d join commands beside %.0f discovery responses a second (%d refused, %d too many): p50 %s, p99 %s; %.0f MiB resident", joins,
		float64(answered.Load())/lasted.Seconds(), refused.Load(), tooMany.Load(), times[joins/2].Round(time.Millisecond/10), times[joins*99/100].Round(time.Millisecond/10), resident(t, p))
	waitDescriptors(t, p, before)
}

// TestClosesAbandonedConnections catches descriptors that leak when a client resets a connection or never completes the
// TLS handshake.
func TestClosesAbandonedConnections(t *testing.T) {
	p := serveWithTokens(t, 0)
	before := descriptors(t, p)
	for i := range 500 {
		conn, err := net.Dial("tcp", p.Endpoint)
		if err != nil {
			t.Fatal(err)
		}
		switch i % 3 {
		case 0: // a reset
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		case 1: // half a handshake, then nothing
			_, _ = conn.Write([]byte{22, 3, 1, 2, 0, 1})
			defer func() { _ = conn.Close() }()
		case 2: // half closed, then nothing
			_ = conn.(*net.TCPConn).CloseWrite()
			defer func() { _ = conn.Close() }()
		}
	}
	waitDescriptors(t, p, before)
	if _, err := mint(t.Context(), p, p.Bearer(t)); err != nil {
		t.Error(err)
	}
}

// TestConnectionFloodDoesNotBlockOtherClients opens and closes connections from one address as fast as possible. It
// catches TLS handshakes beyond the rate, other clients that get no response, and leaked descriptors.
func TestConnectionFloodDoesNotBlockOtherClients(t *testing.T) {
	const joins = 100
	p := serveWithTokens(t, 0, "--client-qps=20", "--client-burst=200")
	bearer := p.Bearer(t)
	before, memory := descriptors(t, p), resident(t, p)
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()
	var shaken, refused atomic.Int64
	var flood sync.WaitGroup
	began := time.Now()
	for range 32 {
		flood.Go(func() {
			d := tls.Dialer{
				NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}},
				Config:    &tls.Config{InsecureSkipVerify: true}, // a flood does not verify
			}
			for ctx.Err() == nil {
				c, err := d.DialContext(ctx, "tcp", p.Endpoint)
				if err != nil {
					refused.Add(1)
					continue
				}
				shaken.Add(1)
				_ = c.(*tls.Conn).NetConn().Close()
			}
		})
	}
	for range joins {
		if _, err := mint(ctx, p, bearer); err != nil {
			t.Fatalf("join command: %v", err)
		}
	}
	for refused.Load() == 0 { // until the flood exceeds its burst
		if status, _, err := p.Get(ctx, harness.ClusterInfoPath, ""); err != nil || status != 200 && status != 429 {
			t.Fatalf("discovery: %d %v", status, err)
		}
	}
	stop()
	flood.Wait()
	lasted := time.Since(began)
	if most := 200 + 20*lasted.Seconds() + 10; float64(shaken.Load()) > most || refused.Load() == 0 {
		t.Errorf("got %d handshakes in %s and %d refused connections, want at most %.0f handshakes and some refused", shaken.Load(), lasted, refused.Load(), most)
	}
	waitDescriptors(t, p, before)
	t.Logf("%d join commands beside %d handshakes and %d refused connections in %s; %.0f MiB resident, %.0f before", joins, shaken.Load(), refused.Load(), lasted.Round(time.Millisecond), resident(t, p), memory)
}
