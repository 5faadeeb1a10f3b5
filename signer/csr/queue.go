package csr

import (
	"slices"
	"sync"
	"time"
)

// item is a request that waits for a worker, and who asks.
type item struct{ requester, name string }

const (
	// crowd is how many requests of one requester may wait before it counts as one that crowds
	// out the others.
	crowd = 10
	// calm is for how long after somebody else was served a requester that crowds has one worker
	// alone: what it takes of the API server is felt by everybody.
	calm = time.Second
)

// turns is the order in which requests get a worker. Requesters take turns, so that one that
// floods it waits for itself. One that has more than [crowd] waiting also gets no worker while one
// is at work for somebody who does not. As long as nobody else asks, it has them all.
//
// Requests come from a workqueue, which holds back those that are being worked on or have failed.
type turns struct {
	mu      sync.Mutex
	changed *sync.Cond
	closed  bool

	// requesters are those for whom something is waiting; the first one is next.
	requesters []string
	waiting    map[string][]item
	crowding   map[item]bool // what is being worked on, and whether its requester crowded then
	served     time.Time     // when somebody who does not crowd was served last
}

func newTurns() *turns {
	t := &turns{waiting: map[string][]item{}, crowding: map[item]bool{}}
	t.changed = sync.NewCond(&t.mu)
	return t
}

// push lets an item wait behind others of its requester.
func (t *turns) push(i item) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting[i.requester]) == 0 {
		t.requesters = append(t.requesters, i.requester)
	}
	t.waiting[i.requester] = append(t.waiting[i.requester], i)
	t.changed.Signal()
}

// close ends all next.
func (t *turns) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	t.changed.Broadcast()
}

// next waits for an item, which is to be given back to done. It is false when there are to be no
// more.
func (t *turns) next() (item, bool) {
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

// done says that an item is not worked on any more.
func (t *turns) done(i item) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.crowding[i] {
		t.served = time.Now()
		if len(t.requesters) > 0 { // perhaps it is held back
			time.AfterFunc(calm, t.changed.Broadcast)
		}
	}
	delete(t.crowding, i)
	t.changed.Broadcast()
}

// pop takes the first item that may be worked on. Its requester goes to the end of the line.
func (t *turns) pop(now time.Time) (item, bool) {
	crowds := func(requester string) bool { return len(t.waiting[requester]) > crowd }
	at := slices.IndexFunc(t.requesters, func(requester string) bool { return !crowds(requester) })
	if at < 0 && !t.heldBack(now) {
		at = 0
	}
	if at < 0 || len(t.requesters) == 0 {
		return item{}, false
	}
	requester := t.requesters[at]
	items := t.waiting[requester]
	next := items[0]
	t.crowding[next] = crowds(requester)
	if at == 0 { // almost always, and there may be thousands
		t.requesters = t.requesters[1:]
	} else {
		t.requesters = slices.Delete(t.requesters, at, at+1)
	}
	if items = items[1:]; len(items) > 0 {
		t.waiting[requester] = items
		t.requesters = append(t.requesters, requester)
	} else {
		delete(t.waiting, requester)
	}
	return next, true
}

// heldBack reports whether those who crowd have to wait.
func (t *turns) heldBack(now time.Time) bool {
	alone := true
	for _, crowds := range t.crowding {
		if !crowds {
			return true
		}
		alone = false
	}
	return !alone && now.Sub(t.served) < calm
}
