package csr

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A controlPlane has two processors, which can handle 333 requests a second, and a latency for each call.
type controlPlane struct {
	latency time.Duration

	mu      sync.Mutex
	random  *rand.Rand
	busy    int
	waiting []chan struct{}
}

const processors, callTakes, callsOfRequest = 2, 1200 * time.Microsecond, 5

// call waits for the latency and for a processor. Calls get a processor in any order.
func (c *controlPlane) call() {
	time.Sleep(c.latency)
	c.mu.Lock()
	if c.busy++; c.busy > processors {
		turn := make(chan struct{})
		c.waiting = append(c.waiting, turn)
		c.mu.Unlock()
		<-turn
	} else {
		c.mu.Unlock()
	}
	time.Sleep(callTakes)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy--
	if n := len(c.waiting); n > 0 {
		at := c.random.IntN(n)
		close(c.waiting[at])
		c.waiting[at] = c.waiting[n-1]
		c.waiting = c.waiting[:n-1]
	}
}

// serve returns a queue whose requests make some reads and two writes. It calls done after each request.
func (c *controlPlane) serve(done func(item)) *fairQueue {
	c.random = rand.New(rand.NewPCG(1, 2))
	var q *fairQueue
	q = newFairQueue(maxInProgress, func(i item) {
		go func() {
			for n := range callsOfRequest {
				began := time.Now()
				c.call()
				if n >= callsOfRequest-2 {
					q.wrote(time.Since(began))
				}
			}
			q.done(i)
			done(i)
		}()
	})
	return q
}

// A rack of 500 machines competes with a requester whose 5,000 requests began before or at the same time. The rack
// must get its certificates in at most 120 % of the time that it needs alone. The machines have one token, or a
// token each.
func TestFloodHardlyDelaysRack(t *testing.T) {
	const rack, flood = 500, 5000
	for _, latency := range []time.Duration{0, 20 * time.Millisecond, 200 * time.Millisecond} {
		for _, tokens := range []int{1, rack} {
			// took returns the time until the last machine of the rack has its certificate.
			took := func(t *testing.T, flood int, before time.Duration) (took time.Duration) {
				synctest.Test(t, func(t *testing.T) {
					c := &controlPlane{latency: latency}
					done := make(chan item, rack+flood)
					q := c.serve(func(i item) { done <- i })
					defer q.close()
					q.fill("flood", flood)
					time.Sleep(before)
					began := time.Now()
					for i := range rack {
						q.push(item{fmt.Sprint("token-", i%tokens), fmt.Sprint("machine-", i)})
					}
					left := rack
					for range rack + flood {
						if i := <-done; i.requester != "flood" {
							if left--; left == 0 {
								took = time.Since(began)
							}
						}
					}
				})
				return took
			}
			t.Run(fmt.Sprintf("latency %s, %d tokens", latency, tokens), func(t *testing.T) {
				alone := took(t, 0, 0)
				for _, before := range []time.Duration{0, 5 * time.Second} {
					beside := took(t, flood, before)
					t.Logf("alone %s, beside a flood that began %s before %s (%.2f)", alone, before, beside, float64(beside)/float64(alone))
					if beside > alone*12/10 {
						t.Errorf("the rack took %s beside a flood that began %s before, want at most 1.2 of %s", beside, before, alone)
					}
				}
			})
		}
	}
}

// The latency of the API server does not limit the throughput, only its processors do. The limit on requests in
// progress stays small if the API server is near, even if it is busy.
func TestThroughputDoesNotFollowLatency(t *testing.T) {
	const machines = 5000
	for _, test := range []struct {
		latency time.Duration
		limit   int // at the end, or up to a tenth more
	}{
		{0, leastInProgress},
		{20 * time.Millisecond, 84},
		{50 * time.Millisecond, 204},
		{200 * time.Millisecond, maxInProgress},
	} {
		for _, tokens := range []int{1, machines} {
			t.Run(fmt.Sprintf("latency %s, %d tokens", test.latency, tokens), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := &controlPlane{latency: test.latency}
					done := make(chan item, machines)
					q := c.serve(func(i item) { done <- i })
					defer q.close()
					began, limit := time.Now(), 0
					for i := range machines {
						q.push(item{fmt.Sprint("token-", i%tokens), fmt.Sprint("machine-", i)})
					}
					for n := range machines {
						<-done
						if n == machines-100 {
							q.mu.Lock()
							limit = q.pace.limit
							q.mu.Unlock()
						}
					}
					full := machines * callsOfRequest * callTakes / processors // the time of the processors
					took := time.Since(began)
					t.Logf("%s, processors %s, limit %d", took, full, limit)
					if most := full*11/10 + 10*test.latency; took > most {
						t.Errorf("%d machines took %s, want at most %s", machines, took, most)
					}
					if limit < test.limit || limit > test.limit*11/10 {
						t.Errorf("got a limit of %d requests in progress, want about %d", limit, test.limit)
					}
				})
			})
		}
	}
}
