//go:build !unix

package httplimit

// MaxConnections returns the maximum number of open connections of a server.
func MaxConnections() int { return mostConnections }
