package secretstore_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/cleaner"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cluster-bootstrap/token/api"
)

// clean runs a cleaner until stop is called.
func clean(t testing.TB, s tokens.Store) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- cleaner.Tokens{Store: s, Sweep: time.Hour}.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// The cleaner must delete the tokens that the token cleaner of kube-controller-manager deletes.
func TestCleanerDeletesExpiredTokens(t *testing.T) {
	s := open(t, nil)
	create := func(expires time.Time) tokens.Record {
		t.Helper()
		r, err := s.Create(t.Context(), tokens.Record{Token: tokens.Generate(), Expires: expires})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	create(time.Now().Add(-time.Hour))
	create(time.Now().Add(2 * time.Second))
	stays := []string{create(time.Time{}).Token.ID(), create(time.Now().Add(time.Hour)).Token.ID()}
	malformed := tokens.Generate()
	put(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-" + malformed.ID()},
		Type:       api.SecretTypeBootstrapToken,
		StringData: map[string]string{"token-id": malformed.ID(), "token-secret": malformed.RevealSecret(), "expiration": "tomorrow"},
	})
	defer clean(t, s)()
	for { // on a busy machine, a token may expire before it is renewed
		renewed := create(time.Now().Add(2 * time.Second))
		_, err := s.Update(t.Context(), renewed.Token.ID(), func(r *tokens.Record) error {
			r.Expires = r.Expires.Add(time.Hour)
			return nil
		})
		if errors.Is(err, tokens.ErrNotFound) && time.Now().After(renewed.Expires) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		stays = append(stays, renewed.Token.ID())
		break
	}
	wait(t, s, "those that have time left", func(all []tokens.Record) bool { return len(all) == len(stays) })
	for _, id := range stays {
		if _, err := s.Get(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
}

// BenchmarkCleaner deletes 1,000 tokens that have expired together.
func BenchmarkCleaner(b *testing.B) {
	const n = 1000
	cluster.Shared(b)
	s := open(b, nil)
	for b.Loop() {
		b.StopTimer()
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				for range n / 20 {
					if _, err := s.Create(b.Context(), tokens.Record{Token: tokens.Generate(), Expires: time.Now()}); err != nil {
						b.Error(err)
					}
				}
			})
		}
		wg.Wait()
		wait(b, s, "all tokens", func(all []tokens.Record) bool { return len(all) == n })
		b.StartTimer()
		stop := clean(b, s)
		wait(b, s, "no tokens", func(all []tokens.Record) bool { return len(all) == 0 })
		stop()
	}
	b.ReportMetric(n*float64(b.N)/b.Elapsed().Seconds(), "deleted/s")
}
