// Package wait waits for a state of real processes, sockets and API servers. With a fake clock, use testing/synctest.
package wait

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// Most is the longest wait. It is long enough for a busy machine, and only a failing test waits that long.
const Most = 3 * time.Minute

// Until calls met until it returns true, and ends the test after [Most]. what names what must become true.
func Until(t testing.TB, what string, met func() bool) {
	t.Helper()
	OK(t, what, func() error {
		if !met() {
			return errors.New("not yet")
		}
		return nil
	})
}

// OK calls check until it returns nil, and ends the test with its last error after [Most].
func OK(t testing.TB, what string, check func() error) {
	t.Helper()
	For(t, Most, what, check)
}

// For is like [OK], with another limit.
func For(t testing.TB, most time.Duration, what string, check func() error) {
	t.Helper()
	if err := Poll(most, check); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// Poll calls check until it returns nil. If that takes longer than most, Poll returns its last error.
func Poll(most time.Duration, check func() error) error {
	const longest = 100 * time.Millisecond
	start := time.Now()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, longest) {
		began := time.Now()
		err := check()
		if err == nil {
			return nil
		}
		if time.Since(start) > most {
			return fmt.Errorf("not after %s: %w", most, err)
		}
		time.Sleep(max(pause, min(time.Since(began), time.Second))) // give CPU time to what the test waits for
	}
}

// Receive returns the next value of c, or the zero value of a closed c. It ends the test after [Most].
func Receive[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(Most):
		t.Fatalf("%s: not after %s", what, Most)
		panic("Fatalf returned")
	}
}
