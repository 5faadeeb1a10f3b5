package test

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

	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
)

const infoPath = "/api/v1/namespaces/kube-public/configmaps/cluster-info"

// plain is kubejoin as it is shipped: what the race detector adds to memory and time would hide
// what these tests measure.
var plain = sync.OnceValues(func() (string, error) {
	file := filepath.Join(filepath.Dir(binary), "kubejoin-plain")
	output, err := exec.Command("go", "build", "-o", file, "github.com/kubejoin/kubejoin/cmd/kubejoin").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building kubejoin: %w\n%s", err, output)
	}
	return file, nil
})

// loaded starts it standalone, with so many tokens.
func loaded(t *testing.T, n int, flags ...string) *program {
	t.Helper()
	file, err := plain()
	if err != nil {
		t.Fatal(err)
	}
	dataDir := filepath.Join(t.TempDir(), "data")
	if n > 0 {
		fill(t, dataDir, n)
	}
	p := startBinary(t, file, t.TempDir(), filepath.Join(dataDir, "curlrc"), append(flags, "--data-dir="+dataDir, "-v=0")...)
	p.ready(t, filepath.Join(dataDir, "ca.crt"))
	return p
}

// fill stores tokens in a data folder that nobody uses yet.
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
	for range 200 { // who write at once share the fsyncs
		writers.Go(func() {
			for range n / 200 {
				// Of 12,000 random IDs two are the same once in thirty times.
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

// resident is the memory of the program in MiB.
func (p *program) resident(t *testing.T) float64 {
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

// descriptors is how many files and connections the program has open.
func (p *program) descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// backTo waits until the program has no more descriptors open than before.
func (p *program) backTo(t *testing.T, before int) {
	t.Helper()
	p.http.CloseIdleConnections()
	wait(t, "descriptors", func() error {
		if now := p.descriptors(t); now > before {
			return fmt.Errorf("%d are open, there were %d", now, before)
		}
		return nil
	})
}

// dial makes a TLS connection from 127.0.0.host and asks once over it.
func (p *program) dial(ctx context.Context, host byte) (*tls.Conn, error) {
	// The server's certificate is another test's matter, and 10,000 times its verification is
	// most of the work here.
	d := tls.Dialer{
		NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, host)}},
		Config:    &tls.Config{InsecureSkipVerify: true, CurvePreferences: []tls.CurveID{tls.X25519}},
	}
	conn, err := d.DialContext(ctx, "tcp", p.address)
	if err != nil {
		return nil, err
	}
	c := conn.(*tls.Conn)
	return c, probe(c)
}

// probe asks for /healthz and reads the answer.
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

// mint asks for a join command as an operator, and returns how long that took.
func (p *program) mint(ctx context.Context, bearer string) (time.Duration, error) {
	start := time.Now()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+p.address+"/v1/token/print-join-command", nil)
	if err != nil {
		return 0, err
	}
	r.Header.Set("Authorization", "Bearer "+bearer)
	response, err := p.http.Do(r)
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

// TestIdleConnections holds ten thousand: others are served, and nothing is left when they go.
func TestIdleConnections(t *testing.T) {
	const connections = 10_000
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	if need := uint64(connections*4/3 + 100); files.Cur < need { // Go has raised it as far as it may
		t.Fatalf("%d file descriptors are allowed, %d needed: raise the hard limit (ulimit -n)", files.Cur, need)
	}
	p := loaded(t, 0)
	bearer := p.bearer(t)
	before, memory := p.descriptors(t), p.resident(t)

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
				c, err := p.dial(t.Context(), byte(2+i%2)) // one address may have half of all
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
	held := p.resident(t)
	if now := p.descriptors(t); now < connections {
		t.Errorf("%d descriptors, want %d connections open", now, connections)
	}
	took, err := p.mint(t.Context(), bearer)
	if err != nil {
		t.Error(err)
	}
	if status, _, err := p.get(t.Context(), infoPath, ""); err != nil || status != 200 {
		t.Errorf("discovery: %d %v", status, err)
	}
	for _, c := range open[connections-10:] { // they are still good
		if err := probe(c); err != nil {
			t.Error(err)
		}
	}
	for i, c := range open {
		_ = c.NetConn().Close()
		open[i] = nil
	}
	p.backTo(t, before)
	t.Logf("%d idle connections in %.1f s: %.0f MiB resident, %.0f before, %.1f KiB each; a join command meanwhile took %s",
		connections, opened.Seconds(), held, memory, (held-memory)*1024/connections, took.Round(time.Millisecond))
	if held-memory > 1024 {
		t.Error("that is more than 100 KiB each")
	}
}

// TestUnauthenticatedBodies has a thousand strangers send 1 MiB each: nobody keeps it.
func TestUnauthenticatedBodies(t *testing.T) {
	const clients, size = 1000, 1 << 20
	p := loaded(t, 0)
	before, memory := p.descriptors(t), p.resident(t)
	most := memory
	payload := make([]byte, 64<<10)
	start := make(chan struct{})
	var all sync.WaitGroup
	var answered atomic.Int64
	for range clients {
		c, err := p.dial(t.Context(), 2)
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			defer func() { _ = c.NetConn().Close() }()
			<-start
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			_, err := fmt.Fprintf(c, "POST /v1/token/print-join-command HTTP/1.1\r\nHost: kubejoin\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", size)
			for sent := 0; err == nil && sent < size; sent += len(payload) {
				_, err = c.Write(payload) // cut off at some time
			}
			answer := make([]byte, 12)
			if _, err := io.ReadFull(c, answer); err == nil {
				if string(answer) != "HTTP/1.1 401" {
					t.Errorf("answer %q", answer)
				}
				answered.Add(1)
			}
		})
	}
	connected := p.resident(t)
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
			most = max(most, p.resident(t))
		}
	}
	p.backTo(t, before)
	t.Logf("%d clients sent 1 MiB each and %d read that they may not: %.0f MiB resident at most, %.0f with all connected, %.0f before", clients, answered.Load(), most, connected, memory)
	if most-memory > 200 {
		t.Errorf("%.0f MiB more than before, want 200 at most", most-memory)
	}
}

// TestFloodOfDiscovery asks for cluster-info as fast as it goes, for a few seconds: join
// commands are answered meanwhile. They have room of their own, also where clients have no rate.
func TestFloodOfDiscovery(t *testing.T) {
	for _, n := range []int{0, 12_000} {
		t.Run(fmt.Sprintf("tokens=%d", n), func(t *testing.T) { floodOfDiscovery(t, n, 0, "--client-qps=0") })
	}
	// From one address there is a rate, which those who come from another do not notice.
	t.Run("rate", func(t *testing.T) { floodOfDiscovery(t, 0, 100, "--client-qps=100", "--client-burst=500") })
}

func floodOfDiscovery(t *testing.T, n, rate int, flags ...string) {
	const flooders, joins = 64, 200
	p := loaded(t, n, flags...)
	bearer := p.bearer(t)
	before := p.descriptors(t)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	var answered, refused, tooMany, failed atomic.Int64
	var flood sync.WaitGroup
	began := time.Now()
	for range flooders {
		flood.Go(func() {
			client := &http.Client{Transport: &http.Transport{
				DialContext:     (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext,
				TLSClientConfig: &tls.Config{RootCAs: p.roots},
			}}
			defer client.CloseIdleConnections()
			for ctx.Err() == nil {
				r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+p.address+infoPath, nil)
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
				_, _ = io.Copy(io.Discard, response.Body) // cut off at the end of the flood
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
				took, err := p.mint(ctx, bearer)
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
		t.Errorf("%d requests of the flood failed on the way", n)
	}
	// A client has two buckets. Of two requests that come at the same time each may take the last one of another bucket.
	if most := 1.05 * (500 + float64(rate)*time.Since(began).Seconds()); rate > 0 && (tooMany.Load() == 0 || float64(answered.Load()) > most) || rate == 0 && tooMany.Load() > 0 {
		t.Errorf("%d of the flood are answered and %d are too many, with a rate of %d", answered.Load(), tooMany.Load(), rate)
	}
	if len(times) != joins {
		t.Fatalf("%d of %d join commands", len(times), joins)
	}
	slices.Sort(times)
	t.Logf("%d join commands beside %.0f answers of discovery a second (%d refused, %d too many): p50 %s, p99 %s; %.0f MiB resident", joins,
		float64(answered.Load())/lasted.Seconds(), refused.Load(), tooMany.Load(), times[joins/2].Round(time.Millisecond/10), times[joins*99/100].Round(time.Millisecond/10), p.resident(t))
	p.backTo(t, before)
}

// One that resets and one that never shakes hands leave nothing behind.
func TestAbandonedConnections(t *testing.T) {
	p := loaded(t, 0)
	before := p.descriptors(t)
	for i := range 500 {
		conn, err := net.Dial("tcp", p.address)
		if err != nil {
			t.Fatal(err)
		}
		switch i % 3 {
		case 0: // a reset
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		case 1: // half a handshake, and silence
			_, _ = conn.Write([]byte{22, 3, 1, 2, 0, 1})
			defer func() { _ = conn.Close() }()
		case 2: // half closed, and silence
			_ = conn.(*net.TCPConn).CloseWrite()
			defer func() { _ = conn.Close() }()
		}
	}
	p.backTo(t, before)
	if _, err := p.mint(t.Context(), p.bearer(t)); err != nil {
		t.Error(err)
	}
}

// TestFloodOfConnections opens and leaves connections from one address as fast as it goes: most are
// closed before TLS, those from elsewhere are answered, and nothing is left.
func TestFloodOfConnections(t *testing.T) {
	const joins = 100
	p := loaded(t, 0, "--client-qps=50", "--client-burst=200")
	bearer := p.bearer(t)
	before, memory := p.descriptors(t), p.resident(t)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	var shaken, refused atomic.Int64
	var flood sync.WaitGroup
	began := time.Now()
	for range 32 {
		flood.Go(func() {
			d := tls.Dialer{
				NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}},
				Config:    &tls.Config{InsecureSkipVerify: true}, // a flood does not look
			}
			for ctx.Err() == nil {
				c, err := d.DialContext(ctx, "tcp", p.address)
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
		if _, err := p.mint(ctx, bearer); err != nil {
			t.Fatalf("join command: %v", err)
		}
	}
	for refused.Load() == 0 { // until there have been more than are allowed at once
		if status, _, err := p.get(ctx, infoPath, ""); err != nil || status != 200 && status != 429 {
			t.Fatalf("discovery: %d %v", status, err)
		}
	}
	stop()
	flood.Wait()
	lasted := time.Since(began)
	if most := 200 + 50*lasted.Seconds() + 10; float64(shaken.Load()) > most || refused.Load() == 0 {
		t.Errorf("%d handshakes in %s and %d connections refused, want %.0f handshakes at most", shaken.Load(), lasted, refused.Load(), most)
	}
	p.backTo(t, before)
	t.Logf("%d join commands beside %d handshakes and %d refused connections in %s; %.0f MiB resident, %.0f before", joins, shaken.Load(), refused.Load(), lasted.Round(time.Millisecond), p.resident(t), memory)
}
