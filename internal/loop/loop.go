// Package loop runs the same step again and again: when it is hinted at, when it asked to be,
// now and then in any case, and with backoff after it failed. Every controller that looks at
// its whole subject at once is a step in such a loop.
package loop

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/kubejoin/kubejoin/internal/foreign"
	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/prometheus/client_golang/prometheus"
)

// Backoff after the first failure in a row, and the most: whoever asks for a join command waits
// 30 s for its signature, also right after the API server was away.
const (
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 10 * time.Second
)

// DefaultSweep is the longest time between two steps unless Loop.Sweep says otherwise. A clock
// that was set forward is noticed within it: timers do not follow the clock.
const DefaultSweep = time.Minute

// Loop says what to run and when.
type Loop struct {
	// Name stands in logs and metrics.
	Name string
	// Step does all that is due. It says when there will be more to do by itself (zero: it
	// does not know of anything). An error is logged and counted, and the step is tried again
	// with backoff, whatever it returned as next.
	Step func(ctx context.Context) (next time.Time, err error)
	// Hint wakes the loop; nil never does.
	Hint <-chan struct{}
	// Gap is the least time between the end of one step and the start of the next, in which
	// hints gather. Zero is none.
	Gap time.Duration
	// MoreGap is asked after each step by how much longer the gap is to be this time, so that
	// what has come to cost more is done less often. Nil is nothing.
	MoreGap func() time.Duration
	// Sweep is the longest time between two steps; zero is DefaultSweep.
	Sweep time.Duration
	// Logger is told of failures and of recovery; nil is nobody.
	Logger *slog.Logger
	// Registerer has kubejoin_loop_steps_total and
	// kubejoin_loop_last_success_timestamp_seconds; nil counts nothing.
	Registerer prometheus.Registerer
}

// Run steps until ctx ends, and returns nil then.
func (l Loop) Run(ctx context.Context) error {
	log := l.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	sweep := l.Sweep
	if sweep <= 0 {
		sweep = DefaultSweep
	}
	steps := metrics.Counter(l.Registerer, "kubejoin_loop_steps_total", "Steps of a control loop, by result.", "loop", "result")
	success := metrics.Gauge(l.Registerer, "kubejoin_loop_last_success_timestamp_seconds", "When a control loop last finished a step without error.", "loop")

	timer := time.NewTimer(0)
	defer timer.Stop()
	failures := 0
	hint := l.Hint
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hint:
		case <-timer.C:
		}
		next, err := l.Step(ctx)
		if ctx.Err() != nil {
			return nil
		}
		var wait time.Duration
		if err != nil {
			wait = backoff(failures)
			failures++
			steps.WithLabelValues(l.Name, "error").Inc()
			log.Error("control loop step failed, will be tried again", "loop", l.Name, "failures", failures, "retry_in", wait.Round(time.Millisecond), "error", foreign.Text(err.Error(), foreign.MaxMessage))
			// Hints wait too: a failing step must not run as often as the world changes.
			hint = nil
			timer.Reset(wait)
			continue
		}
		if failures > 0 {
			log.Info("control loop works again", "loop", l.Name, "failures", failures)
		}
		failures = 0
		steps.WithLabelValues(l.Name, "ok").Inc()
		success.WithLabelValues(l.Name).SetToCurrentTime()
		gap := l.Gap
		if l.MoreGap != nil {
			gap += l.MoreGap()
		}
		if gap > 0 {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(gap):
			}
		}
		hint = l.Hint
		wait = sweep
		if !next.IsZero() {
			wait = min(wait, max(time.Until(next), 0))
		}
		timer.Reset(wait)
	}
}

func backoff(failures int) time.Duration {
	d := maxBackoff
	if failures < 7 { // 100 ms << 7 is beyond the most
		d = min(maxBackoff, firstBackoff<<failures)
	}
	return d/2 + rand.N(d/2)
}
