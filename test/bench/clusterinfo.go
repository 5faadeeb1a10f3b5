package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// patience is how long a step may take before the run fails.
const patience = 5 * time.Minute

// clusterInfo records when each signature in cluster-info first appeared, and when it disappeared.
type clusterInfo struct {
	mu       sync.Mutex
	versions int // number of versions seen
	there    map[string]bool
	signed   map[string]time.Time // by token ID
	gone     map[string]time.Time
	changed  chan struct{} // closed at every change
}

func watchClusterInfo(ctx context.Context, c client) (*clusterInfo, error) {
	w := &clusterInfo{there: map[string]bool{}, signed: map[string]time.Time{}, gone: map[string]time.Time{}, changed: make(chan struct{})}
	// An informer, not a plain watch: a server under load closes watches.
	informer := informers.NewSharedInformerFactoryWithOptions(c, 0, informers.WithNamespace("kube-public"),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, "cluster-info").String()
		})).Core().V1().ConfigMaps().Informer()
	handler, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { w.see(o) },
		UpdateFunc: func(_, o any) { w.see(o) },
	})
	if err != nil {
		return nil, err
	}
	go informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), handler.HasSynced) {
		return nil, context.Cause(ctx)
	}
	return w, nil
}

func (w *clusterInfo) see(object any) {
	configMap, ok := object.(*corev1.ConfigMap)
	if !ok {
		return
	}
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.versions++
	for key := range configMap.Data {
		if id, ok := strings.CutPrefix(key, "jws-kubeconfig-"); ok && !w.there[id] {
			w.there[id], w.signed[id] = true, now
		}
	}
	for id := range w.there {
		if _, still := configMap.Data["jws-kubeconfig-"+id]; !still {
			delete(w.there, id)
			w.gone[id] = now
		}
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

// writes returns how many versions of cluster-info were seen so far.
func (w *clusterInfo) writes() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.versions
}

func (w *clusterInfo) waitSigned(ctx context.Context, id string) (time.Time, error) {
	err := w.wait(ctx, "the signature of token "+id, func() bool { return !w.signed[id].IsZero() })
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.signed[id], err
}

// waitAll waits until all IDs have a time in times, which is w.signed or w.gone, and returns the times.
func (w *clusterInfo) waitAll(ctx context.Context, what string, ids []string, times map[string]time.Time) ([]time.Time, error) {
	left := 0
	err := w.wait(ctx, what, func() bool {
		left = 0
		for _, id := range ids {
			if times[id].IsZero() {
				left++
			}
		}
		return left == 0
	})
	if err != nil {
		return nil, fmt.Errorf("%w; %d of %d tokens are missing", err, left, len(ids))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]time.Time, len(ids))
	for i, id := range ids {
		all[i] = times[id]
	}
	return all, nil
}

// wait waits until done returns true. It calls done with w locked.
func (w *clusterInfo) wait(ctx context.Context, what string, done func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not complete within %s", patience))
	defer cancel()
	for {
		w.mu.Lock()
		finished, changed := done(), w.changed
		w.mu.Unlock()
		if finished {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, context.Cause(ctx))
		}
	}
}
