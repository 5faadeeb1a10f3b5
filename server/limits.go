package server

import (
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/prometheus/client_golang/prometheus"
)

// Classes of requests.
const (
	classDiscovery   = "discovery"
	classJoinCommand = "join-command"
	classLifecycle   = "lifecycle"
	classCertificate = "certificate"
	classTokenReview = "token-review"
	classProbe       = "probe"
	classOther       = "other"
)

// How many requests of a class are answered at the same time. What one costs in memory is its
// goroutine and at most MaxBody.
const (
	// Anybody's, with answers that are shared.
	maxDiscovery = 1024
	// Those that ask for join commands, each of which may wait for its signature.
	maxJoinCommands = 512
	// Those that look at tokens and change them, some of which list all of them.
	maxLifecycle = 64
	// Those that ask for certificates, most of which write a claim or read a token first.
	maxCertificates = 256
	// Those of kube-apiserver, which asks once for all requests with the same token, and
	// remembers the answer.
	maxTokenReviews = 256
	// Those of whoever stops kubejoin where it does not answer. All who ask share what they wait for.
	maxProbes = 1024
	// Metrics, what describes the API, and paths that lead nowhere.
	maxOthers = 256
)

// answerTimeout is how long a client may take to read an answer. kubeadm gives a request 10 s
// in all.
const answerTimeout = 10 * time.Second

// restTimeout is how long a client may take to send the rest of a body that was not read. net/http waits
// for it before it sends the answer, when the place of the request has been given back, and closes the
// connection if it does not come.
const restTimeout = time.Second

// overloadedRetry is what a client is told to wait when too many have come at once.
const overloadedRetry = time.Second

// overloadedReport is the least time between two lines of the log about the same class.
const overloadedReport = 10 * time.Second

// A class is a group of requests with a bound of its own: a flood of one class leaves the
// others their room.
type class struct {
	name     string
	most     int
	inFlight prometheus.Gauge
	refused  map[string]prometheus.Counter // by reason
	reported reported

	mu    sync.Mutex
	taken int
	// How many of those are whose: by client, and by user as soon as that is known.
	clients, users map[string]int
}

// newClasses makes the classes of those names, whose metrics are in reg.
func newClasses(reg prometheus.Registerer, names map[string]bool) map[string]*class {
	most := map[string]int{
		classDiscovery: maxDiscovery, classJoinCommand: maxJoinCommands, classLifecycle: maxLifecycle,
		classCertificate: maxCertificates, classTokenReview: maxTokenReviews, classProbe: maxProbes, classOther: maxOthers,
	}
	inFlight := metrics.Gauge(reg, "kubejoin_http_requests_in_flight", "Requests being answered, by class.", "class")
	refused := metrics.Counter(reg, "kubejoin_http_requests_refused_total", "Requests refused before their work: too many of their class were in flight (overloaded), or their client or user has too many in flight or sends too many.", "class", "reason")
	all := map[string]*class{}
	for name := range names {
		c := &class{
			name: name, most: most[name], inFlight: inFlight.WithLabelValues(name), refused: map[string]prometheus.Counter{},
			clients: map[string]int{}, users: map[string]int{},
		}
		for _, reason := range reasons {
			c.refused[reason] = refused.WithLabelValues(name, reason)
		}
		all[name] = c
	}
	return all
}

// enter takes a place for a client, if that is known, or does not and says why at once: who waits
// in line would cost as much as who is served.
func (c *class) enter(client string) (refusal string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.taken >= c.most:
		return reasonOverloaded
	case client != "" && !fair(c.most, c.taken, c.clients[client]):
		return reasonClientInFlight
	case client != "":
		c.clients[client]++
	}
	c.taken++
	c.inFlight.Inc()
	return ""
}

// seat counts a place that is taken for its user, and reports whether he may have it.
func (c *class) seat(user string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !fair(c.most, c.taken-1, c.users[user]) {
		return false
	}
	c.users[user]++
	return true
}

// fair is whether one more may be had by who has so many, where so many of most are taken: nobody has more
// than are free, so that n who take what they can leave one part in n+1. Who sends bodies slowly, does
// not read answers or waits for signatures holds on to what it has for seconds, at a rate that is far
// below any that could be refused.
func fair(most, taken, has int) bool { return has < most-taken }

// leave gives back a place, and what was counted for a client and a user, if any.
func (c *class) leave(client, user string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taken--
	c.inFlight.Dec()
	less(c.clients, client)
	less(c.users, user)
}

func less(count map[string]int, key string) {
	if count[key]--; count[key] <= 0 {
		delete(count, key)
	}
}

// overloaded is the problem of a request that finds no place.
func overloaded() *problem {
	p := newProblem(http.StatusServiceUnavailable, "overloaded", "too many requests of this kind are being answered; try again")
	p.cause, p.retryAfter = errRefused, overloadedRetry
	return p
}

// crossOrigin is the problem of a request by which a page of another site would make use of the
// client certificate in somebody's browser, or nil. Nobody but browsers says where requests come from.
func crossOrigin(r *http.Request) *problem {
	if err := new(http.CrossOriginProtection).Check(r); err != nil {
		p := newProblem(http.StatusForbidden, "forbidden", "a browser sent this for a page of another site, by the header Sec-Fetch-Site or Origin")
		p.cause = err
		return p
	}
	return nil
}

// What a query may have at most. A server's bound on headers alone would let thousands of parameters
// through, and one that is not by HTTPServer a hundred thousand.
const (
	maxQuery      = 8 << 10 // half of what headers may have, so that it is refused here and not by HTTP/2
	maxParameters = 1000
)

// longQuery is the problem of a query that is not worth being read, or nil.
func longQuery(r *http.Request) *problem {
	if q := r.URL.RawQuery; len(q) > maxQuery || strings.Count(q, "&") >= maxParameters {
		return newProblem(http.StatusRequestURITooLong, "query-too-long", "the query has %d bytes; want %d bytes and %d parameters at most", len(q), maxQuery, maxParameters)
	}
	return nil
}

// limitAnswer bounds the time in which the client has to read the answer, and to send what is left of
// its request.
func limitAnswer(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	// They fail for a writer that has no deadlines, which has no connection either. A server without a
	// timeout of its own would never lift that of writing from the connection.
	if s, ok := r.Context().Value(http.ServerContextKey).(*http.Server); ok && s.WriteTimeout > 0 {
		_ = control.SetWriteDeadline(time.Now().Add(answerTimeout))
	}
	if r.ProtoMajor == 1 && r.ContentLength != 0 {
		_ = control.SetReadDeadline(time.Now().Add(restTimeout))
	}
}
