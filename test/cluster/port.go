package cluster

import (
	"fmt"
	"net"
	"strconv"
	"sync"
)

// Ports are given from blocks. Who listens on the first port of a block has the block until its
// process ends: tests of several packages run at once, and the server that a port is for starts
// only after the port was found to be free.
const (
	firstPort = 20000
	lastPort  = 31999
	blockSize = 100
)

var ports = struct {
	sync.Mutex
	next, end int            // what is left of the block
	nextBlock int            // where the search for another goes on
	held      []net.Listener // never closed
}{nextBlock: firstPort}

// FreePort finds a port that nobody listens on, and gives it to this process alone, once. It is
// below the range from which Linux takes the ports of outgoing connections (32768 and up): from
// that range a client that tries again and again while the server is stopped would take the port
// away, or connect to itself.
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
