// Package loop runs a step repeatedly: on a hint, at the time that the last step returned, after a maximum interval,
// and with backoff after a failure. Every controller that processes all its objects at once uses a Loop.
package loop

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/prometheus/client_golang/prometheus"
)

// The first and the maximum backoff. The maximum is well below the 30 s that a join command waits for its signature,
// so that the wait succeeds even right after an outage of the API server.
const (
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 10 * time.Second
)

// DefaultSweep is the maximum time between two steps if Loop.Sweep is zero. Timers ignore changes of the wall clock.
// If the clock is set forward, the step notices the change after at most this time.
const DefaultSweep = time.Minute

// Loop describes a step, and when to run it.
type Loop struct {
	// Name is the name in logs and metrics.
	Name string
	// Step does all the work that is due. It returns when more work will be due, or zero if unknown. After an error,
	// the Loop logs and counts the error, ignores next, and retries with backoff.
	Step func(ctx context.Context) (next time.Time, err error)
	// Hint triggers a step; nil never does.
	Hint <-chan struct{}
	// Gap is the minimum time between the end of a step and the start of the next one. All hints during that time
	// lead to one step.
	Gap time.Duration
	// Sweep is the maximum time between two steps; zero means DefaultSweep.
	Sweep time.Duration
	// Logger logs failures and recovery; nil disables logging.
	Logger *slog.Logger
	// Registerer registers kubejoin_loop_steps_total and kubejoin_loop_last_success_timestamp_seconds; nil disables
	// them.
	Registerer prometheus.Registerer
}

// Run runs the loop until ctx ends. It always returns nil.
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
	success := metrics.Gauge(l.Registerer, "kubejoin_loop_last_success_timestamp_seconds", "When a control loop last finished a step without error, in Unix seconds.", "loop")

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
			log.Error("control loop step failed, will be retried", "loop", l.Name, "failures", failures, "retry_in", wait.Round(time.Millisecond), "error", safetext.Text(err.Error(), safetext.MaxMessage))
			// During backoff, hints also wait. Otherwise, frequent changes would run a failing step without backoff.
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
		if l.Gap > 0 {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(l.Gap):
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
	if failures < 7 { // 100 ms << 7 exceeds the maximum
		d = min(maxBackoff, firstBackoff<<failures)
	}
	return d/2 + rand.N(d/2)
}
