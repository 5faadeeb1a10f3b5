package configmap_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/prometheus/client_golang/prometheus"
)

func TestFill(t *testing.T) {
	const mib = 1 << 20
	for _, test := range []struct {
		fill  configmap.Fill
		free  int
		high  bool
		says  string
		ratio float64
	}{
		{configmap.Fill{Limit: mib}, 12336, false, "0 % full", 0},
		{configmap.Fill{Signatures: 9000, Bytes: 9000 * 85, Limit: mib}, 3336, false, "tokens and has space for 3336 more", 0.73},
		{configmap.Fill{Signatures: 9900, Bytes: mib * 8 / 10, Limit: mib}, 2467, false, "80 % full", 0.8},
		{configmap.Fill{Signatures: 9900, Bytes: mib*8/10 + 1, Limit: mib}, 2467, true, "80 % full", 0.8},
		{configmap.Fill{Signatures: 12000, Bytes: mib - 85, Limit: mib}, 1, true, "100 % full: it holds the signatures of 12000 tokens and has space for 1 more", 1},
		{configmap.Fill{Signatures: 12001, Bytes: mib - 84, Limit: mib}, 0, true, "is full: it holds the signatures of 12001 tokens and has no space for more", 1},
		{configmap.Fill{Signatures: 10000, Bytes: 850_000, Limit: 800_000}, 0, true, "is full", 1.06},
	} {
		f := test.fill
		if f.Free() != test.free || f.High() != test.high || !strings.Contains(f.String(), test.says) || f.Ratio() < test.ratio-0.01 || f.Ratio() > test.ratio+0.01 {
			t.Errorf("%+v: %d free, high %t, %.2f, %q; want %d, %t, %.2f, %q", f, f.Free(), f.High(), f.Ratio(), f, test.free, test.high, test.ratio, test.says)
		}
	}
}

// FillMonitor must warn once at 80 % and once when cluster-info is full. It must warn again only after cluster-info
// had space in between.
func TestFillMonitorWarnsOnce(t *testing.T) {
	f := setUp(t)
	registry := prometheus.NewRegistry()
	var mu sync.Mutex
	events := map[string]string{}
	count := 0
	gauge := configmap.FillMonitor{
		ConfigMap: f.live, Advice: "delete tokens", Logger: slog.New(slog.NewTextHandler(f.log, nil)), Registerer: registry,
		Event: func(reason, message string) {
			mu.Lock()
			defer mu.Unlock()
			events[reason] = message
			count++
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- gauge.Run(ctx) }()
	// fill sets the number of signatures in cluster-info. They are as long as real signatures.
	fill := func(n int) configmap.Fill {
		t.Helper()
		f.edit(t, func(data map[string]string) {
			for key := range data {
				if key != "kubeconfig" {
					delete(data, key)
				}
			}
			for i := range n {
				data[clusterinfo.SignatureKey(fmt.Sprintf("%06d", i))] = strings.Repeat("x", 85)
			}
		})
		f.eventually(t, fmt.Sprintf("%d signatures", n), func(data map[string]string) bool { return len(data) == n+1 })
		if free, signatures := f.live.Capacity(); signatures != n || free != f.live.Fill().Free() {
			t.Errorf("got %d signatures and %d free, want %d and %d", signatures, free, n, f.live.Fill().Free())
		}
		if f.live.HasSignature(fmt.Sprintf("%06d", n)) || n > 0 && !f.live.HasSignature(fmt.Sprintf("%06d", n-1)) {
			t.Errorf("with %d signatures: got a wrong HasSignature", n)
		}
		return f.live.Fill()
	}
	seen := func(reason string, total int) {
		t.Helper()
		wait.OK(t, "Event "+reason, func() error {
			mu.Lock()
			defer mu.Unlock()
			if message, want := events[reason], f.live.Fill().String()+"; delete tokens"; message != want || count != total {
				return fmt.Errorf("got %q and %d in all, want %q and %d", message, count, want, total)
			}
			return nil
		})
	}
	empty := fill(0)
	fill(9000)
	fill(10500)
	seen("ClusterInfoFillsUp", 1)
	f.waitLogged(t, "cluster-info is nearly full")
	fill(10501)
	fill(empty.Free())
	seen("ClusterInfoFull", 2)
	if free, _ := f.live.Capacity(); free != 0 {
		t.Errorf("got space for %d more, want 0", free)
	}
	fill(9000)
	f.waitLogged(t, "cluster-info has space again")
	if r := counter(t, registry, "kubejoin_clusterinfo_used_ratio"); r < 0.72 || r > 0.75 {
		t.Errorf("ratio %v", r)
	}
	mu.Lock()
	delete(events, "ClusterInfoFillsUp")
	mu.Unlock()
	fill(10500)
	seen("ClusterInfoFillsUp", 3)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
