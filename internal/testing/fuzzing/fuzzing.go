// Package fuzzing limits the processor time that one input of a fuzz target may take. Only tests use it.
package fuzzing

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Limit is the processor time for one input of a parser or a decision, on a machine on which a unit of work takes usual.
const Limit = 50 * time.Millisecond

// usual is how long a unit of work takes on two idle cores of 2025.
const usual = 2 * time.Millisecond

// tries is how often [RunWithinLimit] runs a slow input before it fails the test.
const tries = 5

// unit is the reference work: parsing this JSON document. Most inputs are also documents to parse.
var unit = []byte("[" + strings.Repeat(`{"name":"worker-1","values":[1,2.5,true,null,"\u00e4x"]},`, 4000) + "0]")

// RunWithinLimit runs act, and fails the test if each of several runs takes more processor time than [Limit]. The limit grows
// with the time that this machine takes for a unit of work, because it may be slow or busy, or run instrumented code.
func RunWithinLimit(t *testing.T, act func()) {
	t.Helper()
	runtime.LockOSThread() // processorTime returns the time of one thread
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

// scaled returns the limit on a machine on which a unit of work takes this time.
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
		panic(err) // unit is a constant
	}
}
