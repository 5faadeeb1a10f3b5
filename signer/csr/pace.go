package csr

import "time"

const (
	// callsPerSecond is more than a control plane can handle. By Little's law, n requests in progress make n/latency
	// calls a second, since each makes its calls one after the other.
	callsPerSecond = 4000
	// leastInProgress is the limit with an API server nearby. Requests then wait for processors and for the disk.
	leastInProgress = 80
	// latencyAge is how long a write counts, at least, and at most twice as long if the control plane is not busy.
	latencyAge = 10 * time.Second
)

// A pace is the limit of requests in progress: as many as callsPerSecond takes with the latency of the API server. The
// latency is that of the fastest write of late. Writes of a time with many requests in progress come on top of earlier
// ones: all of them may wait for a busy control plane, or for a rate limit of the client. So the limit follows the distance
// to the API server and not its load.
type pace struct {
	most  int // requests in progress, whatever the latency
	limit int

	since        time.Time     // when fastest began
	fastest, old time.Duration // shortest write since then, and in the time before; 0 is none
}

func newPace(most int) pace {
	p := pace{most: most}
	p.restart()
	return p
}

// restart returns to the smallest limit.
func (p *pace) restart() { p.limit = min(leastInProgress, p.most) }

// wrote adjusts the limit after a write that took a time beside requests in progress. The limit grows by two at a time: client-go opens a
// connection for each call that finds all connections full, and kube-apiserver allows 100 calls on one.
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
