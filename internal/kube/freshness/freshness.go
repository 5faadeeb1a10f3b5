// Package freshness proves that a cache of the API server is current, so that many reads share one request.
package freshness

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/kube/fakeclient"
	"github.com/kubejoin/kubejoin/internal/kube/kubecache"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/tokens"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Current reports whether a version of an entry is current. The empty version means that the cache has no such entry.
type Current func(name, version string) bool

// A Freshness reports which entries of a cache are proven to be less than [tokens.MaxAge] old. The age of a proof is
// measured from its start, because the proof accesses the API server only after its start. No reader waits for a
// proof: without a proof, the reader reads live. So a watch that lags or hangs, a lost connection and an API server
// that does not respond need no special case.
type Freshness struct {
	// What names the cached objects in log messages.
	What string
	Log  *slog.Logger
	// Prove returns which versions of which entries were current at some moment during the call.
	Prove func() (current Current, err error)
	// Price returns how many reads cost as much as a proof. With fewer reads within MaxAge, no proof starts.
	Price func() int

	mu      sync.Mutex
	proving bool
	failing bool // the last proof failed, and this is logged
	current Current
	since   time.Time // when the proof of current began
	began   time.Time // when the last proof began
	reads   int       // reads since counted
	counted time.Time
	written map[string]time.Time // by entry or group: when the last write of this store returned
	settled time.Time            // earlier proofs are invalid; used when written was full and has been dropped
}

const (
	// proofAge is the minimum time between the starts of two proofs. It lets a proof finish before the last one expires.
	proofAge = tokens.MaxAge / 2
	// maxOwnWrites is the maximum number of entries in Freshness.written.
	maxOwnWrites = 10_000
)

// Proves reports whether an entry or a group of the cache is proven to be current, and counts a read. After a write by
// this store, the entry is unproven until a proof that starts after the write.
func (f *Freshness) Proves(key, version string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	f.count(now)
	if f.current == nil || !recent(f.since, now) || !f.since.After(f.settled) || !f.current(key, version) {
		return false
	}
	at, written := f.written[key]
	return !written || f.since.After(at)
}

// recent reports whether less than [tokens.MaxAge] has passed, by both clocks. The wall clock may be set, and the
// monotonic clock stops while a virtual machine is paused.
func recent(since, now time.Time) bool {
	wall := now.Round(0).Sub(since.Round(0))
	return now.Sub(since) < tokens.MaxAge && wall >= 0 && wall < tokens.MaxAge
}

// count counts a read, and starts a proof if enough reads would share the proof.
func (f *Freshness) count(now time.Time) {
	if now.Sub(f.counted) >= tokens.MaxAge {
		f.reads, f.counted = 0, now
	}
	if f.reads++; f.proving || now.Sub(f.began) < proofAge || f.reads < f.Price() {
		return
	}
	f.reads, f.counted, f.proving, f.began = 0, now, true, now
	go func() {
		current, err := f.Prove()
		f.mu.Lock()
		defer f.mu.Unlock()
		f.proving = false
		f.report(err)
		if err != nil {
			return
		}
		f.current, f.since = current, now
		for key, at := range f.written {
			if now.After(at) {
				delete(f.written, key)
			}
		}
	}()
}

// report logs when proofs start to fail, and when they succeed again.
func (f *Freshness) report(err error) {
	switch failed := err != nil; {
	case failed == f.failing, errors.Is(err, context.Canceled): // no change, or the store was closed
	case failed:
		f.failing = true
		f.Log.Warn("no proof that the cache is current, each request reads live", "objects", f.What, "error", safetext.Text(err.Error(), safetext.MaxMessage))
	default:
		f.failing = false
		f.Log.Info("the cache is proven to be current again", "objects", f.What)
	}
}

// Wrote records that a write of these entries and groups has returned, with or without an error.
func (f *Freshness) Wrote(keys ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if len(f.written) >= maxOwnWrites {
		f.written, f.settled = nil, now
	}
	if f.written == nil {
		f.written = map[string]time.Time{}
	}
	for _, key := range keys {
		f.written[key] = now
	}
}

// ListVersions proves which cached objects are current. With one request, it lists the resourceVersions of the
// objects that match selector. selects is "fieldSelector" or "labelSelector".
func ListVersions(ctx context.Context, client kubernetes.Interface, namespace, resource, selects, selector string) (Current, error) {
	if fakeclient.Is(client.CoreV1()) {
		return nil, errors.New("a fake client lists no metadata")
	}
	ctx, cancel := context.WithTimeout(ctx, tokens.MaxAge)
	defer cancel()
	var list metav1.PartialObjectMetadataList
	err := client.CoreV1().RESTClient().Get().Namespace(namespace).Resource(resource).
		Param(selects, selector).SetHeader("Accept", kubecache.MetadataList).Do(ctx).Into(&list)
	if err != nil {
		return nil, fmt.Errorf("list the versions of %s: %w", resource, err)
	}
	versions := make(map[string]string, len(list.Items))
	for _, object := range list.Items {
		versions[object.Name] = object.ResourceVersion
	}
	return func(name, version string) bool { return versions[name] == version }, nil
}
