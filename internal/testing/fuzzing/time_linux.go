package fuzzing

import (
	"syscall"
	"time"
	"unsafe"
)

// processorTime returns the processor time of this thread, which excludes other programs. Getrusage would be too
// coarse, because it counts ticks.
func processorTime() time.Duration {
	const thread = 3 // CLOCK_THREAD_CPUTIME_ID
	var used syscall.Timespec
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, thread, uintptr(unsafe.Pointer(&used)), 0); errno != 0 {
		panic(errno) // only possible with invalid arguments
	}
	return time.Duration(used.Nano())
}
