package httplimit

import (
	"fmt"
	"hash/maphash"
	"log/slog"
	"net/netip"
	"time"

	"github.com/kubejoin/kubejoin/internal/foreign"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

// How many credentials that are not accepted a client may send: FailureBurst at once, then FailureQPS a second. Some
// machines may have an old token, and nobody guesses one with so few tries.
const (
	FailureQPS   = 10
	FailureBurst = 100
)

// warnEvery is the least time between two warnings about the same limit.
const warnEvery = 10 * time.Second

// Reasons to refuse a request, as metrics and logs name them.
const (
	Overloaded      = "overloaded"
	clientInFlight  = "client-in-flight"
	userInFlight    = "user-in-flight"
	clientRate      = "client-rate"
	failures        = "failed-authentications"
	userRate        = "user-rate"
	certificateRate = "certificate-rate"
)

var reasons = []string{Overloaded, clientInFlight, userInFlight, clientRate, failures, userRate, certificateRate}

// A Refusal is the error of a request that exceeds a limit.
type Refusal struct {
	Reason string
	user   string
}

func (r *Refusal) Error() string {
	switch r.Reason {
	case Overloaded:
		return "too many requests of this kind are being answered; try again"
	case clientInFlight:
		return "too many requests from your address are being answered; try again when they have been"
	case userInFlight:
		return fmt.Sprintf("too many requests of user %q are being answered; try again when they have been", r.user)
	case failures:
		return "too many credentials that are not accepted come from your address; try again later"
	case userRate:
		return fmt.Sprintf("user %q sends too many requests; try again later", r.user)
	}
	return "too many requests come from your address; try again later"
}

// A Kind says which limits of clients a request has.
type Kind int

// The kinds.
const (
	Public        Kind = iota // looks at no credential
	Probe                     // the same, with a rate of its own
	Authenticated             // looks at a credential
	Reviews                   // the same, and kube-apiserver has no rate
)

// A Limiter limits the rate and the concurrency of requests, per client and per user.
type Limiter struct {
	clients  *buckets // requests by client; nil: no limits per client
	probes   *buckets // probes by client
	failures *buckets // unaccepted credentials by client
	users    *buckets // requests by user; nil: no limits per user
	accepted accepted
	slots    map[Class]*slots
	log      *slog.Logger
	warnings map[string]*rate.Sometimes // by reason
}

// New returns a Limiter with these rates per client and per user. It has slots only for the given classes.
func New(clients, users Rate, classes []Class, reg prometheus.Registerer, log *slog.Logger) *Limiter {
	l := &Limiter{clients: newBuckets(clients), users: newBuckets(users), slots: newSlots(classes, reg), log: log, warnings: map[string]*rate.Sometimes{}}
	for _, reason := range reasons {
		l.warnings[reason] = &rate.Sometimes{Interval: warnEvery}
	}
	if l.clients != nil {
		l.probes, l.failures = newBuckets(clients), newBuckets(Rate{FailureQPS, FailureBurst})
	}
	l.accepted.seed = maphash.MakeSeed()
	return l
}

// clientOf returns the client of a remote HOST:PORT, which is empty for a request that came over no network.
func clientOf(remote string) string {
	from, err := netip.ParseAddrPort(remote)
	if err != nil {
		return ""
	}
	address := from.Addr().Unmap().WithZone("")
	if address.Is4() {
		return address.String()
	}
	prefix, err := address.Prefix(64)
	if err != nil {
		return ""
	}
	return prefix.String()
}

// A Request is one request as its limits see it. It is used by one goroutine.
type Request struct {
	limiter    *Limiter
	slots      *slots
	kind       Kind
	client     string // empty if there is none, or no limit of clients
	counted    string // the client that is charged: empty for kube-apiserver
	credential string
	user       string // that its slot is counted for
	entered    bool
}

// Request describes a request: its class, one that New was given, its kind, the remote HOST:PORT and the credential that
// it shows, which is empty if there is none.
func (l *Limiter) Request(class Class, kind Kind, remote, credential string) *Request {
	r := &Request{limiter: l, slots: l.slots[class], kind: kind, credential: credential}
	if l.clients != nil {
		r.client = clientOf(remote)
	}
	if kind != Reviews || !l.accepted.has(r.client, kind, credential) {
		r.counted = r.client
	}
	return r
}

// Enter charges the client and takes a slot, or returns why the request is refused. Nothing has been done for the request
// before. known reports whether the server knows the credential without asking a store; Enter calls it only for a client
// that has sent too many credentials that were not accepted.
func (r *Request) Enter(known func() bool) *Refusal {
	l, now := r.limiter, time.Now()
	requests := l.clients
	if r.kind == Probe {
		requests = l.probes
	}
	if r.counted != "" && !requests.take(r.counted, now) {
		return r.refuse(clientRate, r.counted)
	}
	if reason := r.slots.enter(r.counted); reason != "" {
		return r.refuse(reason, r.counted)
	}
	r.entered = true
	if r.counted == "" || r.kind < Authenticated || l.failures.left(r.counted, now) || l.accepted.has(r.client, r.kind, r.credential) || known() {
		return nil
	}
	return r.refuse(failures, r.counted)
}

// Leave gives the slot back.
func (r *Request) Leave() {
	if r.entered {
		r.slots.leave(r.counted, r.user)
	}
}

// User charges the user who sent the request and counts its slot for them, or returns why the request is refused.
func (r *Request) User(name string) *Refusal {
	users := r.limiter.users
	switch {
	case !users.take(name, time.Now()):
		return r.refuse(userRate, name)
	case users == nil:
	case !r.slots.seat(name):
		return r.refuse(userInFlight, name)
	default:
		r.user = name
	}
	return nil
}

// Accepted remembers the credential, which is the user's. A client that has sent too many bad ones adds none: one good
// credential beside guesses would have all of them looked at.
func (r *Request) Accepted(user string) {
	if r.client != "" && r.kind >= Authenticated && r.credential != "" && r.limiter.failures.left(r.client, time.Now()) {
		r.limiter.accepted.add(r.client, r.kind, r.credential, user)
	}
}

// Rejected charges the client for a credential that was not accepted.
func (r *Request) Rejected() {
	if r.client != "" && r.kind >= Authenticated {
		r.limiter.failures.charge(r.client, time.Now())
		r.limiter.accepted.remove(r.client, r.kind, r.credential)
	}
}

// TooManyCertificates counts a request of the user that the signer refused by its own rate.
func (r *Request) TooManyCertificates(user string) { r.refuse(certificateRate, user) }

// refuse counts a refusal and sometimes logs a warning.
func (r *Request) refuse(reason, who string) *Refusal {
	r.slots.refused[reason].Inc()
	l, class := r.limiter, string(r.slots.class)
	if reason == Overloaded {
		r.slots.overloaded.Do(func() {
			l.log.Warn("refusing requests, too many of this class in flight", "class", class, "limit", r.slots.most)
		})
	} else {
		l.warnings[reason].Do(func() {
			l.log.Warn("refusing requests, client or user over its limit", "reason", reason, "from", foreign.Text(who, foreign.MaxName), "class", class)
		})
	}
	return &Refusal{Reason: reason, user: who}
}
