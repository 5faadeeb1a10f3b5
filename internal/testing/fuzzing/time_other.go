//go:build !linux

package fuzzing

import "time"

var begin = time.Now()

func processorTime() time.Duration { return time.Since(begin) }
