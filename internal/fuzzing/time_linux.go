package fuzzing

import (
	"syscall"
	"time"
)

// processorTime is what this thread has used of a processor: other programs do not count.
func processorTime() time.Duration {
	const thread = 1 // RUSAGE_THREAD
	var used syscall.Rusage
	if err := syscall.Getrusage(thread, &used); err != nil {
		panic(err) // documented for wrong arguments alone
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
