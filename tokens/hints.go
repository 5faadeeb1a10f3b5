package tokens

import (
	"context"
	"sync"
)

// Hints are the listeners of a [Store]'s Watch method, for those who write a Store. The zero
// value has none and is ready.
type Hints struct {
	mu        sync.Mutex
	listeners map[chan struct{}]struct{}
}

// Watch adds a listener until ctx ends, and hints at once. It is what [Store] wants of Watch.
func (h *Hints) Watch(ctx context.Context) <-chan struct{} {
	// One place holds the hint for a listener that is busy: what changes before it has taken
	// it is the same hint.
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

// Send hints at all listeners and waits for none of them.
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
