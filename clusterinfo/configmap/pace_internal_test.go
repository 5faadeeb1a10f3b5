package configmap

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
)

func TestNotBefore(t *testing.T) {
	last := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, test := range []struct {
		name       string
		signatures int
		onlyAdds   bool
		want       time.Duration
	}{
		{"first signature", 0, true, 5 * time.Millisecond},
		{"another signature", 1000, true, 75 * time.Millisecond},
		{"another of many", 12_000, true, 845 * time.Millisecond},
		{"removal", 1, false, 0},
		{"removal of many", 12_000, false, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := notBefore(last, test.signatures, test.onlyAdds).Sub(last); got != test.want {
				t.Errorf("due %s after the last write, want %s", got, test.want)
			}
		})
	}
}

func TestOnlyAdds(t *testing.T) {
	current := map[string]string{clusterinfo.KubeconfigKey: "k", "jws-kubeconfig-aaaaaa": "1", "note": "n"}
	for _, test := range []struct {
		name   string
		change func(next map[string]string)
		want   bool
	}{
		{"signature added", func(next map[string]string) { next["jws-kubeconfig-bbbbbb"] = "2" }, true},
		{"signature removed", func(next map[string]string) { delete(next, "jws-kubeconfig-aaaaaa") }, false},
		{"signature replaced", func(next map[string]string) { next["jws-kubeconfig-aaaaaa"] = "2" }, false},
		{"kubeconfig replaced", func(next map[string]string) { next[clusterinfo.KubeconfigKey] = "l" }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			next := maps.Clone(current)
			test.change(next)
			if got := onlyAdds(current, next); got != test.want {
				t.Errorf("got %t, want %t", got, test.want)
			}
		})
	}
	if onlyAdds(nil, current) {
		t.Error("creation of cluster-info only adds, want it due at once")
	}
}

// paced is a token store and an API server with a cluster-info, both without network, and the times of its writes.
type paced struct {
	tokens.Store
	tokens.Hints
	mu      sync.Mutex
	records []tokens.Record
	cluster *fake.Clientset
	start   time.Time
	writes  []time.Duration
	lookups int
}

func (p *paced) Watch(ctx context.Context) <-chan struct{} { return p.Hints.Watch(ctx) }

func (p *paced) List(context.Context) ([]tokens.Record, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.records), nil
}

func (p *paced) Get(context.Context, string, tokens.Read) (tokens.Record, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lookups++
	return tokens.Record{}, tokens.ErrNotFound
}

// RoundTrip stores a write of cluster-info and sends it to the watch.
func (p *paced) RoundTrip(r *http.Request) (*http.Response, error) {
	var object corev1.ConfigMap
	if err := json.NewDecoder(r.Body).Decode(&object); err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.writes = append(p.writes, time.Since(p.start))
	object.ResourceVersion = strconv.Itoa(len(p.writes) + 1)
	p.mu.Unlock()
	answer, err := json.Marshal(metav1.PartialObjectMetadata{ObjectMeta: object.ObjectMeta})
	if err != nil {
		return nil, err
	}
	if err := p.cluster.Tracker().Update(corev1.SchemeGroupVersion.WithResource("configmaps"), &object, object.Namespace); err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(answer))}, nil
}

// add creates n tokens at once.
func (p *paced) add(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range n {
		p.records = append(p.records, tokens.Record{Token: tokens.Generate(), Signing: true})
	}
	p.Send()
}

// remove deletes the oldest token.
func (p *paced) remove() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.records = p.records[1:]
	p.Send()
}

// With 1,000 signatures, the gap between writes is 75 ms.
func TestPaceOfWrites(t *testing.T) {
	const ms = time.Millisecond
	type action struct {
		at time.Duration
		do func(*paced)
	}
	add, remove := func(p *paced) { p.add(1) }, (*paced).remove
	for _, test := range []struct {
		name    string
		actions []action
		want    []time.Duration // the writes after the first
	}{
		{"a token right after a write waits", []action{{10 * ms, add}}, []time.Duration{75 * ms}},
		{"a step without a write delays no token", []action{{76 * ms, add}}, []time.Duration{76 * ms}},
		{"tokens during the gap share a write", []action{{10 * ms, add}, {20 * ms, add}, {70 * ms, add}}, []time.Duration{75 * ms}},
		{"a removal does not wait", []action{{10 * ms, remove}}, []time.Duration{10 * ms}},
		{"a removal beside a waiting token waits for half a gap", []action{{10 * ms, add}, {11 * ms, remove}}, []time.Duration{47500 * time.Microsecond}},
		{"a second removal waits", []action{{10 * ms, remove}, {20 * ms, remove}}, []time.Duration{10 * ms, 75 * ms}},
		{"a token after a removal waits for both", []action{{10 * ms, remove}, {20 * ms, add}}, []time.Duration{10 * ms, 75*ms + 5*ms + 999*gapOfEach}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &paced{start: time.Now(), cluster: fake.NewClientset(&corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{Namespace: clusterinfo.Namespace, Name: clusterinfo.Name, ResourceVersion: "1"},
					Data:       map[string]string{clusterinfo.KubeconfigKey: "any"},
				})}
				client := must.Value(kubernetes.NewForConfig(&rest.Config{Host: "http://api", QPS: -1, Transport: p}))(t)
				live := Open(t.Context(), p.cluster)
				live.client = client
				synctest.Wait() // a fake watch has no earlier changes
				p.add(1000)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				registry := prometheus.NewRegistry()
				go func() { done <- Signer{ConfigMap: live, Tokens: p, Registerer: registry}.Run(ctx) }()
				for _, a := range test.actions {
					time.Sleep(time.Until(p.start.Add(a.at)))
					a.do(p)
				}
				time.Sleep(time.Second)
				synctest.Wait()
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
				if want := append([]time.Duration{0}, test.want...); !slices.Equal(p.writes, want) {
					t.Errorf("writes at %v, want %v", p.writes, want)
				}
				counted := map[string]float64{}
				for _, family := range must.Value(registry.Gather())(t) {
					for _, m := range family.GetMetric() {
						counted[family.GetName()] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
					}
				}
				if counted["kubejoin_clusterinfo_writes_total"] != float64(len(p.writes)) || counted["kubejoin_clusterinfo_signatures"] != float64(len(p.records)) {
					t.Errorf("got metrics %v, want %d writes and %d signatures", counted, len(p.writes), len(p.records))
				}
				if p.lookups > 0 {
					t.Errorf("%d lookups of tokens that were listed before, want none", p.lookups)
				}
			})
		})
	}
}
