package loop_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/loop"
	"go.uber.org/goleak"
)

// When a loop returns, it must leave no goroutine, whatever it was waiting for.
func TestRunLeaksNoGoroutines(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	hint := make(chan struct{}, 1)
	for i := range 1000 {
		ctx, cancel := context.WithCancel(t.Context())
		stepped := make(chan struct{}, 100)
		l := loop.Loop{Name: "x", Hint: hint, Step: func(context.Context) (time.Time, error) {
			stepped <- struct{}{}
			if i%3 == 0 {
				return time.Time{}, errors.New("no") // the test stops the loop during backoff
			}
			return time.Time{}, nil
		}}
		if i%3 == 1 {
			l.Gap = time.Hour // the test stops the loop during the gap
		}
		done := make(chan error)
		go func() { done <- l.Run(ctx) }()
		<-stepped
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}
