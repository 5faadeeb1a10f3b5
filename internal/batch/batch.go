// Package batch combines concurrent calls of the same kind into one call. Use it if a call for many items costs about
// as much as a call for one.
package batch

import (
	"context"
	"runtime"
	"sync"
)

// A Queue gathers items while the call for earlier items of the same key runs. The zero value is ready to use. Do not
// copy a Queue after its first use.
type Queue[K comparable, T any] struct {
	mu   sync.Mutex
	busy map[K]*round[T] // the next round while a call runs; nil if no caller waits for it
}

// A round is one call and its waiters.
type round[T any] struct {
	items   []T
	waiting int // guarded by Queue.mu
	ctx     context.Context
	cancel  context.CancelFunc
	done    chan struct{}
}

// Do runs call with the item and all items that wait with it, in order of arrival. The call starts after Do was
// called: at once, or when the previous call of the key returns. Do returns nil after the call. If ctx ends first, Do
// returns the error of ctx, and the call may still run, now or later. The context of the call has the values of the
// first waiter's context. That context ends when no caller waits any more.
//
// All callers of a key must pass an equivalent call.
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
		if q.busy[key] == r { // later callers must not join an abandoned round
			q.busy[key] = nil
		}
	}
	return ctx.Err()
}

// work runs calls until no caller waits.
func (q *Queue[K, T]) work(key K, call func(context.Context, []T)) {
	for {
		runtime.Gosched() // lets goroutines that are about to call Do join this round, if CPUs are scarce
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
