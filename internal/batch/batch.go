// Package batch lets those who want the same kind of thing at the same time have it in one call,
// where a call costs about as much for many as for one.
package batch

import (
	"context"
	"runtime"
	"sync"
)

// A Queue gathers items while a call for earlier ones of the same key is under way. Its zero
// value is ready. It must not be copied once it is used.
type Queue[K comparable, T any] struct {
	mu   sync.Mutex
	busy map[K]*round[T] // the round that gathers while a call is under way; nil if nobody waits
}

// A round is one call and those who wait for it.
type round[T any] struct {
	items   []T
	waiting int // guarded by Queue.mu
	ctx     context.Context
	cancel  context.CancelFunc
	done    chan struct{}
}

// Do has call called with the item and with those that wait by then, in the order in which they
// came. The call begins after Do has: at once, or when the one before it has returned. Do returns
// nil when the call has, and the error of ctx if that ends earlier; then the call may still be
// under way, or to come. The context of the call has the values of the first one who waits, and
// ends when nobody waits any more.
//
// All who use a key have to give the same call.
func (q *Queue[K, T]) Do(ctx context.Context, key K, item T, call func(context.Context, []T)) error {
	q.mu.Lock()
	r, busy := q.busy[key]
	if r == nil {
		r = &round[T]{done: make(chan struct{})}
		r.ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
		if q.busy == nil {
			q.busy = map[K]*round[T]{}
		}
		q.busy[key] = r
	}
	r.items = append(r.items, item)
	r.waiting++
	q.mu.Unlock()
	if !busy {
		go q.work(key, call)
	}
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if r.waiting--; r.waiting == 0 {
		r.cancel()
		if q.busy[key] == r { // nobody is to join what has been given up
			q.busy[key] = nil
		}
	}
	return ctx.Err()
}

// work calls until nobody waits.
func (q *Queue[K, T]) work(key K, call func(context.Context, []T)) {
	for {
		runtime.Gosched() // those who are about to ask go first, if processors are what is short
		q.mu.Lock()
		r := q.busy[key]
		if r == nil {
			delete(q.busy, key)
			q.mu.Unlock()
			return
		}
		q.busy[key] = nil
		q.mu.Unlock()
		call(r.ctx, r.items)
		r.cancel()
		close(r.done)
	}
}
