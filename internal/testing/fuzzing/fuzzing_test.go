package fuzzing

import (
	"testing"
	"time"
)

// A slow, busy or instrumented machine takes longer for all work, so the limit in units of work must hold there.
func TestAllowsUnitsOfWork(t *testing.T) {
	for unit, want := range map[time.Duration]time.Duration{0: Limit, usual / 2: Limit, usual: Limit, 3 * usual: 3 * Limit} {
		if got := scaled(unit); got != want {
			t.Errorf("%s allowed where a unit takes %s, want %s", got, unit, want)
		}
	}
	RunWithinLimit(t, func() { // as much work as the slowest known input
		for range 16 {
			work()
		}
	})
}
