package httplimit

import (
	"fmt"
	"hash/maphash"
	"log/slog"
	"net/netip"
	"strconv"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

// Limits of unaccepted credentials per client: FailureBurst at once, then FailureQPS per second. Machines with an old
// token stay below these limits, and no attacker can guess a credential at that rate.
const (
	FailureQPS   = 10
	FailureBurst = 100
)

// warnEvery is the minimum time between two warnings about the same limit.
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

// Exceeded is the error of a request that exceeds a limit.
type Exceeded struct {
	Reason string
	user   string
}

func (r *Exceeded) Error() string {
	switch r.Reason {
	case Overloaded:
		return "too many requests of this kind are in flight; try again"
	case clientInFlight:
		return "too many requests from your address are in flight; try again when some are done"
	case userInFlight:
		return fmt.Sprintf("user %q has too many requests in flight; try again when some are done", r.user)
	case failures:
		return "your address sends too many invalid credentials; try again later"
	case userRate:
		return fmt.Sprintf("user %q sends too many requests; try again later", r.user)
	}
	return "your address sends too many requests; try again later"
}

// A Kind selects the limits per client that apply to a request.
type Kind int

// The kinds.
const (
	Public        Kind = iota // checks no credential
	Probe                     // like Public, with a separate rate
	Authenticated             // checks a credential
	Reviews                   // like Authenticated, but without a rate for kube-apiserver
)

// A Limiter limits the rate and the concurrency of requests, per client and per user.
type Limiter struct {
	clients  *buckets // requests by client; nil means no limits per client
	probes   *buckets // probes by client
	failures *buckets // unaccepted credentials by client
	users    *buckets // requests by client and user; nil means no limits per user
	accepted accepted
	slots    map[Class]*slots
	log      *slog.Logger
	warnings map[string]*rate.Sometimes // log limiters by reason
}

// New returns a Limiter with these rates per client and per user, and with slots for the given classes.
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

// clientOf returns the client of a remote HOST:PORT; empty if the request did not come over a network.
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

// A Usage tracks one request against the limits. It is not safe for concurrent use.
type Usage struct {
	limiter    *Limiter
	slots      *slots
	kind       Kind
	client     string // empty without an address or without limits per client
	counted    string // the client to charge; empty for kube-apiserver
	credential string
	holder     string // of the slot: the counted client, or the user of a request without a client
	entered    bool
}

// Use returns the Usage of a request. New must have been called with class. remote is HOST:PORT. credential is empty
// if the request has none.
func (l *Limiter) Use(class Class, kind Kind, remote, credential string) *Usage {
	r := &Usage{limiter: l, slots: l.slots[class], kind: kind, credential: credential}
	if l.clients != nil {
		r.client = clientOf(remote)
	}
	if kind != Reviews || !l.accepted.has(r.client, kind, credential) {
		r.counted = r.client
	}
	return r
}

// Enter charges the client and takes a slot, or returns why the request is refused. Call it before any work for the
// request. known reports whether the credential is valid according to a cache. Enter calls known only for a client
// that has sent too many unaccepted credentials.
func (r *Usage) Enter(known func() bool) *Exceeded {
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
	r.entered, r.holder = true, r.counted
	if r.counted == "" || r.kind < Authenticated || l.failures.left(r.counted, now) || l.accepted.has(r.client, r.kind, r.credential) || known() {
		return nil
	}
	return r.refuse(failures, r.counted)
}

// Leave frees the slot.
func (r *Usage) Leave() {
	if r.entered {
		r.slots.leave(r.holder)
	}
}

// User charges the user of a request, or returns why the request is refused. It charges the user at this client only, so
// that one holder of a credential does not block the others. If credential is set, User charges only this credential: it
// may be outdated, and must not use up the user's rate. Without a client, the slot counts towards the user's share. With
// a client, the client's share also limits the user.
func (r *Usage) User(name, credential string) *Exceeded {
	users, key := r.limiter.users, strconv.Quote(name)+credential
	switch {
	case !users.take(r.client+key, time.Now()):
		return r.refuse(userRate, name)
	case users == nil || r.client != "", r.holder == key: // one slot for each request, however often it is charged
	case !r.slots.seat(key):
		return r.refuse(userInFlight, name)
	default:
		r.holder = key
	}
	return nil
}

// Accepted caches the credential as accepted for the user. It caches nothing for a client over its limit of
// unaccepted credentials. Otherwise, that client could continue to guess: it would send one good credential, and
// guesses in another header of the same requests.
func (r *Usage) Accepted(user string) {
	if r.client != "" && r.kind >= Authenticated && r.credential != "" && r.limiter.failures.left(r.client, time.Now()) {
		r.limiter.accepted.add(r.client, r.kind, r.credential, user)
	}
}

// Rejected charges the client for a credential that was not accepted.
func (r *Usage) Rejected() {
	if r.client != "" && r.kind >= Authenticated {
		r.limiter.failures.charge(r.client, time.Now())
		r.limiter.accepted.remove(r.client, r.kind, r.credential)
	}
}

// TooManyCertificates counts a request that the signer refused because of the user's certificate rate.
func (r *Usage) TooManyCertificates(user string) { r.refuse(certificateRate, user) }

// refuse counts a refusal, and logs at most one warning per warnEvery and reason.
func (r *Usage) refuse(reason, who string) *Exceeded {
	r.slots.refused[reason].Inc()
	l, class := r.limiter, string(r.slots.class)
	if reason == Overloaded {
		r.slots.overloaded.Do(func() {
			l.log.Warn("refusing requests, too many of this class in flight", "class", class, "limit", r.slots.most)
		})
	} else {
		l.warnings[reason].Do(func() {
			l.log.Warn("refusing requests, client or user over its limit", "reason", reason, "from", safetext.Text(who, safetext.MaxName), "class", class, "client", r.client)
		})
	}
	return &Exceeded{Reason: reason, user: who}
}
