// Package configmaps stores revocations in ConfigMaps. They are also the parameters of the ValidatingAdmissionPolicy in
// deploy/revocation.yaml.
package configmaps

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/kube/freshness"
	"github.com/kubejoin/kubejoin/internal/kube/kubecache"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// Label marks the ConfigMaps of revocations, with the value "true". Prefix, followed by one of Shards
// digits, is their name.
const (
	Label  = "kubejoin.io/revocation"
	Prefix = "kubejoin-revocation-"
	Shards = 8
)

const selector = Label + "=true"

// MaxNew is the maximum size of a ConfigMap for a new entry, in bytes of keys and values. The API server allows 1
// MiB. The rest is for the certificates that entries allow later.
const MaxNew = 512 << 10

// NearlyFull is the result of [Fill] at which an operator has to act.
const NearlyFull = 0.8

// Fill returns how full a ConfigMap of revocations is: 1 or more if it takes no new entry. Fill ignores entries that
// have ended, because the next write drops them.
func Fill(m *corev1.ConfigMap, now time.Time) float64 {
	size := 0
	for key, value := range m.Data {
		if e, err := revocation.Decode(key, []byte(value)); err != nil || !e.Ended(now) {
			size += len(key) + len(value)
		}
	}
	return float64(size) / MaxNew
}

// Fill returns how full the fullest ConfigMap in the cache is now. It decodes all entries.
func (l *List) Fill() (most float64) {
	for i := range Shards {
		if e := l.cache.Peek(fmt.Sprintf("%s%x", Prefix, i)); e != nil {
			most = max(most, Fill(e.Value.object, l.now()))
		}
	}
	return most
}

// maxConflicts is how often Update retries.
const maxConflicts = 20

// A List is a [revocation.Store] of the ConfigMaps in one namespace. It watches them.
type List struct {
	maps  typedcorev1.ConfigMapInterface
	log   *slog.Logger
	now   func() time.Time
	cache *kubecache.Cache[*corev1.ConfigMap, cachedMap]
	fresh freshness.Freshness
}

// A cachedMap is a ConfigMap with its entries.
type cachedMap struct {
	entries map[revocation.Key]revocation.Entry
	object  *corev1.ConfigMap // for Fill
}

var _ revocation.Store = (*List)(nil)

// Open returns a List that watches the ConfigMaps in a namespace until ctx ends. It does not wait for the API server.
// The identity of client needs the verbs get, list, watch, create and update on ConfigMaps in the namespace. If log is
// nil, List logs nothing.
func Open(ctx context.Context, client kubernetes.Interface, namespace string, log *slog.Logger) (*List, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	l := &List{maps: client.CoreV1().ConfigMaps(namespace), log: log, now: time.Now}
	l.cache = kubecache.Open(ctx, client, labelled{l.maps}, "", kubecache.Config[*corev1.ConfigMap, cachedMap]{
		What: "revocations",
		Decode: func(m *corev1.ConfigMap) (cachedMap, error) {
			m.BinaryData = nil // kubejoin does not read it
			return cachedMap{l.decode(m, true), m}, nil
		},
		Log: log,
	})
	l.fresh = freshness.Freshness{
		What: "revocations", Log: log,
		// List without the selector. A ConfigMap that has lost its label is then not treated as missing, but
		// read live.
		Prove: func() (freshness.Current, error) {
			return freshness.ListVersions(ctx, client, namespace, "configmaps", "labelSelector", "")
		},
		Price: func() int { return 2 },
	}
	return l, nil
}

// labelled lists and watches the ConfigMaps of revocations only.
type labelled struct{ typedcorev1.ConfigMapInterface }

func (l labelled) List(ctx context.Context, options metav1.ListOptions) (*corev1.ConfigMapList, error) {
	options.LabelSelector = selector
	return l.ConfigMapInterface.List(ctx, options)
}

func (l labelled) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.LabelSelector = selector
	return l.ConfigMapInterface.Watch(ctx, options)
}

// decode returns the entries of a ConfigMap. It ignores an entry whose key belongs to another ConfigMap: Update
// would not find the entry.
func (l *List) decode(m *corev1.ConfigMap, warn bool) map[revocation.Key]revocation.Entry {
	entries := make(map[revocation.Key]revocation.Entry, len(m.Data))
	for key, value := range m.Data {
		e, err := revocation.Decode(key, []byte(value))
		if err == nil {
			err = e.Malformed
			if shard(e.Key()) == m.Name {
				entries[e.Key()] = e
			} else {
				err = fmt.Errorf("revocation of %s belongs into ConfigMap %s", e.Key(), shard(e.Key()))
			}
		}
		if err != nil && warn {
			l.log.Warn("malformed revocation", "configmap", m.Name, "problem", safetext.Text(err.Error(), safetext.MaxMessage))
		}
	}
	return entries
}

// shard returns the name of the ConfigMap that stores a key.
func shard(key revocation.Key) string {
	sum := sha256.Sum256([]byte(key))
	return fmt.Sprintf("%s%x", Prefix, sum[0]%Shards)
}

// Get implements [revocation.Store]. With [tokens.Cached] it waits until the cache is filled for the first time or ctx
// ends.
func (l *List) Get(ctx context.Context, key revocation.Key, read tokens.Read) (revocation.Entry, error) {
	entries, err := l.shard(ctx, shard(key), read)
	if err != nil {
		return revocation.Entry{}, fmt.Errorf("revocations: %w", err)
	}
	if e, found := entries[key]; found {
		return e, nil
	}
	return revocation.Entry{}, fmt.Errorf("%s: %w", key, revocation.ErrNotFound)
}

// shard returns the entries of the ConfigMap with that name.
func (l *List) shard(ctx context.Context, name string, read tokens.Read) (map[revocation.Key]revocation.Entry, error) {
	switch read {
	case tokens.Cached:
		cached, err := l.cache.Get(ctx, name)
		if err != nil || cached == nil {
			return nil, err
		}
		return cached.Value.entries, nil
	case tokens.Recent:
		if cached := l.cache.Peek(name); cached == nil && l.fresh.Proves(name, "") {
			return nil, nil
		} else if cached != nil && l.fresh.Proves(name, cached.Version) {
			return cached.Value.entries, nil
		}
	}
	m, err := l.maps.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	return l.decode(m, false), nil
}

// List implements [revocation.Store]. With [tokens.Cached] it waits like Get.
func (l *List) List(ctx context.Context, read tokens.Read) ([]revocation.Entry, error) {
	var all []revocation.Entry
	if read != tokens.Cached {
		list, err := l.maps.List(ctx, metav1.ListOptions{}) // includes a ConfigMap that has lost its label
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			all = slices.AppendSeq(all, maps.Values(l.decode(&list.Items[i], false)))
		}
		return sorted(all), nil
	}
	cached, err := l.cache.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("revocations: %w", err)
	}
	for _, m := range cached {
		all = slices.AppendSeq(all, maps.Values(m.entries))
	}
	return sorted(all), nil
}

// Watch returns a channel that receives a value after each change of the cache, until ctx ends.
func (l *List) Watch(ctx context.Context) <-chan struct{} { return l.cache.Watch(ctx) }

func sorted(all []revocation.Entry) []revocation.Entry {
	slices.SortFunc(all, func(a, b revocation.Entry) int { return strings.Compare(string(a.Key()), string(b.Key())) })
	return all
}

// Update implements [revocation.Store]. It also drops ended entries of the same ConfigMap when it writes.
func (l *List) Update(ctx context.Context, key revocation.Key, change func(*revocation.Entry) (*revocation.Entry, error)) (*revocation.Entry, error) {
	for n := 0; ; n++ {
		result, err := l.updateOnce(ctx, key, change)
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) || n == maxConflicts {
			return result, err
		}
	}
}

func (l *List) updateOnce(ctx context.Context, key revocation.Key, change func(*revocation.Entry) (*revocation.Entry, error)) (*revocation.Entry, error) {
	name := shard(key)
	defer l.fresh.Wrote(name)
	m, err := l.maps.Get(ctx, name, metav1.GetOptions{})
	exists := err == nil
	if apierrors.IsNotFound(err) {
		m = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{Label: "true"}}}
	} else if err != nil {
		return nil, err
	}
	var before *revocation.Entry
	if value, found := m.Data[string(key)]; found {
		e, err := revocation.Decode(string(key), []byte(value))
		if err != nil {
			return nil, err
		}
		before = &e
	}
	after, err := change(before)
	if err != nil || after == before {
		return before, err
	}
	if m.Data == nil {
		m.Data = map[string]string{}
	}
	if m.Labels == nil {
		m.Labels = map[string]string{}
	}
	m.Labels[Label] = "true" // without it neither the cache nor the policy would see the entry
	l.dropEnded(m)
	delete(m.Data, string(key))
	if after != nil {
		value, err := revocation.Encode(*after)
		if err != nil {
			return nil, err
		}
		m.Data[string(key)] = string(value)
		if size := sizeOf(m); before == nil && size > MaxNew {
			return nil, fmt.Errorf("%w: ConfigMap %s would have %d bytes, want at most %d", revocation.ErrFull, name, size, MaxNew)
		}
		stored, err := revocation.Decode(string(key), value)
		if err != nil {
			return nil, err
		}
		after = &stored
	}
	// The resourceVersion makes the update conditional.
	if exists {
		_, err = l.maps.Update(ctx, m, metav1.UpdateOptions{})
	} else {
		_, err = l.maps.Create(ctx, m, metav1.CreateOptions{})
	}
	return after, err
}

func (l *List) dropEnded(m *corev1.ConfigMap) {
	for key, e := range l.decode(m, false) {
		if e.Ended(l.now()) {
			delete(m.Data, string(key))
		}
	}
}

func sizeOf(m *corev1.ConfigMap) (size int) {
	for key, value := range m.Data {
		size += len(key) + len(value)
	}
	return size
}
