package server_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/rowlist"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
)

// benchmarkAt runs a request against the handler, without a network, with different numbers of signing tokens.
func benchmarkAt(b *testing.B, method, path string) {
	for _, n := range []int{1, 500, 12_000} {
		b.Run(fmt.Sprintf("tokens=%d", n), func(b *testing.B) {
			s := newSite(b)
			s.Logger = slog.New(slog.DiscardHandler)
			s.fill(b, n)
			handler := s.Server.Handler()
			b.ReportAllocs()
			for b.Loop() {
				r := httptest.NewRequest(method, path, nil)
				r.Header.Set("Authorization", "Bearer "+adminBearer)
				w := httptest.NewRecorder()
				if handler.ServeHTTP(w, r); w.Code != 200 {
					b.Fatalf("%d %s", w.Code, w.Body)
				}
			}
		})
	}
}

// fill stores n tokens. The writers run concurrently so that they share fsyncs.
func (s *site) fill(tb testing.TB, n int) {
	tb.Helper()
	var writers sync.WaitGroup
	todo := make(chan struct{})
	for range 200 {
		writers.Go(func() {
			for range todo {
				// With 12,000 random IDs, two are equal in one of thirty runs.
				if _, err := s.store.Create(tb.Context(), tokens.Record{Token: tokens.Generate(), Signing: true, Expires: time.Now().Add(time.Hour)}); err != nil && !errors.Is(err, tokens.ErrExists) {
					tb.Error(err)
				}
			}
		})
	}
	for range n {
		todo <- struct{}{}
	}
	close(todo)
	writers.Wait()
}

func BenchmarkDiscovery(b *testing.B)   { benchmarkAt(b, "GET", infoPath) }
func BenchmarkJoinCommand(b *testing.B) { benchmarkAt(b, "POST", commandPath) }

// BenchmarkAccessReview answers kube-apiserver about a node while 10,000 others are revoked.
func BenchmarkAccessReview(b *testing.B) {
	s := newSite(b)
	reviewer, err := auth.ParseTokenFile([]byte(reviewerBearer + ",kube-apiserver,\n"))
	if err != nil {
		b.Fatal(err)
	}
	store := rowlist.New(memdb.Open().Revocations())
	for n := range 10_000 {
		e := revocation.Entry{Node: fmt.Sprintf("node-%d", n), Since: time.Now()}
		if _, err := store.Update(b.Context(), e.Key(), func(*revocation.Entry) (*revocation.Entry, error) { return &e, nil }); err != nil {
			b.Fatal(err)
		}
	}
	s.Logger = slog.New(slog.DiscardHandler)
	s.Webhooks.Authorization = &server.Authorization{Authenticate: reviewer.Authenticate, Revoked: (&revocation.Guard{Store: store}).Known}
	handler := s.Server.Handler()
	for name, node := range map[string]string{"valid": "worker-1", "revoked": "node-1"} {
		body := `{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{"user":"system:node:` + node + `","groups":["system:nodes","system:authenticated"],"extra":{"authentication.kubernetes.io/credential-id":["X509SHA256=83d205359b238bd47a71b1508a8f4bb80e05b96f0be039f749f4aed49f72515a"]},"resourceAttributes":{"verb":"get","resource":"nodes","name":"worker-1"}}}`
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if w := send(handler, accessPath, reviewerBearer, "application/json", strings.NewReader(body)); w.Code != 200 {
					b.Fatal(w.Code, w.Body)
				}
			}
		})
	}
}
