package main

import "os"

// garbageRoom is how much more garbage gathers before it is collected, in bytes.
const garbageRoom = 16 << 20

// roomForGarbage is memory that is never touched, and so takes none: but the garbage collector
// counts it as used, and lets garbage gather until there is as much of it. It would run fifty times
// a second otherwise when many certificates are asked for, since kubejoin has little in memory,
// and does not notice it when it has much. Who sets GOGC or GOMEMLIMIT has said how it is to be.
func roomForGarbage() []byte {
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} {
		if os.Getenv(name) != "" {
			return nil
		}
	}
	return make([]byte, garbageRoom)
}
