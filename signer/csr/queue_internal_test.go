package csr

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func (t *fairQueue) fill(requester string, n int) {
	for i := range n {
		t.push(item{requester, fmt.Sprint(requester, i)})
	}
}

// A simulation is a fairQueue whose requests take the given time.
type simulation struct {
	*fairQueue
	took func(requester string) time.Duration

	mu     sync.Mutex
	pushed map[item]time.Time
	wait   map[string]time.Duration // longest wait for a start, by requester
	doneAt map[string][]time.Time   // by requester
	atWork map[string]int
	most   map[string]int // most requests in progress since the last reset, by requester
}

// simulate must be called in a synctest bubble. Nothing starts after the end of the test.
func simulate(t *testing.T, most int, took func(string) time.Duration) *simulation {
	o := &simulation{
		took: took, pushed: map[item]time.Time{}, wait: map[string]time.Duration{},
		doneAt: map[string][]time.Time{}, atWork: map[string]int{}, most: map[string]int{},
	}
	var working sync.WaitGroup
	o.fairQueue = newFairQueue(most, func(i item) { working.Go(func() { o.work(i) }) })
	t.Cleanup(func() { o.close(); working.Wait() })
	return o
}

func (o *simulation) work(i item) {
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

// ask adds n requests of a requester.
func (o *simulation) ask(requester string, n int) {
	for range n {
		o.mu.Lock()
		i := item{requester, fmt.Sprint(requester, "-", len(o.pushed))}
		o.pushed[i] = time.Now()
		o.mu.Unlock()
		o.push(i)
	}
}

func (o *simulation) served(requester string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.doneAt[requester])
}

// busiest returns the most requests of a requester in progress at once since the last reset.
func (o *simulation) busiest(requester string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.most[requester]
}

// reset makes busiest ignore the requests that were in progress until now.
func (o *simulation) reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.most)
}

// Maximum numbers of requests in progress with an API server nearby: of all crowded requesters, and of large
// requesters.
const crowdMost, largeMost = leastInProgress * 4 / 5, leastInProgress / 16

func TestQueueServesRequestersInTurn(t *testing.T) {
	var got []string
	var last item
	q := newFairQueue(1, func(i item) { got, last = append(got, i.requester), i })
	defer q.close()
	q.fill("first", 1)
	q.fill("a", 3)
	q.fill("b", 1)
	q.fill("c", 2)
	for range 6 {
		q.done(last)
	}
	q.done(last)
	if want := []string{"first", "a", "b", "c", "a", "c", "a"}; !slices.Equal(got, want) {
		t.Errorf("got order %q, want %q", got, want)
	}
	if len(q.waiting) > 0 || len(q.requesters) > 0 || len(q.working) > 0 || q.inProgress != 0 {
		t.Errorf("got %v, %v, %v and %d left, want none", q.waiting, q.requesters, q.working, q.inProgress)
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
				o := simulate(t, maxInProgress, func(string) time.Duration { return took })
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
					t.Errorf("the other requester waited %s for its start, want at most 50ms", o.wait["steady"])
				}
			})
		})
	}
}

// While other requesters are served, a flood of one requester must not use the API server.
func TestHoldsBackFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const took = 20 * time.Millisecond
		o := simulate(t, maxInProgress, func(string) time.Duration { return took })
		o.ask("flood", 50_000)
		time.Sleep(time.Second)
		if o.busiest("flood") != crowdMost {
			t.Fatalf("flood alone: got %d in progress, want %d", o.busiest("flood"), crowdMost)
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
		if n := o.busiest("flood"); n != largeMost {
			t.Errorf("flood while others are served: got %d in progress, want %d", n, largeMost)
		}
		time.Sleep(crowdedCooldown)
		if o.busiest("flood") != crowdMost {
			t.Errorf("flood after the others: got %d in progress, want %d", o.busiest("flood"), crowdMost)
		}
	})
}

// A slow request holds back a flood until it is done and crowdedCooldown has passed.
func TestHoldsBackFloodDuringSlowRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slow, took = 5 * time.Second, 20 * time.Millisecond
		o := simulate(t, maxInProgress, func(requester string) time.Duration {
			if requester == "slow" {
				return slow
			}
			return took
		})
		o.ask("slow", 1)
		synctest.Wait()
		o.ask("flood", 50_000)
		time.Sleep(took) // the first requests may have started before the requester was crowded
		synctest.Wait()
		o.reset()
		time.Sleep(slow + crowdedCooldown - 2*took)
		if n := o.busiest("flood"); n != largeMost {
			t.Errorf("flood: got %d in progress, want %d", n, largeMost)
		}
	})
}

// The cooldown ends without another event, even if all requests in progress of a crowded requester are slow, and if
// the requester came during the cooldown.
func TestCooldownEndsDuringSlowRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := simulate(t, maxInProgress, func(requester string) time.Duration {
			if requester == "rack" {
				return time.Minute
			}
			return 20 * time.Millisecond
		})
		o.ask("other", 1)
		time.Sleep(crowdedCooldown / 2)
		o.ask("rack", 50)
		time.Sleep(crowdedCooldown)
		synctest.Wait()
		if n := o.busiest("rack"); n != 50 {
			t.Errorf("rack: got %d in progress, want 50", n)
		}
	})
}

// Two crowded requesters must not hold back each other.
func TestTwoRacksTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := simulate(t, maxInProgress, func(string) time.Duration { return 20 * time.Millisecond })
		o.ask("rack-1", 500)
		o.ask("rack-2", 500)
		time.Sleep(time.Second / 2)
		synctest.Wait()
		// When a rack has only ten machines left, it is not crowded any more, so the other rack has to wait.
		if o.served("rack-1") < 450 || o.served("rack-2") < 450 {
			t.Errorf("served %d and %d of 500 machines within 0.5 s, want 450", o.served("rack-1"), o.served("rack-2"))
		}
	})
}

// A requester with many slow requests is crowded although none of its requests waits to start.
func TestLimitsSlowRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := simulate(t, maxInProgress, func(requester string) time.Duration {
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
			t.Errorf("slow requests: got %d in progress, want at most %d", n, maxUncrowded)
		}
		if o.served("other") < 499 {
			t.Errorf("served %d of 500 others, want 499", o.served("other"))
		}
	})
}

// While others are served, each of several crowded requesters has a request in progress.
func TestServesEachOfManyCrowdedRequesters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := simulate(t, maxInProgress, func(string) time.Duration { return 20 * time.Millisecond })
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

// With one request in progress, requesters take turns.
func TestRequestersShareOneSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := simulate(t, 1, func(string) time.Duration { return 20 * time.Millisecond })
		o.ask("rack", 100)
		o.ask("other", maxUncrowded)
		time.Sleep(time.Second)
		synctest.Wait()
		if o.served("rack") < maxUncrowded || o.served("other") < maxUncrowded {
			t.Errorf("served only %d of the rack and %d others", o.served("rack"), o.served("other"))
		}
	})
}

// Crowded requesters leave slots for a new requester, even if their requests take long.
func TestNewRequesterStartsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := simulate(t, maxInProgress, func(string) time.Duration { return time.Minute })
		o.ask("flood-1", 1000)
		o.ask("flood-2", 1000) // its first ten requests start before it is crowded
		time.Sleep(2 * crowdedCooldown)
		for i := range leastInProgress - crowdMost - maxUncrowded {
			requester := fmt.Sprint("machine-", i)
			o.ask(requester, 1)
			synctest.Wait()
			if n := o.busiest(requester); n != 1 {
				t.Fatalf("machine %d: got %d in progress, want 1", i, n)
			}
		}
	})
}

// A controller without requests in progress returns to the smallest limit, because it then has few connections.
func TestIdleQueueRestartsPace(t *testing.T) {
	q := newFairQueue(maxInProgress, func(item) {})
	defer q.close()
	for name, end := range map[string]func(){
		"idle":                        func() { q.fill("a", 1); q.done(item{"a", "a0"}) },
		"API server does not respond": q.slowDown,
	} {
		for range 10 {
			q.wrote(time.Second)
		}
		if n := q.pace.limit; n != leastInProgress+20 {
			t.Fatalf("%s: got a limit of %d before, want %d", name, n, leastInProgress+20)
		}
		if end(); q.pace.limit != leastInProgress {
			t.Errorf("%s: got a limit of %d, want %d", name, q.pace.limit, leastInProgress)
		}
	}
}

func TestClosedQueueStartsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started := 0
		q := newFairQueue(2, func(item) { started++ })
		q.fill("other", 1)
		q.fill("rack", 50)
		q.done(item{"other", "other0"})
		before := started
		q.close()
		q.done(item{"rack", "rack0"})
		q.push(item{"another", "1"})
		q.wrote(time.Second)
		time.Sleep(2 * crowdedCooldown)
		synctest.Wait()
		if started != before {
			t.Errorf("started %d requests after the end", started-before)
		}
	})
}
