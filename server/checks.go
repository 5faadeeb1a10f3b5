package server

import (
	"context"
	"sync"
)

// rounds lets all who ask at the same time share one run of the checks: anybody may ask, and a
// check may cost something.
type rounds struct {
	mu   sync.Mutex
	next *round        // has not begun
	turn chan struct{} // holds a value while one runs
}

// A round is one run of all checks.
type round struct {
	done chan struct{}
	errs []error // one for each check, once done is closed
}

// check runs all checks side by side and gives one error or nil for each. What it tells is never
// older than the question. It fails only if ctx ends before.
func (h *handler) check(ctx context.Context) ([]error, error) {
	h.rounds.mu.Lock()
	mine := h.rounds.next
	if mine == nil {
		mine = &round{done: make(chan struct{}), errs: make([]error, len(h.Checks))}
		h.rounds.next = mine
		go h.run(context.WithoutCancel(ctx), mine) // the others need it, too, if this client leaves
	}
	h.rounds.mu.Unlock()
	select {
	case <-mine.done:
		return mine.errs, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (h *handler) run(ctx context.Context, r *round) {
	h.rounds.turn <- struct{}{}
	defer func() { <-h.rounds.turn }()
	h.rounds.mu.Lock()
	h.rounds.next = nil
	h.rounds.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	var all sync.WaitGroup
	for i, c := range h.Checks {
		all.Go(func() { r.errs[i] = c.Ready(ctx) })
	}
	all.Wait()
	close(r.done)
}
