// Package fuzzing holds what the fuzz targets of kubejoin share: the bound on the work that one
// input may cost. It is used by tests alone.
package fuzzing

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Limit is the longest that a parser or a decision may take for one input, on a machine that is as
// fast as the one on which a unit of work takes usual.
const Limit = 50 * time.Millisecond

// usual is how long a unit of work takes on two idle cores of 2025.
const usual = 2 * time.Millisecond

// tries is how often a slow input is tried: it is at fault if it is slow each time.
const tries = 5

// unit is the work that others are compared with: a document to parse, as most inputs are.
var unit = []byte("[" + strings.Repeat(`{"name":"worker-1","values":[1,2.5,true,null,"\u00e4x"]},`, 4000) + "0]")

// RunWithinLimit runs act and fails the test if that takes longer than [Most] on a processor, also when it
// is done again. A machine that is slow, busy, or runs instrumented code gets longer: as many times
// longer as it takes for a unit of work.
func RunWithinLimit(t *testing.T, act func()) {
	t.Helper()
	runtime.LockOSThread() // whose clock it is
	defer runtime.UnlockOSThread()
	least, leastUnit := time.Duration(1<<63-1), time.Duration(1<<63-1)
	var most time.Duration
	for range tries {
		least = min(least, took(act))
		if least <= Limit {
			return
		}
		leastUnit = min(leastUnit, took(work))
		if most = scaled(leastUnit); least <= most {
			return
		}
	}
	t.Errorf("this input took %s in the shortest of %d tries, %s allowed, since a unit of work took %s", least, tries, most, leastUnit)
}

// scaled returns what is allowed where a unit of work takes so long.
func scaled(unit time.Duration) time.Duration {
	return time.Duration(float64(Limit) * max(1, float64(unit)/float64(usual)))
}

func took(act func()) time.Duration {
	start := processorTime()
	act()
	return processorTime() - start
}

func work() {
	var v any
	if err := json.Unmarshal(unit, &v); err != nil {
		panic(err) // of a constant
	}
}
