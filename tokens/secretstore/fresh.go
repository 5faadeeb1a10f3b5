package secretstore

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
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// A freshness reports which entries of a cache are proven to be less than [tokens.MaxAge] old. A proof counts from its
// beginning, because it reads or writes the API server only after that. No reader waits for a proof: without one, it
// reads live. So a watch that lags or hangs, a lost connection and an API server that does not respond need no special
// case.
type freshness struct {
	what string // what is cached, for log messages
	log  *slog.Logger
	// prove returns which versions of which entries are current at a moment after it was called.
	prove func() (current func(name, version string) bool, err error)
	// price returns how many reads cost as much as a proof. With fewer reads within MaxAge, no proof begins.
	price func() int

	mu      sync.Mutex
	proving bool
	failing bool // the last proof failed, and this is logged
	current func(name, version string) bool
	since   time.Time // when the proof of current began
	began   time.Time // when the last proof began
	reads   int       // since counted
	counted time.Time
	written map[string]time.Time // when writes of this store returned, by entry or group
	settled time.Time            // a valid proof began after this; replaces written if it is full
}

const (
	// proofAge is the least time between the beginnings of two proofs. It lets a proof finish before the last one
	// expires.
	proofAge = tokens.MaxAge / 2
	// maxOwnWrites is the largest size of freshness.written.
	maxOwnWrites = 10_000
)

// proves reports whether an entry or a group of the cache is proven to be current, and counts a read. After a write of
// this store, the entry is unproven until a proof that began later.
func (f *freshness) proves(key, version string) bool {
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

// recent reports whether less than [tokens.MaxAge] has passed, by both clocks: the monotonic clock stops while a
// virtual machine is paused.
func recent(since, now time.Time) bool {
	wall := now.Round(0).Sub(since.Round(0))
	return now.Sub(since) < tokens.MaxAge && wall >= 0 && wall < tokens.MaxAge
}

// count counts a read, and begins a proof if enough reads would share it.
func (f *freshness) count(now time.Time) {
	if now.Sub(f.counted) >= tokens.MaxAge {
		f.reads, f.counted = 0, now
	}
	if f.reads++; f.proving || now.Sub(f.began) < proofAge || f.reads < f.price() {
		return
	}
	f.reads, f.counted, f.proving, f.began = 0, now, true, now
	go func() {
		current, err := f.prove()
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

// report logs when proofs begin to fail, and when they work again.
func (f *freshness) report(err error) {
	switch failed := err != nil; {
	case failed == f.failing, errors.Is(err, context.Canceled): // no change, or the store was closed
	case failed:
		f.failing = true
		f.log.Warn("no proof that the cache is current, each request reads live", "objects", f.what, "error", safetext.Text(err.Error(), safetext.MaxMessage))
	default:
		f.failing = false
		f.log.Info("the cache is proven to be current again", "objects", f.what)
	}
}

// wrote records that a write of these entries and groups has returned, with or without an error.
func (f *freshness) wrote(keys ...string) {
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

// listVersions proves which cached tokens are current. One request lists the resourceVersions of all tokens.
func listVersions(ctx context.Context, client kubernetes.Interface) (current func(name, version string) bool, err error) {
	if fakeclient.Is(client.CoreV1()) {
		return nil, errors.New("a fake client lists no metadata")
	}
	ctx, cancel := context.WithTimeout(ctx, tokens.MaxAge)
	defer cancel()
	var list metav1.PartialObjectMetadataList
	err = client.CoreV1().RESTClient().Get().Namespace(metav1.NamespaceSystem).Resource("secrets").
		Param("fieldSelector", onlyTokens).SetHeader("Accept", kubecache.MetadataList).Do(ctx).Into(&list)
	if err != nil {
		return nil, fmt.Errorf("list the versions of bootstrap tokens: %w", err)
	}
	versions := make(map[string]string, len(list.Items))
	for _, secret := range list.Items {
		versions[secret.Name] = secret.ResourceVersion
	}
	return func(name, version string) bool { return version != "" && versions[name] == version }, nil
}

// ProofLease is the name of the Lease that every replica writes to prove that its cache of claims is current. It is not a
// claim, but has the label that the watch of claims selects.
const ProofLease = tokens.OwnName + "-proof"

// proof is the claimLabel of ProofLease.
const proof = "proof"

// writeProof proves that all cached claims are current. It writes a Lease, and waits until the watch of claims shows
// this write. The watch shows changes in their order, so the cache then has all earlier ones.
func (s *Claims) writeProof(ctx context.Context) (current func(name, version string) bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, tokens.MaxAge)
	defer cancel()
	back, before := s.proofs.Watch(ctx), s.cache.Version()
	version, err := s.touchProof(ctx)
	if err != nil {
		return nil, fmt.Errorf("write Lease %s/%s: %w", s.namespace, ProofLease, err)
	}
	if s.restored = s.restored || newer(before, version); s.restored {
		// The watch omits all changes up to the version of the cache.
		return nil, errRestored
	}
	for {
		if seen := s.cache.Peek(ProofLease); seen != nil && !newer(version, seen.Version) {
			return func(string, string) bool { return true }, nil
		}
		select {
		case <-back:
		case <-ctx.Done():
			return nil, fmt.Errorf("the watch has not brought back Lease %s/%s within %s: %w", s.namespace, ProofLease, tokens.MaxAge, ctx.Err())
		}
	}
}

// newer reports whether resourceVersion a is newer than b. It compares them as decimal numbers (KEP-5504). The empty
// version is older than all others.
func newer(a, b string) bool {
	return len(a) > len(b) || len(a) == len(b) && a > b
}

// errRestored means that etcd has an older resourceVersion than the cache.
var errRestored = errors.New("etcd was restored from a backup; restart kubejoin, like all programs that watch the API server")

// touchProof writes the Lease ProofLease and returns its new resourceVersion.
func (s *Claims) touchProof(ctx context.Context) (version string, err error) {
	lease := s.proof
	for s.proof = nil; ; {
		creating, now := lease == nil, metav1.NowMicro()
		if creating {
			lease, err = s.leases.Create(ctx, &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: ProofLease, Labels: map[string]string{claimLabel: proof}},
				Spec:       coordinationv1.LeaseSpec{RenewTime: &now},
			}, metav1.CreateOptions{})
		} else {
			lease.Labels, lease.Spec.RenewTime = map[string]string{claimLabel: proof}, &now
			lease, err = s.leases.Update(ctx, lease, metav1.UpdateOptions{})
		}
		if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) { // another replica was faster
			lease, err = s.leases.Get(ctx, ProofLease, metav1.GetOptions{})
			creating = false
		} else if err == nil {
			s.proof = lease
			return lease.ResourceVersion, nil
		}
		if apierrors.IsNotFound(err) && !creating { // the Lease was deleted
			lease, err = nil, nil
		}
		if err != nil {
			return "", err
		}
	}
}
