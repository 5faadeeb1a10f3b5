package test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/test/cluster"
	certificates "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
)

// rush is many who ask for tokens and certificates at once, each until he has it.
type rush struct {
	tokens, requests atomic.Int32 // had so far
	names            []string     // of all requests
	halves           [2]int32     // of tokens and requests
	half             chan struct{}
	asking           sync.WaitGroup
}

// startRush begins, and goes on to the second half when middle is called.
func startRush(ctx context.Context, t *testing.T, prefix string, tokenCount, requestCount int, askToken func(context.Context) error, machine kubernetes.Interface) *rush {
	r := &rush{half: make(chan struct{}), halves: [2]int32{int32(tokenCount / 2), int32(requestCount / 2)}}
	numbers := func(n int) <-chan int {
		c := make(chan int)
		go func() {
			defer close(c)
			for i := range n {
				if i == n/2 {
					select {
					case <-r.half:
					case <-ctx.Done():
						return
					}
				}
				c <- i
			}
		}()
		return c
	}
	tokenNumbers, requestNumbers := numbers(tokenCount), numbers(requestCount)
	for i := range requestCount {
		r.names = append(r.names, fmt.Sprintf("%s-%d", prefix, i))
	}
	for range 8 {
		r.asking.Go(func() {
			for i := range tokenNumbers {
				if err := askToken(ctx); err != nil {
					t.Errorf("token %d: %v", i, err)
					continue
				}
				r.tokens.Add(1)
			}
		})
		r.asking.Go(func() {
			for i := range requestNumbers {
				if err := request(ctx, machine, r.names[i], certificates.KubeAPIServerClientKubeletSignerName, fmt.Sprintf("worker-%d", i)); err != nil {
					t.Errorf("request %d: %v", i, err)
					continue
				}
				r.requests.Add(1)
			}
		})
	}
	return r
}

// middle waits until the first half is had, and returns when the second has begun to be.
func (r *rush) middle(t *testing.T) {
	t.Helper()
	wait(t, "the middle", func() error {
		if tokens, requests := r.tokens.Load(), r.requests.Load(); tokens < r.halves[0] || requests < r.halves[1] {
			return fmt.Errorf("%d tokens and %d requests, want %d", tokens, requests, r.halves)
		}
		return nil
	})
	close(r.half)
	wait(t, "the second half", func() error {
		if r.tokens.Load() == r.halves[0] || r.requests.Load() == r.halves[1] {
			return fmt.Errorf("it has not begun")
		}
		return nil
	})
}

// cpu is the processor time that a process has taken so far.
func cpu(t *testing.T, pid int) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	// proc(5): utime and stime are fields 14 and 15, in hundredths; the name in field 2 may
	// have spaces.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	var ticks int
	for _, field := range fields[11:13] {
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// steps is how many steps all loops have taken.
func (p *program) steps(t *testing.T) (n int) {
	t.Helper()
	for line := range strings.Lines(p.metrics(t)) {
		if strings.HasPrefix(line, "kubejoin_loop_steps_total{") {
			value, err := strconv.Atoi(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]))
			if err != nil {
				t.Fatal(err)
			}
			n += value
		}
	}
	return n
}

func (p *program) metrics(t *testing.T) string {
	t.Helper()
	status, metrics, err := p.get(t.Context(), "/metrics", p.bearer(t))
	if err != nil || status != 200 {
		t.Fatalf("metrics: %d %v", status, err)
	}
	return metrics
}

// kube-apiserver is killed in the middle of everything and stays away for longer than a Lease
// lasts; then it all goes on by itself.
func TestAPIServerOutage(t *testing.T) {
	t.Parallel()
	audit := newAuditLog(t)
	s := newSite(t, cluster.Options{APIServerFlags: audit.flags()})
	l := keepLedger(t, s.Cluster)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	const n = 200
	var m minted
	bearer := s.bearer(t)
	r := startRush(ctx, t, "outage", n, n, func(ctx context.Context) error {
		_, err := m.ask(ctx, s.program, bearer)
		return err
	}, machine(t, s.Cluster))
	r.middle(t)
	s.StopAPIServer()
	stopped := time.Now()
	before := [2]int32{r.tokens.Load(), r.requests.Load()}
	if before[0] >= n || before[1] >= n {
		t.Fatalf("%d tokens and %d requests were made when kube-apiserver stopped: that was too late", before[0], before[1])
	}
	time.Sleep(2 * time.Second) // what was in flight fails
	const away = 15 * time.Second
	steps, spent, lines := s.steps(t), cpu(t, s.PID()), strings.Count(s.Log(), "\n")
	time.Sleep(away)
	steps, spent, lines = s.steps(t)-steps, cpu(t, s.PID())-spent, strings.Count(s.Log(), "\n")-lines
	t.Logf("before: %d tokens, %d requests; in %s without kube-apiserver: %d steps of loops, %d lines logged, %s of CPU", before[0], before[1], away, steps, lines, spent)
	if steps > 60 || lines > 400 || spent > 3*time.Second {
		t.Error("that is a busy loop")
	}
	if err := s.StartAPIServer(ctx); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	r.asking.Wait()
	asked := time.Now()
	last := l.issued(t, r.names)
	t.Logf("away for %s; all had asked %s after the return, and the last certificate was there after %s", back.Sub(stopped).Round(time.Millisecond), asked.Sub(back).Round(time.Millisecond), last.Sub(back).Round(time.Millisecond))
	if late := last.Sub(back); late > 30*time.Second {
		t.Errorf("the last certificate took %s after kube-apiserver was back", late)
	}
	m.check(t, s.Client())
	if len(m.known) != n {
		t.Errorf("%d tokens were handed out, want %d", len(m.known), n)
	}
	t.Logf("answers by status: %v; named as perhaps left: %d", m.statuses, len(m.named))
	audit.checkRequests(t)
	select {
	case <-s.Done():
		t.Errorf("kubejoin has ended: %v", s.Err())
	default:
	}
	if led := strings.Count(s.Log(), "leading: controllers start"); led != 2 {
		t.Errorf("led %d times, want once before and once after", led)
	}
	if got := metric(t, s.metrics(t), "kubejoin_leader"); got != 1 {
		t.Errorf("kubejoin_leader is %v", got)
	}
}
