package tokens

import (
	"context"
	"sync"
)

// Hints implements the Watch method of a [Store] or of [Claims]. The zero value has no listeners and
// is ready to use.
type Hints struct {
	mu        sync.Mutex
	listeners map[chan struct{}]struct{}
}

// Watch adds a listener until ctx ends, and sends it a first hint, as [Store.Watch] requires.
func (h *Hints) Watch(ctx context.Context) <-chan struct{} {
	// The buffer holds one hint for a busy listener. Until the listener receives this hint, further changes need no other hint.
	c := make(chan struct{}, 1)
	c <- struct{}{}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.listeners == nil {
		h.listeners = map[chan struct{}]struct{}{}
	}
	h.listeners[c] = struct{}{}
	context.AfterFunc(ctx, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.listeners, c)
	})
	return c
}

// Send sends a hint to every listener. It never blocks.
func (h *Hints) Send() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.listeners {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}
