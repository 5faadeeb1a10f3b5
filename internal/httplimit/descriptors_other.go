//go:build !unix

package httplimit

// MaxConnections returns how many connections a server has open at most.
func MaxConnections() int { return mostConnections }
