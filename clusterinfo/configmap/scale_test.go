package configmap_test

import (
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The signer must sign a burst of tokens soon, with few writes.
func TestSignerSignsBurstInFewWrites(t *testing.T) {
	f := setUp(t)
	registry := prometheus.NewRegistry()
	s := f.signer()
	s.Registerer = registry
	run(t, s)
	f.waitSigned(t, f.store.mint())
	waitCounted := func(signed int) { // the signer counts after the write
		t.Helper()
		gauge := func() float64 { return counter(t, registry, "kubejoin_clusterinfo_signatures") }
		for deadline := time.Now().Add(patience); gauge() != float64(signed); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%v signatures counted, want %d", gauge(), signed)
			}
		}
	}
	waitCounted(1)

	const burst = 500
	signed := 1
	inTwoSeconds(t, func() time.Duration {
		before, began := counter(t, registry, "kubejoin_clusterinfo_writes_total"), time.Now()
		took := make([]time.Duration, burst)
		var wg sync.WaitGroup
		for i := range took {
			time.Sleep(500 * time.Microsecond) // the time in which an API server stores one
			token := f.store.mint()
			wg.Go(func() {
				start := time.Now()
				f.waitSigned(t, token)
				took[i] = time.Since(start)
			})
		}
		wg.Wait()
		signed += burst
		writes := counter(t, registry, "kubejoin_clusterinfo_writes_total") - before
		t.Logf("%v writes in %s", writes, time.Since(began))
		// A slow machine creates the tokens more slowly. The signer then writes after each pause of at least 5 ms.
		if most := max(burst/2, float64(time.Since(began)/(5*time.Millisecond))); writes > most {
			t.Errorf("%v writes for %d tokens, want at most %v", writes, burst, most)
		}
		return p99(t, took) // 50 ms on an idle machine
	})
	waitCounted(signed)
}

// inTwoSeconds fails the test if burst returns more than two seconds every time that it is called: a machine may stall
// once.
func inTwoSeconds(t *testing.T, burst func() time.Duration) {
	t.Helper()
	least := time.Duration(math.MaxInt64)
	for range 3 {
		if least = min(least, burst()); least <= 2*time.Second {
			return
		}
	}
	t.Errorf("p99 of created to signed: %s in the best of 3 bursts, want at most 2s", least)
}

// p99 logs and returns the time in which 99 % were signed.
func p99(t *testing.T, took []time.Duration) time.Duration {
	t.Helper()
	slices.Sort(took)
	t.Logf("created to signed: p50 %s, p99 %s", took[len(took)/2], took[len(took)*99/100])
	return took[len(took)*99/100]
}

// If more tokens exist than fit, the oldest must keep their signatures. Deleted tokens must make space.
func TestSignerWhenFull(t *testing.T) {
	if testing.Short() {
		t.Skip("12,500 tokens")
	}
	f := setUp(t)
	registry := prometheus.NewRegistry()
	s := f.signer()
	s.Registerer = registry
	const n = 12_500
	records := recordsByAge(n)
	f.store.put(records...)
	run(t, s)
	f.waitSigned(t, records[0].Token)
	full := f.settled(t, time.Second).Data
	signed := len(full) - 1
	t.Logf("%d of %d tokens signed, %v writes", signed, n, counter(t, registry, "kubejoin_clusterinfo_writes_total"))
	if signed < 9000 {
		t.Errorf("got %d signatures, want at least 9000", signed)
	}
	for i, r := range records {
		if _, found := full[clusterinfo.SignatureKey(r.Token.ID())]; found != (i < signed) {
			t.Fatalf("token %d of %d by age: signed %t", i, n, found)
		}
	}
	f.waitLogged(t, "cluster-info is full") // after the gauge is set
	if left := counter(t, registry, "kubejoin_clusterinfo_unsigned_tokens"); int(left) != n-signed {
		t.Errorf("%v unsigned tokens counted, want %d", left, n-signed)
	}

	// Deleted tokens make space for the unsigned ones.
	const gone = 4000
	var ids []string
	for _, r := range records[:gone] {
		ids = append(ids, r.Token.ID())
	}
	f.store.remove(ids...)
	f.waitSigned(t, records[n-1].Token)
	data := f.settled(t, time.Second).Data
	if len(data) != n-gone+1 {
		t.Errorf("got %d keys, want %d", len(data), n-gone+1)
	}
	f.waitLogged(t, "space for all signatures again")
}

// A long annotation can make the object too large for etcd (1.5 MiB) before the values exceed the limit of a ConfigMap.
// Existing signatures must stay, and those of deleted tokens must still be removed.
func TestSignerWhenEtcdRefuses(t *testing.T) {
	if testing.Short() {
		t.Skip("12,300 tokens")
	}
	f := setUp(t)
	registry := prometheus.NewRegistry()
	s := f.signer()
	s.Registerer = registry
	const first, more = 10_500, 1_800
	records := recordsByAge(first + more)
	f.store.put(records[:first]...)
	run(t, s)
	f.waitSigned(t, records[first-1].Token)
	there := f.settled(t, 500*time.Millisecond).Data
	if len(there) != first+1 {
		t.Fatalf("got %d keys, want %d", len(there), first+1)
	}
	object := f.get(t)
	object.Annotations = map[string]string{"example.com/note": strings.Repeat("x", 250_000)}
	if _, err := f.client.CoreV1().ConfigMaps("kube-public").Update(t.Context(), object, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}

	f.store.put(records[first:]...)
	f.waitLogged(t, "cluster-info is full")
	full := f.settled(t, 500*time.Millisecond).Data
	t.Logf("%d of %d tokens signed, %v writes", len(full)-1, first+more, counter(t, registry, "kubejoin_clusterinfo_writes_total"))
	for i, r := range records[:first] {
		if full[clusterinfo.SignatureKey(r.Token.ID())] == "" {
			t.Fatalf("token %d of %d lost its signature to a newer one", i, first)
		}
	}
	var ids []string
	for _, r := range records[:3000] {
		ids = append(ids, r.Token.ID())
	}
	f.store.remove(ids...)
	f.waitSigned(t, records[first+more-1].Token)
	if data := f.settled(t, 500*time.Millisecond).Data; len(data) != first+more-3000+1 {
		t.Errorf("got %d keys, want %d", len(data), first+more-3000+1)
	}
}

// recordsByAge returns n signing tokens, the oldest first. Their IDs differ: of 12,000 random IDs, two are the same in
// one of 30 runs.
func recordsByAge(n int) []tokens.Record {
	records := make([]tokens.Record, 0, n)
	for ids := map[string]bool{}; len(records) < n; {
		token := tokens.Generate()
		if !ids[token.ID()] {
			ids[token.ID()] = true
			records = append(records, tokens.Record{Token: token, Signing: true, Created: time.Now()})
		}
	}
	slices.SortStableFunc(records, func(a, b tokens.Record) int { return a.Created.Compare(b.Created) })
	return records
}

func counter(t *testing.T, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum, found := 0.0, false
	for _, family := range families {
		if family.GetName() == name {
			found = true
			for _, m := range family.GetMetric() {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	if !found {
		t.Fatalf("no metric %s", name)
	}
	return sum
}
