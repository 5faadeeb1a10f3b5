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
	"github.com/kubejoin/kubejoin/internal/testing/must"
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
		c := must.Value(s.dialFrom(t, fmt.Sprintf("127.0.0.%d", 2+i%2), &tls.Config{GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &one.shown, nil }}))(t)
		request := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: kubejoin\r\nContent-Length: %d\r\n\r\n%s", certificatePath, len(one.body), one.body)
		running.Go(func() {
			for reader := bufio.NewReader(c); sent.Add(1) <= many; {
				_, _ = io.WriteString(c, request) // the response has the error
				answer, err := http.ReadResponse(reader, nil)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, answer.Body)
				if answer.StatusCode == 401 {
					checked.Add(1)
				} else if answer.StatusCode != 429 {
					t.Errorf("got %d, want 401 or 429", answer.StatusCode)
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
		if !rejoined && sent.Load() > many/2 { // when the limit of its address is used up
			rejoined = true
			rejoins := s.showing(t, m.expired(t, s.ca, nil))
			rejoins.Transport.(*http.Transport).DialContext = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext
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
