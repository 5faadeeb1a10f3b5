//go:build unix

package httplimit

import "syscall"

// MaxConnections returns the maximum number of open connections of a server. It reserves a quarter of the file
// descriptors for the rest of the program.
func MaxConnections() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || uint64(limit.Cur) > 2*mostConnections {
		return mostConnections
	}
	return min(mostConnections, int(limit.Cur)/4*3)
}
