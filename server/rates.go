package server

import (
	"errors"
	"hash/maphash"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubejoin/kubejoin/internal/foreign"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer"
)

// A Rate is how often something may happen: QPS times a second in the long run, and Burst times
// at once after a while without. The zero Rate stands for a default, and a QPS below zero for no
// limit. A Burst of zero is as many as QPS, one at least.
type Rate struct {
	QPS   float64
	Burst int
}

// Rates where a Server says nothing else.
const (
	// Two racks of a thousand machines behind one address may all discover, ask for a join command
	// and for a certificate in the same second, with a new connection each time.
	DefaultClientQPS   = 1000
	DefaultClientBurst = 10_000
	// Those machines may all do so as one user, be it an operator or a bootstrap token.
	DefaultUserQPS   = 100
	DefaultUserBurst = 2000
)

// How often a client may show credentials that are not accepted: some machines may have an old
// token, and nobody guesses one in 100 tries and 10 more a second.
const (
	failureQPS   = 10
	failureBurst = 100
)

// Reasons to refuse a request before its work is done.
const (
	reasonOverloaded     = "overloaded"
	reasonClientInFlight = "client-in-flight"
	reasonUserInFlight   = "user-in-flight"
	reasonClientRate     = "client-rate"
	reasonFailures       = "failed-authentications"
	reasonUserRate       = "user-rate"
	reasonCertificates   = "certificate-rate" // the work that comes before a certificate is done
)

var reasons = []string{reasonOverloaded, reasonClientInFlight, reasonUserInFlight, reasonClientRate, reasonFailures, reasonUserRate, reasonCertificates}

// errRefused is the cause of problems that were refused without work, of which a flood is expected.
var errRefused = errors.New("too many requests")

// or is r, or the default if it is zero.
func (r Rate) or(qps float64, burst int) Rate {
	if r == (Rate{}) {
		return Rate{qps, burst}
	}
	return r
}

func (s *Server) clientRate() Rate { return s.ClientRate.or(DefaultClientQPS, DefaultClientBurst) }

// rates bound what one client does and what one user does, in a second and at the same time.
type rates struct {
	clients  *buckets // requests by address
	probes   *buckets // the same for routes that keep kubejoin alive, which nothing else is to use up
	failures *buckets // credentials not accepted, by address
	users    *buckets // requests by user
	letIn    letIn
	log      *slog.Logger
	reported [6]reported // by the index of the reason, but for the first
}

func newRates(s *Server, log *slog.Logger) *rates {
	r := &rates{clients: newBuckets(s.clientRate()), users: newBuckets(s.UserRate.or(DefaultUserQPS, DefaultUserBurst)), log: log}
	if r.clients != nil {
		r.probes, r.failures = newBuckets(s.clientRate()), newBuckets(Rate{failureQPS, failureBurst})
	}
	r.letIn.seed = maphash.MakeSeed()
	return r
}

// clientOf is whom requests from an address are counted for: the address, or the /64 that an IPv6
// address is in, of which one machine may have all. It is empty for what has come over no network.
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

// A kind of route says what is asked of a request before its work.
type kind int

const (
	public        kind = iota // anybody's
	probe                     // anybody's, counted apart: whoever runs kubejoin stops it where it does not answer
	authenticated             // looks at credentials
	reviews                   // kube-apiserver's, which asks for all its clients
)

// counted is the client that a request is counted for. It is empty if that is nobody: kube-apiserver
// asks for all its clients.
func (s *rates) counted(r *http.Request, of kind) string {
	client := clientOf(r.RemoteAddr)
	if s.clients == nil || of == reviews && s.letIn.has(client, of, credential(r)) {
		return ""
	}
	return client
}

// refuse is the problem of a request whose client, unless that is nobody, sends too many, or nil. It
// is called before anything is done for the request.
func (s *rates) refuse(client string, of kind, class *class) *problem {
	requests := s.clients
	if of == probe {
		requests = s.probes
	}
	if now := time.Now(); client != "" && !requests.take(client, now) {
		s.refused(reasonClientRate, class, client, now)
		return tooMany("too many requests come from your address; try again later")
	}
	return nil
}

// guess is the problem of a request whose client has shown too many credentials that were not
// accepted, or nil.
//
// Those are counted much more strictly than requests. A client that has shown too many is refused
// before those of its next request are looked at, or its guesses would go on. That would let a machine
// keep all others behind the same address out, so those who have been let in from there before are
// still looked at, and so are bootstrap tokens that there are, where machines come with them for the
// first time. Such a client can go on guessing these two as often as its requests allow; the secret of
// a bootstrap token is one of 2^82. What an Authenticate finds elsewhere than in an Authorization
// header or a client certificate is not seen here: none of it is looked at then.
func (s *rates) guess(client string, r *http.Request, of kind, class *class, isToken func(*http.Request) bool) *problem {
	now := time.Now()
	if client == "" || of < authenticated || s.failures.left(client, now) || s.letIn.has(client, of, credential(r)) || class.name == classCertificate && isToken(r) {
		return nil
	}
	s.refused(reasonFailures, class, client, now)
	return tooMany("too many credentials that are not accepted come from your address; try again later")
}

// enter takes a place in a class, which is counted for the client unless that is nobody. The problem
// says why there is none.
func (s *rates) enter(client string, class *class) *problem {
	switch reason := class.enter(client); reason {
	case "":
		return nil
	case reasonClientInFlight:
		s.refused(reason, class, client, time.Now())
		return tooMany("too many requests from your address are being answered; try again when they have been")
	default:
		class.refused[reason].Inc()
		if class.reported.due(time.Now()) {
			s.log.Warn("requests are refused, since too many of their class are in flight", "class", class.name, "allowed", class.most)
		}
		return overloaded()
	}
}

// judge notes what became of the credentials of a request. While a client has shown too many that were not accepted
// nothing new is remembered of it: one good credential beside guesses would have them all looked at.
func (s *rates) judge(r *http.Request, of kind, user User, err error) {
	client, now := clientOf(r.RemoteAddr), time.Now()
	if client == "" || of < authenticated || s.clients == nil {
		return
	}
	switch shown := credential(r); {
	case errors.Is(err, ErrBadCredentials):
		s.failures.charge(client, now)
		s.letIn.remove(client, of, shown)
	case shown != "" && user.Name != "" && s.failures.left(client, now):
		s.letIn.add(client, of, shown, user.Name)
	}
}

// user is the problem of a user who sends too many requests, or nil. From then on the place of the
// request is counted for him as well.
func (s *rates) user(seen *noted, name string) *problem {
	now := time.Now()
	switch {
	case !s.users.take(name, now):
		s.refused(reasonUserRate, seen.class, name, now)
		return tooMany("user %q sends too many requests; try again later", name)
	case s.users == nil || seen.class == nil:
	case !seen.class.seat(name):
		s.refused(reasonUserInFlight, seen.class, name, now)
		return tooMany("too many requests of user %q are being answered; try again when they have been", name)
	default:
		seen.seated = name
	}
	return nil
}

// certificate notes that a user was refused one by the signer's rate, if that is the error.
func (s *rates) certificate(r *http.Request, user User, err error) {
	var p *problem
	if seen, ok := r.Context().Value(notedKey{}).(*noted); ok && errors.As(err, &p) && p.Reason == signer.ReasonTooManyCertificates {
		s.refused(reasonCertificates, seen.class, user.Name, time.Now())
	}
}

// refused counts, and tells the log now and then.
func (s *rates) refused(reason string, class *class, who string, now time.Time) {
	if class == nil {
		return
	}
	class.refused[reason].Inc()
	for i, known := range reasons[1:] { // the class itself tells of the first
		if known == reason && s.reported[i].due(now) {
			s.log.Warn("requests are refused, since too many come from one", "reason", reason, "from", foreign.Text(who, foreign.MaxName), "class", class.name)
		}
	}
}

// tooMany is the problem of who has sent too many. Those who are refused together are not to come
// back together.
func tooMany(format string, args ...any) *problem {
	p := newProblem(http.StatusTooManyRequests, api.ProblemTooManyRequests, format, args...)
	p.cause, p.retryAfter = errRefused, time.Duration(1+rand.IntN(4))*time.Second
	return p
}

// credential returns the credential of a request: scheme and credentials of its Authorization header, in one spelling, or
// else its client certificate. It is empty without either, and for a header that no route accepts.
func credential(r *http.Request) string {
	if given := r.Header.Values("Authorization"); len(given) > 0 {
		if scheme, credentials := parseAuthorization(given[0]); len(given) == 1 && credentials != "" {
			return scheme + " " + credentials
		}
		return ""
	}
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		return string(r.TLS.PeerCertificates[0].Raw)
	}
	return ""
}

// credentialsOfUser is how many credentials of one user are remembered, the latest of them.
const credentialsOfUser = 16

// letIn remembers which credentials were accepted from where, by the kind of what was asked, when they
// were last looked at: hashes under a key of this process. Each has two places, and takes one of
// another only where both are taken. Users share a list of their latest where a hash of them is the same.
type letIn struct {
	seed  maphash.Seed
	table [bucketRows][bucketSlots]atomic.Uint64

	mu    sync.Mutex
	users [bucketSlots][credentialsOfUser]uint64
}

// hash tells credentials apart by the client and the kind as well.
func (a *letIn) hash(client string, of kind, shown string) uint64 {
	return maphash.String(a.seed, strconv.Itoa(int(of))+" "+client+" "+shown)
}

// places are where a hash may be.
func (a *letIn) places(hash uint64) (places [bucketRows]*atomic.Uint64) {
	for i := range places {
		places[i] = &a.table[i][hash>>(32*i)%bucketSlots]
	}
	return places
}

func (a *letIn) add(client string, of kind, shown, user string) {
	if a.has(client, of, shown) {
		return
	}
	hash := a.hash(client, of, shown)
	a.mu.Lock()
	defer a.mu.Unlock()
	latest := &a.users[maphash.String(a.seed, client+" "+user)%bucketSlots]
	a.forget(latest[credentialsOfUser-1])
	copy(latest[1:], latest[:])
	latest[0] = hash
	places := a.places(hash)
	for _, place := range places {
		if place.CompareAndSwap(0, hash) {
			return
		}
	}
	places[rand.IntN(bucketRows)].Store(hash)
}

func (a *letIn) remove(client string, of kind, shown string) { a.forget(a.hash(client, of, shown)) }

func (a *letIn) forget(hash uint64) {
	for _, place := range a.places(hash) {
		place.CompareAndSwap(hash, 0)
	}
}

func (a *letIn) has(client string, of kind, shown string) bool {
	hash := a.hash(client, of, shown)
	places := a.places(hash)
	return slices.ContainsFunc(places[:], func(place *atomic.Uint64) bool { return place.Load() == hash })
}

// reported is when the log was told last, in Unix nanoseconds.
type reported struct{ atomic.Int64 }

// due is whether it is to be told again.
func (r *reported) due(now time.Time) bool {
	last := r.Load()
	return now.UnixNano()-last > int64(overloadedReport) && r.CompareAndSwap(last, now.UnixNano())
}
