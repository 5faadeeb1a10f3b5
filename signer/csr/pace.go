package csr

import "time"

const (
	// callsPerSecond is more than a control plane can handle. Each request makes its calls one after the other, so by
	// Little's law, n requests in progress make n/latency calls a second.
	callsPerSecond = 4000
	// leastInProgress is the limit if the latency is low. Requests then wait for processors and for the disk.
	leastInProgress = 80
	// A pace uses the latency of a write for at least latencyAge, and for at most twice that time. While
	// leastInProgress or more requests are in progress, it uses the latency for longer.
	latencyAge = 10 * time.Second
)

// A pace is the limit on requests in progress: the number of requests that make callsPerSecond calls at the latency of
// the API server. The latency is the duration of the fastest recent write. While many requests are in progress, earlier
// writes stay recent: all current writes may wait for a busy control plane, or for a rate limit of the client. So the
// limit follows the distance to the API server and not its load.
type pace struct {
	most  int // maximum of limit, at any latency
	limit int

	since        time.Time     // when fastest began
	fastest, old time.Duration // shortest write since then, and in the period before; 0 if nothing was written
}

func newPace(most int) pace {
	p := pace{most: most}
	p.restart()
	return p
}

// restart returns to the smallest limit.
func (p *pace) restart() { p.limit = min(leastInProgress, p.most) }

// wrote adjusts the limit after a write, given its duration and the number of requests in progress. The limit grows by
// two at a time: client-go opens a connection for each call that finds all connections full, and kube-apiserver allows
// 100 calls on one connection.
func (p *pace) wrote(took time.Duration, inProgress int, now time.Time) {
	if age := now.Sub(p.since); age >= latencyAge && inProgress < leastInProgress {
		p.old = p.fastest
		if age >= 2*latencyAge {
			p.old = 0
		}
		p.since, p.fastest = now, 0
	}
	if p.fastest == 0 || took < p.fastest {
		p.fastest = took
	}
	latency := p.fastest
	if p.old > 0 {
		latency = min(latency, p.old)
	}
	want := max(leastInProgress, int(callsPerSecond*latency.Seconds()))
	p.limit = min(want, p.limit+2, p.most)
}
