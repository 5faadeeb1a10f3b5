package csr

import (
	"slices"
	"sync"
	"time"
)

// An item is a queued request and its requester.
type item struct{ requester, name string }

const (
	// maxUncrowded is how many requests of one requester may be queued or in progress before the requester counts
	// as crowded.
	maxUncrowded = 10
	// crowdedCooldown is how long a crowded requester stays limited to one worker after a request of another requester
	// was done. All requests share one API server, so more workers would slow down the next one.
	crowdedCooldown = time.Second
)

// fairQueue is the order in which requests get a worker. Requesters take turns. A requester with many requests
// is crowded: it gets one worker while requesters that are not crowded are served, and all free workers at
// other times. So a flood does not slow down others, and others do not block a rack of machines that share
// a token.
//
// Requests come from a workqueue, which holds back those that are in progress or have failed.
type fairQueue struct {
	mu      sync.Mutex
	changed *sync.Cond
	closed  bool

	requesters []string // those with queued requests; the first one is next
	waiting    map[string][]item
	working    map[string]int // requests in progress, by requester
	served     time.Time      // when the last request of a requester that is not crowded was done
}

func newFairQueue() *fairQueue {
	t := &fairQueue{waiting: map[string][]item{}, working: map[string]int{}}
	t.changed = sync.NewCond(&t.mu)
	return t
}

// push adds an item behind others of its requester.
func (t *fairQueue) push(i item) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting[i.requester]) == 0 {
		t.requesters = append(t.requesters, i.requester)
	}
	t.waiting[i.requester] = append(t.waiting[i.requester], i)
	t.changed.Signal()
}

// close makes all calls of next return false.
func (t *fairQueue) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	t.changed.Broadcast()
}

// next waits for an item. The caller passes it to done later. next returns false after close.
func (t *fairQueue) next() (item, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		if t.closed {
			return item{}, false
		}
		if i, ok := t.pop(time.Now()); ok {
			return i, true
		}
		t.changed.Wait()
	}
}

// done ends the work on an item.
func (t *fairQueue) done(i item) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.crowded(i.requester) {
		t.served = time.Now()
		if len(t.requesters) > 0 { // a crowded one may wait for crowdedCooldown
			time.AfterFunc(crowdedCooldown, t.changed.Broadcast)
		}
	}
	if t.working[i.requester]--; t.working[i.requester] == 0 {
		delete(t.working, i.requester)
	}
	t.changed.Broadcast()
}

// pop takes the first item that may get a worker. Its requester moves to the end of the line.
func (t *fairQueue) pop(now time.Time) (item, bool) {
	others := t.othersServed(now)
	at := slices.IndexFunc(t.requesters, func(requester string) bool {
		return !others || t.working[requester] == 0 || !t.crowded(requester)
	})
	if at < 0 {
		return item{}, false
	}
	requester := t.requesters[at]
	if at == 0 { // the usual case; there may be thousands
		t.requesters = t.requesters[1:]
	} else {
		t.requesters = slices.Delete(t.requesters, at, at+1)
	}
	items := t.waiting[requester]
	if rest := items[1:]; len(rest) > 0 {
		t.waiting[requester] = rest
		t.requesters = append(t.requesters, requester)
	} else {
		delete(t.waiting, requester)
	}
	t.working[requester]++
	return items[0], true
}

func (t *fairQueue) crowded(requester string) bool {
	return len(t.waiting[requester])+t.working[requester] > maxUncrowded
}

// othersServed reports whether requesters that are not crowded are served now, or were within
// crowdedCooldown.
func (t *fairQueue) othersServed(now time.Time) bool {
	for requester := range t.working {
		if !t.crowded(requester) {
			return true
		}
	}
	return now.Sub(t.served) < crowdedCooldown
}
