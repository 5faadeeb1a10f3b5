package server

import (
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/prometheus/client_golang/prometheus"
)

// How many requests of a class are answered at the same time. What one costs in memory is its
// goroutine and at most MaxBody.
const (
	// Anybody's. Answers are shared, so that a slow reader costs its connection and no more.
	maxDiscovery = 1024
	// Those that ask for join commands, each of which may wait for its signature.
	maxJoinCommands = 512
	// Those that look at tokens and change them, some of which list all of them.
	maxLifecycle = 64
	// Probes, metrics, and paths that lead nowhere.
	maxOthers = 256
)

// answerTimeout is how long a client may take to read an answer. kubeadm gives a request 10 s
// in all.
const answerTimeout = 10 * time.Second

// overloadedRetry is what a client is told to wait when too many have come at once.
const overloadedRetry = time.Second

// overloadedReport is the least time between two lines of the log about the same class.
const overloadedReport = 10 * time.Second

var errOverloaded = errors.New("too many requests at once")

// A class is a group of requests with a bound of its own: a flood of one class leaves the
// others their room.
type class struct {
	name     string
	slots    chan struct{}
	inFlight prometheus.Gauge
	refused  prometheus.Counter
	reported atomic.Int64 // when the log was told last, in Unix nanoseconds
}

// classes makes classes, whose metrics are in reg.
func classes(reg prometheus.Registerer) func(name string, slots int) *class {
	inFlight := metrics.Gauge(reg, "kubejoin_http_requests_in_flight", "Requests being answered, by class.", "class")
	refused := metrics.Counter(reg, "kubejoin_http_requests_refused_total", "Requests refused because too many of their class were in flight.", "class")
	return func(name string, slots int) *class {
		return &class{name: name, slots: make(chan struct{}, slots), inFlight: inFlight.WithLabelValues(name), refused: refused.WithLabelValues(name)}
	}
}

// enter takes a slot, or does not and returns false at once: who waits in line would cost as
// much as who is served.
func (c *class) enter(log *slog.Logger) bool {
	select {
	case c.slots <- struct{}{}:
		c.inFlight.Inc()
		return true
	default:
	}
	c.refused.Inc()
	now := time.Now().UnixNano()
	if last := c.reported.Load(); now-last > int64(overloadedReport) && c.reported.CompareAndSwap(last, now) {
		log.Warn("requests are refused, since too many of their class are in flight", "class", c.name, "allowed", cap(c.slots))
	}
	return false
}

func (c *class) leave() {
	c.inFlight.Dec()
	<-c.slots
}

// overloaded is the action of a request that finds no slot.
func overloaded(*http.Request) (answer, error) {
	p := newProblem(http.StatusServiceUnavailable, "overloaded", "too many requests of this kind are being answered; try again")
	p.cause, p.retryAfter = errOverloaded, overloadedRetry
	return answer{}, p
}

// limitAnswer bounds the time in which the client has to read the answer.
func limitAnswer(w http.ResponseWriter, r *http.Request) {
	// A server without a timeout of its own would never lift this one from the connection.
	if s, ok := r.Context().Value(http.ServerContextKey).(*http.Server); ok && s.WriteTimeout > 0 {
		// It fails for a writer that has no deadlines, which has no connection either.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTimeout))
	}
}
