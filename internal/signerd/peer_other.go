//go:build !linux

package signerd

import (
	"errors"
	"net"
)

// peerUID fails: only Linux is supported.
func peerUID(*net.UnixConn) (int, error) {
	return 0, errors.New("a Unix socket needs Linux: want --listen HOST:PORT")
}
