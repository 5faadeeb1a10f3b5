package loop_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/loop"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// run starts l. When the test ends, it stops l and waits until l has returned.
func run(t *testing.T, l loop.Loop) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v, want nil at the end of its context", err)
		}
	})
}

func TestSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var at []time.Duration
		hint := make(chan struct{}, 1)
		run(t, loop.Loop{Name: "x", Hint: hint, Sweep: time.Hour, Gap: time.Second, Step: func(context.Context) (time.Time, error) {
			at = append(at, time.Since(start))
			if len(at) == 1 {
				return start.Add(10 * time.Minute), nil
			}
			return time.Time{}, nil
		}})
		time.Sleep(11 * time.Minute) // steps: at once, then at the time that the step returned
		hint <- struct{}{}           // then on the hint
		synctest.Wait()
		time.Sleep(2*time.Hour + time.Minute) // then by the sweep
		synctest.Wait()
		want := []time.Duration{0, 10 * time.Minute, 11 * time.Minute, 71*time.Minute + time.Second, 131*time.Minute + 2*time.Second}
		if len(at) != len(want) {
			t.Fatalf("steps at %v, want %v", at, want)
		}
		for i := range want {
			if at[i] != want[i] {
				t.Errorf("step %d at %v, want %v", i, at[i], want[i])
			}
		}
	})
}

func TestGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hint := make(chan struct{}, 1)
		var at []time.Time
		run(t, loop.Loop{
			Name: "x", Hint: hint, Gap: time.Second,
			Step: func(context.Context) (time.Time, error) {
				at = append(at, time.Now())
				select {
				case hint <- struct{}{}:
				default:
				}
				return time.Time{}, nil
			},
		})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if len(at) < 4 {
			t.Fatalf("%d steps, want at least 4", len(at))
		}
		for i := range at[1:] {
			if gap := at[i+1].Sub(at[i]); gap != time.Second {
				t.Errorf("gap %v after step %d, want 1s", gap, i+1)
			}
		}
	})
}

func TestBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		hint := make(chan struct{}, 1)
		var steps atomic.Int32
		var fail atomic.Bool
		fail.Store(true)
		run(t, loop.Loop{Name: "x", Hint: hint, Registerer: reg, Step: func(context.Context) (time.Time, error) {
			steps.Add(1)
			if fail.Load() {
				return time.Time{}, errors.New("no")
			}
			return time.Time{}, nil
		}})
		// The loop must back off even if hints never stop.
		for range 10000 {
			select {
			case hint <- struct{}{}:
			default:
			}
			time.Sleep(time.Millisecond)
		}
		if n := steps.Load(); n < 5 || n > 10 {
			t.Errorf("%d steps in 10 s of failure, want 5 to 10", n)
		}
		fail.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n, err := testutil.GatherAndCount(reg, "kubejoin_loop_steps_total"); err != nil || n != 2 {
			t.Errorf("%d results counted (%v), want ok and error", n, err)
		}
	})
}
