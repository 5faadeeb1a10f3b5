package fuzzing

import (
	"testing"
	"time"
)

// On a slow or busy machine, or with instrumented code, all work takes longer. So the limit must grow with the time
// of a unit of work.
func TestAllowsUnitsOfWork(t *testing.T) {
	for unit, want := range map[time.Duration]time.Duration{0: Limit, usual / 2: Limit, usual: Limit, 3 * usual: 3 * Limit} {
		if got := scaled(unit); got != want {
			t.Errorf("%s allowed where a unit takes %s, want %s", got, unit, want)
		}
	}
	RunWithinLimit(t, func() { // the same amount of work as the slowest known input
		for range 16 {
			work()
		}
	})
}
