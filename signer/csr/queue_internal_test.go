package csr

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// take returns the requesters of all items that may be in progress at once.
func (t *fairQueue) take() (names []string) {
	for {
		i, ok := t.pop(time.Now())
		if !ok {
			return names
		}
		names = append(names, i.requester)
	}
}

func (t *fairQueue) fill(requester string, n int) {
	for i := range n {
		t.push(item{requester, fmt.Sprint(requester, i)})
	}
}

// workerPool is a pool of workers that serve a fairQueue. Each request takes the given time.
type workerPool struct {
	*fairQueue
	t    *testing.T
	took func(requester string) time.Duration

	mu      sync.Mutex
	pushed  map[item]time.Time
	wait    map[string]time.Duration // longest wait for a worker, by requester
	doneAt  map[string][]time.Time   // by requester
	atWork  map[string]int
	most    map[string]int // most requests in progress since the last reset, by requester
	workers sync.WaitGroup
}

// newWorkerPool must be called in a synctest bubble. The pool stops at the end of the test.
func newWorkerPool(t *testing.T, workers int, took func(string) time.Duration) *workerPool {
	o := &workerPool{
		fairQueue: newFairQueue(), t: t, took: took, pushed: map[item]time.Time{}, wait: map[string]time.Duration{},
		doneAt: map[string][]time.Time{}, atWork: map[string]int{}, most: map[string]int{},
	}
	for range workers {
		o.workers.Go(o.work)
	}
	t.Cleanup(func() { o.close(); o.workers.Wait() })
	return o
}

func (o *workerPool) work() {
	for {
		i, ok := o.next()
		if !ok {
			return
		}
		o.mu.Lock()
		o.wait[i.requester] = max(o.wait[i.requester], time.Since(o.pushed[i]))
		o.atWork[i.requester]++
		o.most[i.requester] = max(o.most[i.requester], o.atWork[i.requester])
		o.mu.Unlock()
		time.Sleep(o.took(i.requester))
		o.mu.Lock()
		o.atWork[i.requester]--
		o.doneAt[i.requester] = append(o.doneAt[i.requester], time.Now())
		o.mu.Unlock()
		o.done(i)
	}
}

// ask adds n requests of a requester.
func (o *workerPool) ask(requester string, n int) {
	for range n {
		o.mu.Lock()
		i := item{requester, fmt.Sprint(requester, "-", len(o.pushed))}
		o.pushed[i] = time.Now()
		o.mu.Unlock()
		o.push(i)
	}
}

func (o *workerPool) served(requester string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.doneAt[requester])
}

// busiest returns the most requests of a requester in progress at once since the last reset.
func (o *workerPool) busiest(requester string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.most[requester]
}

// reset makes busiest forget what was in progress until now.
func (o *workerPool) reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.most)
}

func TestQueueServesRequestersInTurn(t *testing.T) {
	q := newFairQueue()
	q.fill("a", 3)
	q.fill("b", 1)
	q.fill("c", 2)
	if got, want := q.take(), []string{"a", "b", "c", "a", "c", "a"}; !slices.Equal(got, want) {
		t.Errorf("got order %q, want %q", got, want)
	}
	if len(q.waiting) > 0 || len(q.requesters) > 0 {
		t.Errorf("got %v and %v left, want none", q.waiting, q.requesters)
	}
}

// The machines of a rack share one token. They must be served although another requester always has requests in
// progress and only a few waiting.
func TestServesRackBesideSteadyRequester(t *testing.T) {
	const rack, took = 500, 25 * time.Millisecond
	for name, ask := range map[string]struct {
		every time.Duration
		n     int
	}{
		"one request each 20 ms": {20 * time.Millisecond, 1},
		"ten at once":            {took, maxUncrowded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newWorkerPool(t, DefaultWorkers, func(string) time.Duration { return took })
				steady := time.NewTicker(ask.every)
				defer steady.Stop()
				o.ask("steady", ask.n)
				o.ask("rack", rack)
				began := time.Now()
				for time.Since(began) < 5*time.Minute && o.served("rack") < rack {
					before := o.served("rack")
					for second := time.Now(); time.Since(second) < time.Second; {
						<-steady.C
						o.ask("steady", ask.n)
					}
					if n := o.served("rack") - before; n < 30 && o.served("rack") < rack {
						t.Fatalf("served %d machines of the rack within a second, want 30", n)
					}
				}
				if took := time.Since(began); o.served("rack") < rack || took > 15*time.Second {
					t.Errorf("served %d of %d machines within %s, want all within 15s", o.served("rack"), rack, took)
				}
				o.mu.Lock()
				defer o.mu.Unlock()
				if o.wait["steady"] > 2*took {
					t.Errorf("the other requester waited %s for a worker, want at most 50ms", o.wait["steady"])
				}
			})
		})
	}
}

// A flood of one requester must leave the API server to the others while they are served.
func TestHoldsBackFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const took = 20 * time.Millisecond
		o := newWorkerPool(t, DefaultWorkers, func(string) time.Duration { return took })
		o.ask("flood", 50_000)
		time.Sleep(time.Second)
		if o.busiest("flood") != DefaultWorkers {
			t.Fatalf("flood alone: got %d workers, want all %d", o.busiest("flood"), DefaultWorkers)
		}
		for i := range 100 {
			other := fmt.Sprint("machine-", i)
			o.ask(other, 1)
			time.Sleep(2 * took)
			synctest.Wait()
			if o.served(other) != 1 {
				t.Fatalf("machine %d: not served within %s", i, 2*took)
			}
			if i == 0 { // earlier requests of the flood are done
				o.reset()
			}
			time.Sleep(crowdedCooldown / 2)
		}
		if n := o.busiest("flood"); n != 1 {
			t.Errorf("flood while others are served: got %d workers, want 1", n)
		}
		time.Sleep(crowdedCooldown)
		if o.busiest("flood") != DefaultWorkers {
			t.Errorf("flood after the others: got %d workers, want all %d", o.busiest("flood"), DefaultWorkers)
		}
	})
}

// A slow request holds back a flood until it is done and crowdedCooldown has passed.
func TestHoldsBackFloodDuringSlowRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slow, took = 5 * time.Second, 20 * time.Millisecond
		o := newWorkerPool(t, DefaultWorkers, func(requester string) time.Duration {
			if requester == "slow" {
				return slow
			}
			return took
		})
		o.ask("slow", 1)
		synctest.Wait()
		o.ask("flood", 50_000)
		time.Sleep(took) // the first ones may have got a worker before there were enough of them to be crowded
		synctest.Wait()
		o.reset()
		time.Sleep(slow + crowdedCooldown - 2*took)
		if n := o.busiest("flood"); n != 1 {
			t.Errorf("flood: got %d workers, want 1", n)
		}
	})
}

// The cooldown ends by itself, even if the only request of a crowded requester in progress is slow.
func TestCooldownEndsDuringSlowRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newWorkerPool(t, DefaultWorkers, func(requester string) time.Duration {
			if requester == "rack" {
				return time.Minute
			}
			return 20 * time.Millisecond
		})
		o.ask("other", 1)
		synctest.Wait()
		o.ask("rack", 50)
		time.Sleep(2 * crowdedCooldown)
		synctest.Wait()
		if n := o.busiest("rack"); n != 50 {
			t.Errorf("rack: got %d workers, want 50", n)
		}
	})
}

// Two crowded requesters must not hold back each other.
func TestTwoRacksUseAllWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newWorkerPool(t, DefaultWorkers, func(string) time.Duration { return 20 * time.Millisecond })
		o.ask("rack-1", 500)
		o.ask("rack-2", 500)
		time.Sleep(time.Second / 2)
		synctest.Wait()
		// The last ten machines of a rack are not crowded any more and hold back the rest of the other rack.
		if o.served("rack-1") < 450 || o.served("rack-2") < 450 {
			t.Errorf("served %d and %d of 500 machines within 0.5 s, want 450", o.served("rack-1"), o.served("rack-2"))
		}
	})
}

// A requester with slow requests counts as crowded although none of them waits for a worker.
func TestLimitsWorkersOfSlowRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newWorkerPool(t, DefaultWorkers, func(requester string) time.Duration {
			if requester == "slow" {
				return time.Minute
			}
			return 20 * time.Millisecond
		})
		for range 500 {
			o.ask("slow", 1)
			o.ask("other", 1)
			time.Sleep(20 * time.Millisecond)
		}
		synctest.Wait()
		if n := o.busiest("slow"); n > maxUncrowded {
			t.Errorf("slow requests: got %d workers, want at most %d", n, maxUncrowded)
		}
		if o.served("other") < 499 {
			t.Errorf("served %d of 500 others, want 499", o.served("other"))
		}
	})
}

// While others are served, each of several crowded requesters has one worker.
func TestServesEachOfManyCrowdedRequesters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newWorkerPool(t, DefaultWorkers, func(string) time.Duration { return 20 * time.Millisecond })
		o.ask("steady", 1)
		o.ask("flood-1", 5000)
		o.ask("flood-2", 5000)
		o.ask("rack", 100)
		for range 100 {
			o.ask("steady", 1)
			time.Sleep(20 * time.Millisecond)
		}
		synctest.Wait()
		if o.served("rack") < 95 {
			t.Errorf("served %d of 100 machines within 2 s, want 95", o.served("rack"))
		}
	})
}

// With one worker, requesters take turns.
func TestSharesOneWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newWorkerPool(t, 1, func(string) time.Duration { return 20 * time.Millisecond })
		o.ask("rack", 100)
		o.ask("other", maxUncrowded)
		time.Sleep(time.Second)
		synctest.Wait()
		if o.served("rack") < maxUncrowded || o.served("other") < maxUncrowded {
			t.Errorf("served only %d of the rack and %d others", o.served("rack"), o.served("other"))
		}
	})
}

// Waiting workers wake up for new requests, after the cooldown, and when the queue is closed.
func TestWaitingWorkersWakeUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Hour)
		q := newFairQueue()
		got := make(chan item, 100)
		for range 3 {
			go func() {
				for {
					i, ok := q.next()
					if !ok {
						got <- item{}
						return
					}
					got <- i
					time.Sleep(10 * time.Millisecond)
					q.done(i)
				}
			}()
		}
		synctest.Wait()
		began := time.Now()
		q.fill("a", 1)
		synctest.Wait()
		q.fill("flood", 500)
		for n := range 501 {
			if i := <-got; i.requester == "" {
				t.Fatalf("queue ended after %d items", n)
			}
		}
		// One worker during the first second, then three.
		if took := time.Since(began); took > 2500*time.Millisecond {
			t.Errorf("took %s, want at most 2.5s", took)
		}
		synctest.Wait()
		q.close()
		for range 3 {
			if i := <-got; i != (item{}) {
				t.Errorf("got %v from a closed queue, want nothing", i)
			}
		}
	})
}
