package server_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
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
