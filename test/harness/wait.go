package harness

import (
	"context"
	"testing"
	"time"
)

// Wait calls check until it returns nil, and fails the test after three minutes. That is long enough for a busy machine.
func Wait(t *testing.T, what string, check func() error) {
	t.Helper()
	WaitFor(t, 3*time.Minute, what, check)
}

// WaitFor is [Wait] with another limit.
func WaitFor(t *testing.T, most time.Duration, what string, check func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	const shortest, longest = 100 * time.Millisecond, time.Second
	for {
		began := time.Now()
		err := check()
		if err == nil {
			return
		}
		select {
		case <-time.After(max(shortest, min(time.Since(began), longest))): // leaves time to what it waits for
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		}
	}
}
