package httplimit

import (
	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

// A Class is a group of requests with its own slots. So a flood in one class does not use up the slots of other classes.
type Class string

// The classes, as metrics and logs name them.
const (
	Discovery    Class = "discovery"
	JoinCommands Class = "join-command"
	Lifecycle    Class = "lifecycle"
	Certificates Class = "certificate"
	TokenReviews Class = "token-review"
	Probes       Class = "probe"
	Others       Class = "other"
	Watches      Class = "watch"

	AccessReviews Class = "access-review"
)

// Maximum numbers of concurrent requests by class. Each request costs a goroutine and at most its body in memory.
const (
	MaxDiscovery     = 1024 // public, with shared responses
	MaxJoinCommands  = 512  // each may wait for its signature
	MaxLifecycle     = 64   // some list all tokens
	MaxCertificates  = 256  // most write a claim or read a token
	MaxTokenReviews  = 256  // kube-apiserver caches the responses
	MaxAccessReviews = 1024 // kubejoin answers from memory; one review for each request of a node
	MaxProbes        = 1024 // concurrent requests share one run of the checks
	MaxWatches       = 256  // most wait: one look at the cluster serves all
	MaxOthers        = 256  // metrics, the description of the API, unknown paths
)

var most = map[Class]int{
	Discovery: MaxDiscovery, JoinCommands: MaxJoinCommands, Lifecycle: MaxLifecycle,
	Certificates: MaxCertificates, TokenReviews: MaxTokenReviews, AccessReviews: MaxAccessReviews, Probes: MaxProbes, Others: MaxOthers, Watches: MaxWatches,
}

// slots are the slots of one class. Their holders are clients, and users without a client.
type slots struct {
	*Shares
	class    Class
	inFlight prometheus.Gauge
	refused  map[string]prometheus.Counter // counters by reason
	// overloaded limits the warnings about this class.
	overloaded rate.Sometimes
}

// newSlots returns the slots of these classes, with metrics in reg.
func newSlots(classes []Class, reg prometheus.Registerer) map[Class]*slots {
	inFlight := metrics.Gauge(reg, "kubejoin_http_requests_in_flight", "Requests in flight, by class.", "class")
	refused := metrics.Counter(reg, "kubejoin_http_requests_refused_total", "Requests refused, by class and reason: too many of the class in flight (overloaded), or the client or user is over a limit.", "class", "reason")
	all := map[Class]*slots{}
	for _, class := range classes {
		s := &slots{
			Shares: NewShares(most[class]), class: class, inFlight: inFlight.WithLabelValues(string(class)), refused: map[string]prometheus.Counter{},
			overloaded: rate.Sometimes{Interval: warnEvery},
		}
		for _, reason := range reasons {
			s.refused[reason] = refused.WithLabelValues(string(class), reason)
		}
		all[class] = s
	}
	return all
}

// enter takes a slot for the client, or for nobody if client is empty. If it gets none, it returns the reason to
// refuse the request.
func (s *slots) enter(client string) (reason string) {
	if reason = s.take(client); reason == "" {
		s.inFlight.Inc()
	}
	return reason
}

// leave frees a slot.
func (s *slots) leave(holder string) {
	s.Free(holder)
	s.inFlight.Dec()
}

// fair reports whether a holder may take one more slot. has is the number of slots that it holds. Of most slots,
// taken are in use. No holder gets more slots than are free. A rate limit is not enough, because a client that sends
// slowly or does not read holds each slot for seconds.
func fair(most, taken, has int) bool { return has < most-taken }

func less(count map[string]int, key string) {
	if count[key]--; count[key] <= 0 {
		delete(count, key)
	}
}
