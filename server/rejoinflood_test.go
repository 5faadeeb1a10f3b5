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
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/httplimit"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/server"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A stranger is a client without a valid credential: the certificate that it presents, and the body that it sends.
type stranger struct {
	name  string
	shown tls.Certificate
	body  string
}

// strangers returns what makes the server work for somebody without a credential, and passes the handshake. The first one
// is the measure: an expired certificate of a CA with the name of the real one.
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

// BenchmarkStranger measures requests that are refused, from the end of the handshake on. The metric "ratio" compares the
// median with that of the first one.
func BenchmarkStranger(b *testing.B) {
	s, _ := certifying(b)
	s.Logger = slog.New(slog.DiscardHandler)
	handler, measure := s.Server.Handler(), 0.0
	for _, one := range strangers(b) {
		chain := parsed(b, one.shown)
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
			p50 := percentile(took, 50)
			measure = cmp.Or(measure, p50)
			b.ReportMetric(p50*1000, "p50-µs")
			b.ReportMetric(p50/measure, "ratio")
		})
	}
}

func parsed(t testing.TB, shown tls.Certificate) (chain []*x509.Certificate) {
	t.Helper()
	for _, der := range shown.Certificate {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		chain = append(chain, cert)
	}
	return chain
}

// percentile returns a percentile in milliseconds.
func percentile(took []time.Duration, p int) float64 {
	slices.Sort(took)
	return took[len(took)*p/100].Seconds() * 1000
}

// reviews sends access reviews until done is closed: one every 5 ms in a benchmark, and one after the other in a test, which
// a busy machine may slow down. It returns how long each took from the time when it was due, so that a queue counts.
func (s *site) reviews(t testing.TB, done <-chan struct{}) (took []time.Duration) {
	body := jsonOf(t, authorizationv1.SubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview"}, Spec: subject("worker-1", s.ca.Certificate()),
	})
	var running sync.WaitGroup
	var mu sync.Mutex
	for due := time.Now(); ; due = due.Add(5 * time.Millisecond) {
		select {
		case <-done:
			running.Wait()
			return took
		case <-time.After(time.Until(due)):
		}
		if _, measures := t.(*testing.B); !measures {
			running.Wait()
			due = time.Now()
		}
		running.Go(func() {
			if got, _ := s.ask(t, s.http, "POST", accessPath, reviewerBearer, body); got.status != 200 {
				t.Errorf("access review: got %d %s", got.status, got.body)
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(due))
		})
	}
}

// flood sends that many requests of strangers from two addresses over 32 connections. It returns how many were checked, and
// how long access reviews took before and meanwhile. A machine behind one of the addresses must be able to rejoin.
func flood(t testing.TB, many int) (checked int64, quiet, busy []time.Duration) {
	t.Helper()
	s, _ := revoking(t)
	s.Logger, s.Limits.ClientRate, s.Limits.UserRate, s.measured = nil, server.Rate{}, server.Rate{}, true // the default rates
	s.start(t)
	m := s.machine(t, "worker-1")
	var connections []*tls.Conn
	shown := strangers(t)
	for i := range 32 {
		one := shown[i%len(shown)].shown
		c, err := s.dialFrom(t, fmt.Sprintf("127.0.0.%d", 2+i%2), &tls.Config{GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &one, nil }})
		if err != nil {
			t.Fatal(err)
		}
		connections = append(connections, c)
	}
	wait := make(chan struct{})
	time.AfterFunc(time.Duration(many/5)*time.Millisecond, func() { close(wait) })
	quiet = s.reviews(t, wait)
	var running sync.WaitGroup
	var sent, refused atomic.Int64
	for i, c := range connections {
		body := shown[i%len(shown)].body
		request := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: kubejoin\r\nContent-Length: %d\r\n\r\n%s", certificatePath, len(body), body)
		running.Go(func() {
			for reader := bufio.NewReader(c); sent.Add(1) <= int64(many); {
				if _, err := io.WriteString(c, request); err != nil {
					t.Error(err)
					return
				}
				answer, err := http.ReadResponse(reader, nil)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, answer.Body)
				switch answer.StatusCode {
				case 401:
					refused.Add(1)
				case 429:
				default:
					t.Errorf("got %d, want 401 or 429", answer.StatusCode)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { running.Wait(); close(done) }()
	running.Go(func() { // the machine, when the limit of its address is used up
		for sent.Load() < int64(many)/2 {
			time.Sleep(time.Millisecond) // the senders must not wait for this machine
		}
		rejoins := s.showing(t, m.expired(t, s.ca, nil))
		rejoins.Transport.(*http.Transport).DialContext = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext
		if got, p := s.post(t, rejoins, certificatePath, "", nodeCSR(t, "worker-1")); got.status != 200 {
			t.Errorf("rejoin: got %d %+v", got.status, p)
		}
	})
	busy = s.reviews(t, done)
	return refused.Load(), quiet, busy
}

// Guesses from two addresses reach the limit of failures early. They block neither access reviews nor a machine behind one
// of the addresses.
func TestFloodOfStrangersBlocksNobodyElse(t *testing.T) {
	start := time.Now()
	checked, quiet, busy := flood(t, 2000)
	if most := 2 * (httplimit.FailureBurst + httplimit.FailureQPS*int64(1+time.Since(start).Seconds()) + 32); checked == 0 || checked > most {
		t.Errorf("got %d of 2000 credentials checked, want at most %d", checked, most)
	}
	if len(quiet) == 0 || len(busy) == 0 {
		t.Errorf("got %d and %d access reviews, want some", len(quiet), len(busy))
	}
}

// BenchmarkFloodOfStrangers measures access reviews without and with 20,000 requests of strangers.
func BenchmarkFloodOfStrangers(b *testing.B) {
	for b.Loop() {
		start := time.Now()
		checked, quiet, busy := flood(b, 20_000)
		b.Logf("%d of 20,000 checked, %d reviews in %s", checked, len(quiet)+len(busy), time.Since(start))
		for name, took := range map[string][]time.Duration{"quiet": quiet, "flood": busy} {
			b.ReportMetric(percentile(took, 50), name+"-p50-ms")
			b.ReportMetric(percentile(took, 99), name+"-p99-ms")
		}
	}
}
