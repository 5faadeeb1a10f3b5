// Package fuzzing holds what the fuzz targets of kubejoin share: the bound on the time that one
// input may take. It is used by tests alone.
package fuzzing

import (
	"flag"
	"runtime"
	"testing"
	"time"
)

// Most is the longest that a parser or a decision may take for one input.
const Most = 50 * time.Millisecond

// tries make up for a machine that is busy with other things: the input is at fault if it is
// slow each time.
const tries = 5

// Prompt runs act and fails the test if that takes longer than [Most] on a processor, also when
// it is done again. Where the code is instrumented it may take five times as long for the fuzzer
// and twenty times for the race detector, which is about what these cost at the worst.
func Prompt(t *testing.T, act func()) {
	t.Helper()
	most := Most
	if race {
		most *= 20
	}
	if f := flag.Lookup("test.fuzz"); f != nil && f.Value.String() != "" {
		most *= 5
	}
	runtime.LockOSThread() // whose clock it is
	defer runtime.UnlockOSThread()
	least := time.Duration(1<<63 - 1)
	for range tries {
		start := processorTime()
		act()
		if least = min(least, processorTime()-start); least <= most {
			return
		}
	}
	t.Errorf("this input took %s in the shortest of %d tries, %s allowed", least, tries, most)
}
