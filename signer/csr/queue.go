package csr

import (
	"math"
	"slices"
	"sync"
	"time"
)

// An item is a queued request and its requester.
type item struct{ requester, name string }

const (
	// maxUncrowded is how many requests of one requester may be queued or in progress before the requester is
	// crowded.
	maxUncrowded = 10
	// crowdedCooldown is how long crowded requesters are held back after a request of another requester was done. All
	// requests share one API server, so more of them would slow down the next request of the other requester.
	crowdedCooldown = time.Second
)

// fairQueue starts requests in a fair order. Requesters take turns. A requester with many requests is crowded: a flood,
// or a rack of machines that share a token. Requesters that are not crowded, or have no request in progress, go first.
// Then the other crowded requesters follow. One goes before another that has more than twice as many requests.
//
// Beyond one request each, crowded requesters together have at most four fifths of the limit in progress. So a new
// requester starts at once. While a smaller requester is served, all requesters with more than twice as many
// requests share one sixteenth of the limit. So a flood hardly delays a machine or a rack.
//
// Requests come from a workqueue, which holds back requests that are in progress or have failed.
type fairQueue struct {
	start func(item) // starts work on an item that ends with a call of done; must not block

	mu     sync.Mutex
	closed bool
	pace   pace

	requesters []string // requesters with queued requests; the first one is next
	waiting    map[string][]item
	working    map[string]int // requests in progress, by requester
	inProgress int            // sum of working
	served     time.Time      // when the last request of a requester that is not crowded was done
	cooldown   *time.Timer    // starts requests when crowdedCooldown has passed
}

// newFairQueue returns a queue in which at most the given number of requests are in progress.
func newFairQueue(most int, start func(item)) *fairQueue {
	t := &fairQueue{start: start, pace: newPace(most), waiting: map[string][]item{}, working: map[string]int{}}
	t.cooldown = time.AfterFunc(crowdedCooldown, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.startDue()
	})
	return t
}

// push adds an item behind the other items of its requester.
func (t *fairQueue) push(i item) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting[i.requester]) == 0 {
		t.requesters = append(t.requesters, i.requester)
	}
	t.waiting[i.requester] = append(t.waiting[i.requester], i)
	t.startDue()
}

// close makes the queue start nothing more.
func (t *fairQueue) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	t.cooldown.Stop()
}

// done ends the work on an item.
func (t *fairQueue) done(i item) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.crowded(i.requester) {
		t.served = time.Now()
		if !t.closed {
			t.cooldown.Reset(crowdedCooldown)
		}
	}
	t.inProgress--
	if t.working[i.requester]--; t.working[i.requester] == 0 {
		delete(t.working, i.requester)
	}
	if t.inProgress == 0 {
		t.pace.restart()
	}
	t.startDue()
}

// wrote adjusts the limit of requests in progress to how long a write to the API server took.
func (t *fairQueue) wrote(took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.pace.limit
	if t.pace.wrote(took, t.inProgress, time.Now()); t.pace.limit > before {
		t.startDue()
	}
}

// slowDown returns to the smallest limit of requests in progress, because the API server does not respond.
func (t *fairQueue) slowDown() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pace.restart()
}

// startDue starts all items that may start.
func (t *fairQueue) startDue() {
	for !t.closed {
		i, ok := t.pop(time.Now())
		if !ok {
			return
		}
		t.start(i)
	}
}

// pop removes and returns the next item that may start. Its requester moves to the end of the line.
func (t *fairQueue) pop(now time.Time) (item, bool) {
	if t.inProgress >= t.pace.limit || len(t.requesters) == 0 {
		return item{}, false
	}
	at := t.nextInLine(now)
	if at < 0 {
		return item{}, false
	}
	requester := t.requesters[at]
	if at == 0 { // the usual case, without a copy: there may be thousands
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
	t.inProgress++
	return items[0], true
}

// size returns how many requests of a requester are queued or in progress.
func (t *fairQueue) size(requester string) int {
	return len(t.waiting[requester]) + t.working[requester]
}

func (t *fairQueue) crowded(requester string) bool { return t.size(requester) > maxUncrowded }

// nextInLine returns the index of the next requester that may start a request, or -1.
func (t *fairQueue) nextInLine(now time.Time) int {
	at := slices.IndexFunc(t.requesters, func(requester string) bool { return t.working[requester] == 0 || !t.crowded(requester) })
	if at >= 0 {
		return at
	}
	smallest := math.MaxInt / 2 // size of the smallest requester that is served, or was served within crowdedCooldown
	if now.Sub(t.served) < crowdedCooldown {
		smallest = 0
	}
	for requester := range t.working {
		smallest = min(smallest, t.size(requester))
	}
	isLarge := func(requester string) bool { return t.size(requester) > max(maxUncrowded, 2*smallest) }
	crowd, large := 0, 0 // requests in progress of crowded and of large requesters
	for requester, n := range t.working {
		if t.crowded(requester) {
			crowd += n
		}
		if isLarge(requester) {
			large += n
		}
	}
	if crowd >= t.pace.limit*4/5 {
		return -1
	}
	at = slices.IndexFunc(t.requesters, func(requester string) bool { return !isLarge(requester) })
	if at < 0 && large < t.pace.limit/16 {
		return 0
	}
	return at
}
