package ha

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/test/etcd"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

// churnFor returns how long [TestMemoryStaysFlatUnderChurn] runs: the value of KUBEJOIN_TEST_CHURN, or 30 s.
func churnFor(t *testing.T) time.Duration {
	t.Helper()
	if given := os.Getenv("KUBEJOIN_TEST_CHURN"); given != "" {
		return must.Value(time.ParseDuration(given))(t)
	}
	return 30 * time.Second
}

// churners is how many machines join and leave at once. Each keeps its name and its key.
const churners = 8

// churnPause is how long a machine waits between two rounds.
const churnPause = 500 * time.Millisecond

// A sample is the resource usage of a replica at one time.
type sample struct{ goroutines, heap float64 }

// TestMemoryStaysFlatUnderChurn lets machines join and leave at three replicas while members of etcd restart. It catches a
// growing number of goroutines or amount of memory.
func TestMemoryStaysFlatUnderChurn(t *testing.T) {
	harness.Parallel(t)
	c := etcd.ForTest(t, etcd.Options{Members: 3})
	s := newService(t, c, 3, "--issuance-record=/dev/null", "-v=0")
	ctx, stop := context.WithTimeout(t.Context(), churnFor(t))
	defer stop()
	var rounds, retries atomic.Int64
	var running sync.WaitGroup
	for i := range churners {
		node := fmt.Sprintf("churn-%d", i)
		csr := csrtest.PEM(t, &x509.CertificateRequest{Subject: csrtest.Node(node)}, nil)
		running.Go(func() {
			for ctx.Err() == nil {
				if err := s.round(t.Context(), node, csr, &retries); err != nil {
					t.Error(err)
					return
				}
				rounds.Add(1)
				select {
				case <-ctx.Done():
				case <-time.After(churnPause):
				}
			}
		})
	}
	running.Go(func() { // restart one member after the other
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-time.After(10 * time.Second):
			}
			c.Kill(i % 3)
			if err := c.Restart(t.Context(), i%3); err != nil {
				t.Error(err)
				return
			}
		}
	})
	samples := make([][]sample, len(s.all))
	for ctx.Err() == nil {
		for i, p := range s.all {
			metrics := p.Metrics(t)
			// go_memstats_next_gc_bytes is twice the heap in use after the last garbage collection.
			samples[i] = append(samples[i], sample{harness.Metric(t, metrics, "go_goroutines"), harness.Metric(t, metrics, "go_memstats_next_gc_bytes") / 2})
		}
		select {
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
	running.Wait()
	t.Logf("%d machines joined and left in %s, with %d retries", rounds.Load(), churnFor(t), retries.Load())
	if rounds.Load() < churners {
		t.Errorf("%d rounds are too few to find a leak", rounds.Load())
	}
	for i, all := range samples {
		third := len(all) / 3
		// The caches and pools fill in the first third.
		before, after := mean(all[third:2*third]), mean(all[2*third:])
		t.Logf("replica %d: %.0f goroutines and a heap of %.1f MB, then %.0f and %.1f MB", i, before.goroutines, before.heap/1e6, after.goroutines, after.heap/1e6)
		if after.goroutines > 1.25*before.goroutines+20 || after.heap > 1.25*before.heap+4e6 {
			t.Errorf("replica %d grows", i)
		}
	}
}

func mean(all []sample) (m sample) {
	for _, s := range all {
		m.goroutines += s.goroutines / float64(len(all))
		m.heap += s.heap / float64(len(all))
	}
	return m
}

// round lets a machine join with its own token and leave again, each step at another replica.
func (s *service) round(ctx context.Context, node string, csr []byte, retries *atomic.Int64) error {
	token, expires := tokens.Generate(), time.Now().Add(10*time.Minute)
	at := rand.IntN(len(s.all))
	for _, step := range []struct {
		name string
		do   func(i int) error
	}{
		{"create a token", func(i int) error {
			return s.newToken(ctx, i, token, expires, api.TokenSpec{MaxNodes: 1, NodeNames: []string{node}, CertificateDuration: "10m"})
		}},
		{"sign", func(i int) error {
			_, err := s.at(i, api.Secret(token.Reveal())).Certificate(ctx, api.SignCertificate{
				CSR: csr, Signer: certificates.KubeAPIServerClientKubeletSignerName,
			})
			return err
		}},
		{"release the claim", func(i int) error {
			_, err := s.at(i, s.bearer).ReleaseClaim(ctx, node, api.ReleaseClaim{})
			return gone(err)
		}},
		{"delete the token", func(i int) error {
			_, err := s.at(i, s.bearer).DeleteToken(ctx, token.ID(), api.DeleteToken{})
			return gone(err)
		}},
	} {
		began := time.Now()
		for {
			at++
			err := step.do(at % len(s.all))
			if err == nil {
				break
			}
			retries.Add(1)
			if time.Since(began) > time.Minute {
				return fmt.Errorf("%s: %s: %w", node, step.name, err)
			}
			time.Sleep(50 * time.Millisecond) // the pause of a client
		}
	}
	return nil
}

// gone returns err, or nil if err says that the object does not exist: an earlier attempt, whose response was lost, has
// deleted it.
func gone(err error) error {
	if p := (*api.Problem)(nil); errors.As(err, &p) && p.Status == http.StatusNotFound {
		return nil
	}
	return err
}
