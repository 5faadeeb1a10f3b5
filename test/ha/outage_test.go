package ha

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/etcd"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/etcdstore"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// openStores opens n stores, each with its own network to etcd.
func openStores(t *testing.T, c *etcd.Cluster, n int) (stores []*etcdstore.Store, networks []*etcd.Network) {
	t.Helper()
	for range n {
		network := must.Value(c.Network())(t)
		t.Cleanup(network.Close)
		store := openStore(t, c, network.Endpoints())
		t.Cleanup(func() { _ = store.Close() })
		stores, networks = append(stores, store), append(networks, network)
	}
	return stores, networks
}

// create creates a token that expires in an hour.
func create(ctx context.Context, s tokens.Store) (tokens.Record, error) {
	return s.Create(ctx, tokens.NewRecord(tokens.Generate(), time.Hour, time.Now()))
}

// wantUnavailable checks that an error says that etcd is unavailable, and that it contains the texts.
func wantUnavailable(t *testing.T, what string, err error, texts ...string) {
	t.Helper()
	if !errors.Is(err, etcdstore.ErrUnavailable) {
		t.Errorf("%s: got error %v, want one that wraps ErrUnavailable", what, err)
		return
	}
	for _, text := range append(texts, "etcd") {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%s: got error %q, want one with %q", what, err, text)
		}
	}
}

// listed waits until the cache of a store has this number of tokens.
func listed(t *testing.T, s tokens.Store, want int) {
	t.Helper()
	harness.Wait(t, "the cache", func() error {
		all, err := s.List(t.Context())
		if err == nil && len(all) != want {
			err = fmt.Errorf("%d tokens, want %d", len(all), want)
		}
		return err
	})
}

// TestStoreWorksWithSlowEtcd catches timeouts that are too short, and calls that make more than a few round trips.
func TestStoreWorksWithSlowEtcd(t *testing.T) {
	harness.Parallel(t)
	c := etcd.ForTest(t, etcd.Options{})
	stores, networks := openStores(t, c, 1)
	s := stores[0]
	must.Value(create(t.Context(), s))(t)
	const delay = 300 * time.Millisecond // each way
	networks[0].Delay(delay)
	began := time.Now()
	r, err := create(t.Context(), s)
	took := time.Since(began)
	if err != nil {
		t.Fatalf("etcd responds after %s: %v", 2*delay, err)
	}
	t.Logf("etcd responds after %s: a token was created in %s", 2*delay, took.Round(time.Millisecond))
	if took < 2*delay {
		t.Errorf("a token was created in %s: the network is not slow", took)
	}
	listed(t, s, 2)
	if _, err := s.Get(t.Context(), r.Token.ID(), tokens.Cached); err != nil {
		t.Error(err)
	}

	// Without a response, a call must end by itself.
	networks[0].Drop()
	_, err = create(t.Context(), s)
	wantUnavailable(t, "no response", err, "no answer within")
	networks[0].Heal()
	harness.Wait(t, "a write after the network is back", func() error { _, err := create(t.Context(), s); return err })
}

// TestCachesCatchUpAfterCompaction separates a replica until etcd has compacted the changes that the replica missed. It
// catches a watch that never recovers, and deletions that the cache does not notice.
func TestCachesCatchUpAfterCompaction(t *testing.T) {
	harness.Parallel(t)
	c := etcd.ForTest(t, etcd.Options{})
	stores, networks := openStores(t, c, 2)
	deleted := must.Value(create(t.Context(), stores[1]))(t)
	listed(t, stores[0], 1)
	networks[0].Cut()
	must.OK(t, stores[1].Delete(t.Context(), deleted))
	for range 3 {
		must.Value(create(t.Context(), stores[1]))(t)
	}
	must.OK(t, c.Compact(t.Context(), 0))
	if _, err := stores[0].Get(t.Context(), deleted.Token.ID(), tokens.Cached); err != nil {
		t.Errorf("a deleted token at a replica without a network: got %v, want that the cache has it", err)
	}
	networks[0].Heal()
	listed(t, stores[0], 3)
	if _, err := stores[0].Get(t.Context(), deleted.Token.ID(), tokens.Cached); !errors.Is(err, tokens.ErrNotFound) {
		t.Errorf("a token that was deleted meanwhile: got %v, want ErrNotFound", err)
	}
	// The new watch must show later changes.
	must.Value(create(t.Context(), stores[1]))(t)
	listed(t, stores[0], 4)
}

// A writers creates tokens all the time at several stores. It retries each write at the next store until the write succeeds.
type writers struct {
	stop             context.CancelFunc
	running          sync.WaitGroup
	written, retried atomic.Int64

	mu      sync.Mutex
	slowest time.Duration
}

func startWriters(t *testing.T, stores []*etcdstore.Store) *writers {
	ctx, stop := context.WithCancel(t.Context())
	w := &writers{stop: stop}
	for i := range 4 {
		w.running.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				for try := 0; ; try++ {
					_, err := create(context.WithoutCancel(ctx), stores[(i+try)%len(stores)])
					if err == nil {
						break
					}
					w.retried.Add(1)
					if time.Since(began) > time.Minute {
						t.Errorf("no write for a minute: %v", err)
						return
					}
					time.Sleep(20 * time.Millisecond) // a client's pause
				}
				w.written.Add(1)
				w.mu.Lock()
				w.slowest = max(w.slowest, time.Since(began))
				w.mu.Unlock()
			}
		})
	}
	t.Cleanup(w.end)
	return w
}

func (w *writers) end() { w.stop(); w.running.Wait() }

// more waits for another hundred writes.
func (w *writers) more(t *testing.T) {
	t.Helper()
	want := w.written.Load() + 100
	harness.Wait(t, "more writes", func() error {
		if n := w.written.Load(); n < want {
			return fmt.Errorf("%d writes, want %d", n, want)
		}
		return nil
	})
}

// during runs a maintenance task of etcd under load, and logs how long the slowest write took.
func (w *writers) during(t *testing.T, what string, do func() error) {
	t.Helper()
	w.more(t)
	w.mu.Lock()
	w.slowest = 0
	w.mu.Unlock()
	before := w.retried.Load()
	began := time.Now()
	must.OK(t, do())
	took := time.Since(began)
	w.more(t)
	w.mu.Lock()
	defer w.mu.Unlock()
	t.Logf("%s took %s; the slowest write took %s, and clients retried %d times", what, took.Round(time.Millisecond), w.slowest.Round(time.Millisecond), w.retried.Load()-before)
}

// TestMaintenanceOfEtcdLosesNothing defragments and compacts etcd and replaces each member under load. It catches lost
// tokens, and caches that miss later changes.
func TestMaintenanceOfEtcdLosesNothing(t *testing.T) {
	harness.Parallel(t)
	c := etcd.ForTest(t, etcd.Options{Members: 3})
	stores, _ := openStores(t, c, 3)
	w := startWriters(t, stores)
	for i := range 3 {
		w.during(t, fmt.Sprintf("defragmenting member %d", i), func() error { return c.Defragment(t.Context(), i) })
	}
	w.during(t, "compaction", func() error { return c.Compact(t.Context(), 0) })
	for i := range 3 {
		w.during(t, fmt.Sprintf("replacing member %d", i), func() error { return c.Replace(t.Context(), i) })
	}
	w.end()
	// Writes whose response was lost may exist, too.
	kept := must.Value(c.Client().Get(t.Context(), "/kubejoin/tokens/", clientv3.WithPrefix(), clientv3.WithCountOnly()))(t)
	if kept.Count < w.written.Load() {
		t.Errorf("etcd has %d tokens, want the %d that were created", kept.Count, w.written.Load())
	}
	for _, s := range stores {
		listed(t, s, int(kept.Count))
	}
}
