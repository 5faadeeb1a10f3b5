package harness

import (
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/wait"
)

// Wait calls check until it returns nil, and fails the test after [wait.Most].
func Wait(t *testing.T, what string, check func() error) {
	t.Helper()
	wait.OK(t, what, check)
}

// WaitFor is like [Wait], but its limit is most.
func WaitFor(t *testing.T, most time.Duration, what string, check func() error) {
	t.Helper()
	wait.For(t, most, what, check)
}
