package ha

import (
	"context"
	"sync"
	"testing"
	"time"
)

// maxOutage is the longest time without a successful write after the loss of a replica or an etcd member.
const maxOutage = 5 * time.Second

// A failover measures the longest time without a successful write. Each write has its own client, which retries at the next
// target until it succeeds.
type failover struct {
	targets int
	start   func() (write func(ctx context.Context, target int) error)
}

// usual returns how long a write takes now.
func (f *failover) usual(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	for i := range f.targets {
		f.retried(t, i)
	}
	return time.Since(began) / time.Duration(f.targets)
}

// retried retries a write until it succeeds, and returns how often it failed.
func (f *failover) retried(t *testing.T, target int) (failed int) {
	began, write := time.Now(), f.start()
	for ; ; failed++ {
		err := write(t.Context(), (target+failed)%f.targets)
		if err == nil {
			return failed
		}
		if time.Since(began) > time.Minute {
			t.Errorf("a client that retries saw an error for a minute: %v", err)
			return failed
		}
		time.Sleep(20 * time.Millisecond) // the pause of a client
	}
}

// clientsEach is how many clients begin before a failure. At least as many begin after it.
const clientsEach = 20

// during calls fail, which ends a replica or a member, while a client begins every 50 ms. It fails the test if no client
// that began after the failure succeeds in time.
func (f *failover) during(t *testing.T, what string, fail func()) {
	t.Helper()
	most := maxOutage + 5*f.usual(t) // allows for a busy machine
	var mu sync.Mutex
	var resumed, slowest time.Duration
	var failed time.Time
	retries := 0
	var running sync.WaitGroup
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	clients := 0
	for done := false; !done; clients++ {
		if clients == clientsEach {
			fail()
			failed = time.Now()
		}
		began, since, target := time.Now(), failed, clients
		running.Go(func() {
			n := f.retried(t, target)
			mu.Lock()
			defer mu.Unlock()
			if resumed == 0 && !since.IsZero() {
				resumed = time.Since(since)
			}
			slowest = max(slowest, time.Since(began))
			retries += n
		})
		<-tick.C
		mu.Lock()
		done = resumed > 0 && clients >= 2*clientsEach
		mu.Unlock()
	}
	running.Wait()
	t.Logf("%s: the first write succeeded after %s; of %d clients the slowest waited %s, and they retried %d times",
		what, resumed.Round(time.Millisecond), clients, slowest.Round(time.Millisecond), retries)
	if resumed > most {
		t.Errorf("%s: writes resumed after %s, want at most %s", what, resumed, most)
	}
}
