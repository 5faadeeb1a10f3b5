package server

import (
	"crypto/x509"
	"hash/maphash"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Bounds that tests go up to.
const (
	MaxDiscovery    = maxDiscovery
	MaxJoinCommands = maxJoinCommands
	MaxLifecycle    = maxLifecycle
	MaxTokenReviews = maxTokenReviews
	MaxCertificates = maxCertificates
	MaxProbes       = maxProbes
)

// LimitConnections is the ConnState of a server that holds so many connections at most.
func LimitConnections(most int, rate Rate, reg prometheus.Registerer) func(net.Conn, http.ConnState) {
	return newConnections(most, newBuckets(rate), reg).changed
}

// Places are those of a class.
type Places struct{ c *class }

func PlacesOfDiscovery() Places {
	return Places{newClasses(prometheus.NewRegistry(), map[string]bool{classDiscovery: true})[classDiscovery]}
}

func (p Places) Enter(client string) bool { return p.c.enter(client) == "" }

func (p Places) Leave(client string) { p.c.leave(client, "") }

// FailureBurst is how many credentials of a client may fail at once, and FailureQPS in each second from then on.
const (
	FailureBurst = failureBurst
	FailureQPS   = failureQPS
)

// Buckets are those of keys, at a rate.
type Buckets struct{ b *buckets }

func NewBuckets(r Rate) Buckets { return Buckets{newBuckets(r)} }

func (b Buckets) Take(key string, now time.Time) bool { return b.b.take(key, now) }

// Used is how many buckets there are.
func (b Buckets) Used() (n int) {
	for i := range b.b.table {
		for j := range b.b.table[i] {
			if b.b.table[i][j].Load() != nil {
				n++
			}
		}
	}
	return n
}

// LetIn are the credentials of one client that were accepted.
type LetIn struct{ a *letIn }

func NewLetIn() LetIn { return LetIn{&letIn{seed: maphash.MakeSeed()}} }

func (l LetIn) Add(shown string) { l.a.add("client", authenticated, shown, shown) }

func (l LetIn) Remove(shown string) { l.a.remove("client", authenticated, shown) }

func (l LetIn) Has(shown string) bool { return l.a.has("client", authenticated, shown) }

// Beside is another credential, one of whose places is one of this one's.
func (l LetIn) Beside(shown string) string {
	taken := l.a.places(l.a.hash("client", authenticated, shown))
	for i := 0; ; i++ {
		other := strconv.Itoa(i)
		if places := l.a.places(l.a.hash("client", authenticated, other)); other != shown && (places[0] == taken[0]) != (places[1] == taken[1]) {
			return other
		}
	}
}

// SerialOf reads a chain.
var SerialOf = serialOf

// A Route is one of Handler's.
type Route struct {
	Method, Path, Name string
	Access             Access
}

// Routes are all that the handler of s answers.
func (s Server) Routes() []Route {
	var all []Route
	for _, on := range (&handler{Server: s}).routes() {
		all = append(all, Route{on.method, on.path, on.name, on.access})
	}
	return all
}

// CheckChain checks the certificates that a client shows, as the handshake does.
func CheckChain(der []byte) error {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return err
	}
	return checkChain([]*x509.Certificate{cert})
}

// Verified caches what [ClientCertificate.Remembering] does.
type Verified struct{ v verified }

func (v *Verified) Verify(shown []*x509.Certificate, roots *x509.CertPool, now time.Time) error {
	return v.v.verify(shown, roots, now)
}

// RememberingIn is c.Remembering, and how many good and bad chains it has cached.
func RememberingIn(c ClientCertificate) (way Authenticate, known func() (good, bad int)) {
	v := &verified{}
	return func(r *http.Request) (User, error) { return c.authenticate(r, v) }, func() (good, bad int) { return len(v.good), len(v.bad) }
}
