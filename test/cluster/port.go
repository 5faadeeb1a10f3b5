package cluster

import (
	"fmt"
	"net"
	"strconv"
	"sync"
)

// FreePort returns ports from blocks. A process reserves a block by listening on the first port of the block until the
// process ends. Without blocks, another test process could take a port between FreePort and the start of the server.
const (
	firstPort = 20000
	lastPort  = 31999
	blockSize = 100
)

var ports = struct {
	sync.Mutex
	next, end int            // the unused part of the block
	nextBlock int            // start of the search for the next block
	held      []net.Listener // never closed
}{nextBlock: firstPort}

// FreePort returns a free port. No other call returns the same port, in this or another process. The port is below 32768,
// where the range for outgoing connections begins on Linux. In that range, a client that retries while the server is
// stopped could use the server's port as its own, and connect to itself.
func FreePort() (int, error) {
	ports.Lock()
	defer ports.Unlock()
	for {
		for ports.next < ports.end {
			port := ports.next
			ports.next++
			if l, err := listen(port); err == nil {
				return port, l.Close()
			}
		}
		if err := takeBlock(); err != nil {
			return 0, err
		}
	}
}

func takeBlock() error {
	for ports.nextBlock < lastPort {
		start := ports.nextBlock
		ports.nextBlock += blockSize
		if l, err := listen(start); err == nil {
			ports.held = append(ports.held, l)
			ports.next, ports.end = start+1, start+blockSize
			return nil
		}
	}
	return fmt.Errorf("no ports left from %d to %d", firstPort, lastPort)
}

func listen(port int) (net.Listener, error) {
	return net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(port)))
}
