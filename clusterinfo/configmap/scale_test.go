package configmap_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A long annotation can make the object too large for etcd (1.5 MiB) before the values exceed the limit of a ConfigMap.
// Existing signatures must stay, and the signer must still remove signatures of deleted tokens.
func TestSignerWhenEtcdRefuses(t *testing.T) {
	need.Long(t) // 12,300 tokens
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
	must.Value(f.client.CoreV1().ConfigMaps("kube-public").Update(t.Context(), object, metav1.UpdateOptions{}))(t)

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

// recordsByAge returns n signing tokens, the oldest first. Their IDs differ: among 12,000 random IDs, two are the same
// in one of 30 runs.
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
	families := must.Value(registry.Gather())(t)
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
