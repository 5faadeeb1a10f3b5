package outage

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	certificates "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
)

// rush is a set of concurrent clients. Each requests a token or a certificate until it succeeds.
type rush struct {
	tokens, requests atomic.Int32 // created so far
	names            []string     // of all requests
	halves           [2]int32     // half of the number of tokens, and of requests
	half, rest       chan struct{}
	began            time.Time
	usual            time.Duration // how long the first half took
	asking           sync.WaitGroup
}

// startRush creates the first half. It begins the second half when the test calls middle, and completes it only after the
// test calls finish. So everything that the test does between these calls happens in the middle of the rush.
func startRush(ctx context.Context, t *testing.T, prefix string, tokenCount, requestCount int, askToken func(context.Context) error, machine kubernetes.Interface) *rush {
	r := &rush{
		half: make(chan struct{}), rest: make(chan struct{}), halves: [2]int32{int32(tokenCount / 2), int32(requestCount / 2)},
		began: time.Now(),
	}
	open := make(chan struct{})
	close(open)
	numbers := func(n int) <-chan int {
		c := make(chan int)
		go func() {
			defer close(c)
			for i := range n {
				gate := open
				switch i {
				case n / 2:
					gate = r.half
				case n - n/8:
					gate = r.rest
				}
				select {
				case <-gate:
				case <-ctx.Done():
					return
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
				if err := harness.CreateRequest(ctx, machine, r.names[i], certificates.KubeAPIServerClientKubeletSignerName, fmt.Sprintf("worker-%d", i)); err != nil {
					t.Errorf("request %d: %v", i, err)
					continue
				}
				r.requests.Add(1)
			}
		})
	}
	return r
}

// middle waits until the first half exists, and returns once the second half has begun.
func (r *rush) middle(t *testing.T) {
	t.Helper()
	harness.Wait(t, "the first half", func() error {
		if tokens, requests := r.tokens.Load(), r.requests.Load(); tokens < r.halves[0] || requests < r.halves[1] {
			return fmt.Errorf("got %d tokens and %d requests, want %d", tokens, requests, r.halves)
		}
		return nil
	})
	r.usual = time.Since(r.began)
	close(r.half)
	harness.Wait(t, "the second half", func() error {
		if r.tokens.Load() == r.halves[0] || r.requests.Load() == r.halves[1] {
			return fmt.Errorf("not begun")
		}
		return nil
	})
}

// finish lets the rush complete the second half.
func (r *rush) finish() { close(r.rest) }

// cpu returns the CPU time that kubejoin has used.
func cpu(t *testing.T, p *harness.Program) time.Duration {
	t.Helper()
	return must.Value(p.CPU())(t)
}

// loopSteps returns the total number of steps of all loops.
func loopSteps(t *testing.T, p *harness.Program) (n int) {
	t.Helper()
	for line := range strings.Lines(p.Metrics(t)) {
		if strings.HasPrefix(line, "kubejoin_loop_steps_total{") {
			value := must.Value(strconv.Atoi(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):])))(t)
			n += value
		}
	}
	return n
}

// TestRecoversFromAPIServerOutage kills kube-apiserver for longer than a Lease lasts. It catches a busy loop meanwhile,
// and requests that do not finish after it is back.
func TestRecoversFromAPIServerOutage(t *testing.T) {
	harness.Parallel(t)
	audit := harness.NewAuditLog(t, writesOfKubejoin)
	s := harness.NewSite(t, cluster.Options{APIServerFlags: audit.Flags()})
	l := harness.NewLedger(t, s.Cluster)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	const n = 200
	var m minted
	bearer := s.Bearer(t)
	r := startRush(ctx, t, "outage", n, n, func(ctx context.Context) error {
		_, err := m.ask(ctx, s.Program, bearer)
		return err
	}, harness.AsMachine(t, s.Cluster))
	r.middle(t)
	s.StopAPIServer()
	r.finish()
	stopped := time.Now()
	before := [2]int32{r.tokens.Load(), r.requests.Load()}
	time.Sleep(2 * time.Second) // wait until requests in flight have failed
	const down = 15 * time.Second
	steps, spent, lines := loopSteps(t, s.Program), cpu(t, s.Program), strings.Count(s.Log(), "\n")
	time.Sleep(down)
	steps, spent, lines = loopSteps(t, s.Program)-steps, cpu(t, s.Program)-spent, strings.Count(s.Log(), "\n")-lines
	t.Logf("before: %d tokens, %d requests; in %s without kube-apiserver: %d steps of loops, %d lines logged, %s of CPU", before[0], before[1], down, steps, lines, spent)
	if steps > 60 || lines > 400 || spent > 3*time.Second {
		t.Errorf("busy loop: got %d steps, %d lines, %s of CPU, want at most 60, 400 and 3s", steps, lines, spent)
	}
	must.OK(t, s.StartAPIServer(ctx))
	back := time.Now()
	r.asking.Wait()
	asked := time.Now()
	last := l.WaitIssued(t, r.names)
	t.Logf("down for %s; all requests created %s after the return, last certificate issued after %s", back.Sub(stopped).Round(time.Millisecond), asked.Sub(back).Round(time.Millisecond), last.Sub(back).Round(time.Millisecond))
	// 30 s are enough on an idle machine. On a busy machine, the first half already took longer.
	if late, most := last.Sub(back), 30*time.Second+5*r.usual; late > most {
		t.Errorf("last certificate issued %s after kube-apiserver was back, want at most %s", late, most)
	}
	m.check(t, s.Client())
	if len(m.known) != n {
		t.Errorf("got %d tokens in responses, want %d", len(m.known), n)
	}
	t.Logf("responses by status: %v; tokens that problems named as possibly left: %d", m.statuses, len(m.named))
	checkRequests(t, audit)
	select {
	case <-s.Done():
		t.Errorf("kubejoin exited: %v, want it to run", s.Err())
	default:
	}
	if led := strings.Count(s.Log(), "became leader, starting controllers"); led != 2 {
		t.Errorf("kubejoin became leader %d times, want 2: before and after", led)
	}
	if got := harness.Metric(t, s.Metrics(t), "kubejoin_leader"); got != 1 {
		t.Errorf("got kubejoin_leader %v, want 1", got)
	}
}
