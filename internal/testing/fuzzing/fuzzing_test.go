package fuzzing

import (
	"testing"
	"time"
)

// On a machine that is busy, slow or instrumented, all work takes longer and none of it more units.
func TestAllowsUnitsOfWork(t *testing.T) {
	for unit, want := range map[time.Duration]time.Duration{0: Limit, usual / 2: Limit, usual: Limit, 3 * usual: 3 * Limit} {
		if got := scaled(unit); got != want {
			t.Errorf("%s allowed where a unit takes %s, want %s", got, unit, want)
		}
	}
	RunWithinLimit(t, func() { // as much as the slowest input that is known, whatever the machine
		for range 16 {
			work()
		}
	})
}
