package server_test

import (
	"bufio"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/web/httplimit"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A stranger is a client without a valid credential. It has the certificate that the client presents, and the body
// that it sends.
type stranger struct {
	name  string
	shown tls.Certificate
	body  string
}

// ask sends a request for a certificate over a connection that has presented the certificate.
func (s stranger) ask(c io.Writer, answers *bufio.Reader) (status int, err error) {
	_, _ = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: kubejoin\r\nContent-Length: %d\r\n\r\n%s", certificatePath, len(s.body), s.body) // the response has the error
	answer, err := http.ReadResponse(answers, nil)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, err
}

// strangers returns clients without a valid credential that pass the handshake and cause work. The first one is the
// reference: an expired certificate from a CA with the name of the real CA.
func strangers(t testing.TB) []stranger {
	t.Helper()
	ca := newSite(t).ca
	m := machine{node: "worker-1", key: csrtest.NewKey()}
	usual := m.expired(t, ca, nil)
	forged := func(many int, edit func(*x509.Certificate)) tls.Certificate {
		above := m.expired(t, ca, func(c *x509.Certificate) {
			c.Subject, c.IsCA, c.BasicConstraintsValid, c.KeyUsage = pkix.Name{CommonName: "kubernetes"}, true, true, x509.KeyUsageCertSign
			c.NotAfter = c.NotAfter.AddDate(1, 0, 0)
			if edit != nil {
				edit(c)
			}
		})
		return chainOf(slices.Concat([]tls.Certificate{usual}, slices.Repeat([]tls.Certificate{above}, many))...)
	}
	return []stranger{
		{"measure", usual, ""},
		{"not-expired", m.expired(t, ca, func(c *x509.Certificate) { c.NotAfter = c.NotAfter.AddDate(1, 0, 0) }), ""},
		{"one-forged", forged(1, nil), ""}, {"three-forged", forged(3, nil), ""},
		{"many-names", forged(1, func(c *x509.Certificate) { c.DNSNames = slices.Repeat([]string{""}, 1300) }), ""},
		{"self-signed", m.selfSigned(t), ""},
		{"body-of-64-KiB", usual, strings.Repeat("x", server.MaxBody)},
	}
}

// BenchmarkStranger measures requests that are refused, from the end of the handshake on. The metric "ratio" compares
// the median with the median of the first client.
func BenchmarkStranger(b *testing.B) {
	s, _ := certifying(b)
	s.Logger = slog.New(slog.DiscardHandler)
	handler, measure := must.Get(s.Server.Handler()), 0.0
	for _, one := range strangers(b) {
		var chain []*x509.Certificate
		for _, der := range one.shown.Certificate {
			chain = append(chain, must.Get(x509.ParseCertificate(der)))
		}
		b.Run(one.name, func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				r := newRequest("POST", certificatePath, one.body)
				r.TLS = &tls.ConnectionState{PeerCertificates: chain}
				start := time.Now()
				if status, body := served(handler, r); status != 401 {
					b.Fatal(status, body)
				}
				took = append(took, time.Since(start))
			}
			slices.Sort(took)
			p50 := took[len(took)/2].Seconds() * 1000
			measure = cmp.Or(measure, p50)
			b.ReportMetric(p50*1000, "p50-µs")
			b.ReportMetric(p50/measure, "ratio")
		})
	}
}

// at returns the client with connections from that address.
func at(address string, c *http.Client) *http.Client {
	c.Transport.(*http.Transport).DialContext = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}).DialContext
	return c
}

// presenting opens a connection from that address that presents the certificate.
func (s *site) presenting(t testing.TB, address string, shown tls.Certificate, protocol ...string) *tls.Conn {
	t.Helper()
	return must.Value(s.dialFrom(t, address, &tls.Config{NextProtos: protocol, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &shown, nil }}))(t)
}

// outdated returns the machine worker-1, and credentials of that name that prove nothing current.
func (s *site) outdated(t testing.TB, guard *revocation.Guard) (machine, map[string]tls.Certificate) {
	t.Helper()
	before := s.machine(t, "worker-1")
	old := map[string]tls.Certificate{
		"revoked": before.valid(t), "revoked, expired": before.expired(t, s.ca, nil), "another key": machine{node: "worker-1", key: csrtest.NewKey()}.expired(t, s.ca, nil),
	}
	m := s.comeBack(t, before, before.valid(t))
	for _, name := range []string{"revoked", "revoked, expired"} {
		must.Get(guard.Revoke(t.Context(), revocation.Entry{Fingerprint: revocation.FingerprintOf(old[name].Leaf)}))
	}
	return m, old
}

// A request is a certificate request from an address, with a bearer token or over a connection that has presented a
// certificate.
type request struct {
	address string
	shown   tls.Certificate
	bearer  string
}

// send sends the request to a handler.
func (r request) send(handler http.Handler, body io.Reader) (int, string) {
	sent := httptest.NewRequest("POST", certificatePath, body)
	sent.RemoteAddr = r.address + ":1"
	if r.bearer != "" {
		sent.Header.Set("Authorization", "Bearer "+r.bearer)
	}
	if r.shown.Leaf != nil {
		sent.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{r.shown.Leaf}}
	}
	return served(handler, sent)
}

// get fails the test unless the node gets a certificate.
func (r request) get(t testing.TB, handler http.Handler, node string) {
	t.Helper()
	if status, body := r.send(handler, strings.NewReader(nodeCSR(t, node))); status != 200 {
		t.Errorf("%s: got %d %s, want a certificate", node, status, body)
	}
}

// Requests without a current credential must not use up the rate of the machine that has the name, even from the
// same address.
func TestOldCredentialsDoNotUseUpTheRateOfTheirName(t *testing.T) {
	for _, name := range []string{"revoked", "revoked, expired", "another key", "expired too long ago"} {
		t.Run(name, func(t *testing.T) {
			s, guard := revoking(t)
			s.Logger, s.Limits.UserRate = nil, atFirst(20)
			s.start(t)
			m, old := s.outdated(t, guard)
			if name == "expired too long ago" {
				s.Certificates.Authority.Nodes.RejoinWindow = time.Second
				old[name] = m.expired(t, s.ca, nil)
			}
			handler, got := s.Handler(), map[int]int{}
			for range 40 {
				status, _ := request{"192.0.2.1", old[name], ""}.send(handler, strings.NewReader(nodeCSR(t, "worker-1")))
				got[status]++
			}
			if got[403] != 20 || got[429] != 20 {
				t.Errorf("got %v, want 403 20 times, then 429", got)
			}
			if name != "expired too long ago" {
				request{"192.0.2.1", m.expired(t, s.ca, nil), ""}.get(t, handler, "worker-1")
			}
			for range 10 {
				request{"192.0.2.1", m.valid(t), ""}.get(t, handler, "worker-1")
			}
		})
	}
}

// A client whose request bodies never arrive must not block clients with the same name or token at other addresses.
func TestSlowBodiesOfOneHolderBlockNobodyElse(t *testing.T) {
	for _, what := range []string{"revoked, expired", "another key", "another key, without limits of clients", "current", "token"} {
		t.Run(what, func(t *testing.T) {
			s, guard := revoking(t)
			s.Logger, s.Limits.UserRate = nil, server.Rate{}
			s.start(t)
			m, old := s.outdated(t, guard)
			holder, token := request{"192.0.2.1", old[what], ""}, s.token(t, nil)
			switch what {
			case "current": // a thief has a copy
				holder.shown = m.valid(t)
			case "token":
				holder.bearer = token
			case "another key, without limits of clients":
				holder.shown = old["another key"]
			}
			if what != "another key, without limits of clients" {
				s.Limits.ClientRate = server.Rate{}
			}
			handler := s.Handler()
			const requests = 140
			end, statuses := make(chan struct{}), make(chan int, requests)
			var running sync.WaitGroup
			for range requests {
				running.Go(func() {
					status, _ := holder.send(handler, readFunc(func([]byte) (int, error) { statuses <- 0; <-end; return 0, io.ErrUnexpectedEOF }))
					if status != 400 {
						statuses <- status
					}
				})
			}
			got := map[int]int{}
			for range requests {
				got[<-statuses]++
			}
			if got[0] != httplimit.MaxCertificates/2 || got[429] != requests-got[0] {
				t.Errorf("got %v, want %d requests that hold a slot, and 429 for the rest", got, httplimit.MaxCertificates/2)
			}
			request{"192.0.2.2", m.expired(t, s.ca, nil), ""}.get(t, handler, "worker-1")
			for i := range 10 {
				request{"192.0.2.2", m.valid(t), ""}.get(t, handler, "worker-1")
				request{address: "192.0.2.2", bearer: token}.get(t, handler, fmt.Sprint("worker-", 2+i))
			}
			close(end)
			running.Wait()
		})
	}
}

// The log has only a sample of the refusals of credentials that are revoked, not current or not kube-apiserver's.
func TestSamplesLogOfOldCredentials(t *testing.T) {
	for _, name := range []string{"revoked", "another key", "not of kube-apiserver"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // the clock stands still
				s, guard := revoking(t)
				s.Webhooks.Authorization.Authenticate = func(*http.Request) (auth.User, error) { return auth.User{}, auth.ErrForbidden }
				handler := s.Handler()
				j := s.join(t, handler, s.token(t, nil), "worker-1")
				path := certificatePath
				switch name {
				case "revoked":
					must.Get(guard.Revoke(t.Context(), revocation.Entry{Fingerprint: revocation.FingerprintOf(j.cert)}))
				case "another key":
					j.cert = machine{node: "worker-1", key: csrtest.NewKey()}.expired(t, s.ca, nil).Leaf
				default:
					path = accessPath
				}
				s.logs.Reset()
				for range 400 {
					if status, body := j.send(handler, "POST", path, j.csr); status != 403 {
						t.Fatalf("got %d %s", status, body)
					}
				}
				if n := strings.Count(s.logs.String(), "level=INFO msg=request"); n != 100 {
					t.Errorf("got %d lines at level info of 400 refusals, want 100", n)
				}
			})
		})
	}
}

// Guesses from two addresses reach the limit of failures early. They block neither access reviews nor a machine behind one
// of the addresses.
func TestFloodOfStrangersBlocksNobodyElse(t *testing.T) {
	s, _ := revoking(t)
	s.Logger, s.Limits.ClientRate, s.Limits.UserRate, s.measured = nil, server.Rate{}, server.Rate{}, true // the default rates
	s.start(t)
	m := s.machine(t, "worker-1")
	shown := strangers(t)
	const many = 2000
	start := time.Now()
	var running sync.WaitGroup
	var sent, checked atomic.Int64
	for i := range 32 {
		one := shown[i%len(shown)]
		c := s.presenting(t, fmt.Sprintf("127.0.0.%d", 2+i%2), one.shown)
		running.Go(func() {
			for answers := bufio.NewReader(c); sent.Add(1) <= many; {
				status, err := one.ask(c, answers)
				if err != nil {
					t.Error(err)
					return
				}
				if status == 401 {
					checked.Add(1)
				} else if status != 429 {
					t.Errorf("got %d, want 401 or 429", status)
				}
			}
		})
	}
	review := jsonOf(t, authorizationv1.SubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview"}, Spec: subject("worker-1", s.ca.Certificate()),
	})
	for rejoined := false; sent.Load() < many || !rejoined; {
		if got, _ := s.post(t, s.http, accessPath, reviewerBearer, review); got.status != 200 {
			t.Errorf("access review: got %d %s", got.status, got.body)
		}
		if !rejoined && sent.Load() > many/2 { // after the limit of its address was used up
			rejoined = true
			rejoins := at("127.0.0.2", s.showing(t, m.expired(t, s.ca, nil)))
			if got, p := s.post(t, rejoins, certificatePath, "", nodeCSR(t, "worker-1")); got.status != 200 {
				t.Errorf("rejoin: got %d %+v", got.status, p)
			}
		}
	}
	running.Wait()
	if n, most := checked.Load(), 2*(httplimit.FailureBurst+httplimit.FailureQPS*int64(1+time.Since(start).Seconds())+32); n == 0 || n > most {
		t.Errorf("got %d of %d credentials checked, want at most %d", n, many, most)
	}
}

// Runs all floods at once, mostly from one address. From this address, a machine must meanwhile rejoin and renew, and
// others must join, 15 times each.
func TestAllFloodsAtOnceBlockNobodyElse(t *testing.T) {
	s, guard := revoking(t)
	s.Logger, s.Limits.ClientRate, s.measured = nil, server.Rate{}, true
	s.Limits.UserRate = atFirst(150) // the default rate takes long to use up
	s.Certificates.Authority.Nodes.RejoinBudget = tokens.MaxRejoins
	s.start(t)
	m, old := s.outdated(t, guard)
	token := s.token(t, nil)
	s.hold(t, request{"127.0.0.4", old["another key"], ""}, httplimit.MaxCertificates/2) // as many as one client may
	s.hold(t, request{address: "127.0.0.5", bearer: token}, httplimit.MaxCertificates/4)
	floods := strangers(t)
	for name, shown := range old {
		floods = append(floods, stranger{name, shown, nodeCSR(t, "worker-1")})
	}
	var running sync.WaitGroup
	var end atomic.Bool
	defer func() { end.Store(true); running.Wait() }()
	limited := make([]atomic.Int64, len(floods)) // how often each has got 429
	for i, one := range floods {
		c := s.presenting(t, "127.0.0.2", one.shown)
		running.Go(func() {
			for answers := bufio.NewReader(c); !end.Load(); {
				status, err := one.ask(c, answers)
				if err != nil || status/100 != 4 {
					t.Errorf("%s: got %d, %v", one.name, status, err)
					return
				}
				if status == 429 {
					limited[i].Add(1)
				}
			}
		})
	}
	s.waitFor(t, "floods are below their limit", func() (below int) {
		for i := range limited {
			if limited[i].Load() == 0 {
				below++
			}
		}
		return below
	})
	took := map[string][]time.Duration{}
	get := func(what string, c *http.Client, bearer string, next machine) machine {
		request := csr(t, ofNode(next.node), next.key)
		start := time.Now()
		got, p := s.post(t, at("127.0.0.2", c), certificatePath, bearer, request)
		if took[what] = append(took[what], time.Since(start)); got.status != 200 {
			t.Fatalf("%s: got %d %+v", what, got.status, p)
		}
		next.chain = []byte(got.body)
		return next
	}
	for i := range 15 {
		m = get("rejoin", s.showing(t, m.expired(t, s.ca, nil)), "", machine{node: m.node, key: csrtest.NewKey()})
		m = get("renewal", s.showing(t, m.valid(t)), "", machine{node: m.node, key: csrtest.NewKey()})
		get("join", s.showing(t, tls.Certificate{}), token, machine{node: fmt.Sprint("worker-", 2+i), key: csrtest.NewKey()})
	}
	for what, all := range took {
		slices.Sort(all)
		t.Logf("%d of %s: p50 %s, p99 %s", len(all), what, all[len(all)/2].Round(time.Millisecond), all[len(all)*99/100].Round(time.Millisecond))
	}
}

// hold sends requests over HTTP/2 whose bodies do not come, and waits until each holds a slot.
func (s *site) hold(t testing.TB, from request, requests int) {
	t.Helper()
	headers := []string{":method", "POST", ":scheme", "https", ":authority", "kubejoin", ":path", certificatePath}
	if from.bearer != "" {
		headers = append(headers, "authorization", "Bearer "+from.bearer)
	}
	fields, held := block(headers...), s.inFlight(t, "certificate")
	const streams = 50 // on one connection
	for first := 0; first < requests; first += streams {
		c := s.presenting(t, from.address, from.shown, "h2")
		all := []byte(preface + string(frame(0, frameSettings, 0, 0, nil)))
		for i := range min(streams, requests-first) {
			all = append(all, frame(len(fields), frameHeaders, endHeaders, uint32(2*i+1), fields)...)
		}
		must.Value(c.Write(all))(t)
		go func() { _, _ = io.Copy(io.Discard, c) }() // until the test closes c
	}
	s.waitFor(t, "requests hold no slot", func() int { return requests - int(s.inFlight(t, "certificate")-held) })
}
