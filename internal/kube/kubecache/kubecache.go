// Package kubecache caches decoded Kubernetes objects of one kind. A [Cache] keeps only the decoded values, which are
// smaller than the objects. It decodes only objects that have changed.
package kubecache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/kubejoin/kubejoin/internal/kube/fakeclient"
	"github.com/kubejoin/kubejoin/internal/kube/outage"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/tokens"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// MetadataList is the Accept header that requests a list of objects with their metadata only.
const MetadataList = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1," +
	"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// Config describes the objects O of a [Cache] and their values T. Only What and Decode are required.
type Config[O metav1.Object, T any] struct {
	What string // names the objects in log messages, in the plural

	// Decode returns the value of an object. The value may contain the object, which then loses its managed fields. If
	// Decode fails, the cache has an [Entry] with the error.
	Decode func(O) (T, error)

	Groups  func(T) []string                      // returns the groups of a value; nil means no groups
	Same    func(before, now T) bool              // reports whether a change needs no hint; nil means that each change needs one
	Changed func(name string, value T, err error) // called with the result of Decode after an addition or change
	Log     *slog.Logger                          // for failures of the watch; nil: klog
}

// A Cache contains all objects O of a resource as values T, sorted by name. [Open] creates it. Its methods may be
// called concurrently.
//
// The cache applies changes in the order of the watch. When client-go lists the objects again, the cache replaces all
// entries in one step. So when the cache has a version of an object, it also has all earlier changes of the resource.
type Cache[O metav1.Object, T any] struct {
	config Config[O, T]
	hints  tokens.Hints
	filled chan struct{} // closed when the cache is filled for the first time
	ended  <-chan struct{}

	shared bool // the objects of the watch belong to a fake client, and others may read them

	mu      sync.Mutex
	index   index[T]
	version string // the result of Version
	decoder int    // the number of calls of DecodeAgain
	relist  func() // ends the list or the watch; another one begins
	trouble error  // the last error of the watch, for wait
}

// An Entry is the result of decoding one object. It is immutable.
type Entry[T any] struct {
	Name    string
	Version string // the resourceVersion
	Value   T
	Err     error // error of Decode

	decoder int // of the cache, before Decode
}

// Open returns a cache that watches a resource until ctx ends. After that, only Peek and Len work. Open does not wait
// for the API server. Open passes client and fieldSelector to [outage.Follow].
func Open[L runtime.Object, O metav1.Object, T any](ctx context.Context, client any, resource outage.Resource[L], fieldSelector string, config Config[O, T]) *Cache[O, T] {
	if config.Log == nil {
		config.Log = slog.New(logr.ToSlogHandler(klog.Background()))
	}
	c := &Cache[O, T]{shared: isFake(client), config: config, filled: make(chan struct{}), ended: ctx.Done(), index: index[T]{groupsOf: config.Groups}}
	go c.follow(ctx, outage.Follow(client, resource, fieldSelector, c.outage))
	return c
}

// isFake reports whether client is a fake clientset of client-go. The cache must copy the objects of a fake before it
// changes them.
func isFake(client any) bool {
	c, ok := client.(kubernetes.Interface)
	return ok && fakeclient.Is(c.CoreV1())
}

// follow lists and watches until ctx ends. It replaces the loop of client-go, which would report errors only to klog,
// and backs off in the same way.
func (c *Cache[O, T]) follow(ctx context.Context, source cache.ListerWatcher) {
	var example O
	reflector := cache.NewReflectorWithOptions(source, example, store[O, T]{c}, cache.ReflectorOptions{Name: c.config.What, TypeDescription: c.config.What})
	pace := wait.Backoff{Duration: 800 * time.Millisecond, Cap: 30 * time.Second, Factor: 2, Steps: 10, Jitter: 1}.DelayWithReset(clock.RealClock{}, 2*time.Minute)
	_ = pace.Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		ctx, relist := context.WithCancel(ctx)
		defer relist()
		c.mu.Lock()
		c.relist = relist
		c.mu.Unlock()
		if err := reflector.ListAndWatchWithContext(ctx); err != nil && ctx.Err() == nil {
			c.watchFailed(err)
		}
		return false, nil
	})
}

// DecodeAgain makes the cache list and decode all objects again, because Decode has changed. Until then, for up to a minute,
// the cache has the values of before, except for Peek.
func (c *Cache[O, T]) DecodeAgain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.decoder++
	if c.relist != nil {
		c.relist()
	}
}

// outage logs that the API server does not respond or, if err is nil, that it responds again.
func (c *Cache[O, T]) outage(err error) {
	if err == nil {
		c.config.Log.Info("watch works again", "objects", c.config.What)
		return
	}
	c.warn("watch failed: API server unreachable, retrying", err)
}

// watchFailed logs that the watch has stopped. follow restarts it.
func (c *Cache[O, T]) watchFailed(err error) {
	if errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		c.config.Log.Debug("watch ended, restarting", "objects", c.config.What, "reason", safetext.Text(err.Error(), safetext.MaxMessage))
		return
	}
	c.warn("watch failed, retrying", err)
}

func (c *Cache[O, T]) warn(message string, err error) {
	c.config.Log.Warn(message, "objects", c.config.What, "error", safetext.Text(err.Error(), safetext.MaxMessage))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trouble = err
}

// Watch returns a channel that receives a hint at once, and a hint after each change that needs one, until ctx ends.
// See [tokens.Hints].
func (c *Cache[O, T]) Watch(ctx context.Context) <-chan struct{} { return c.hints.Watch(ctx) }

// List returns the values of all objects without a decode error, sorted by name. They share memory with the cache. Like
// Grouped and Get, it waits until the cache is filled for the first time. These methods return an error if ctx or the
// context of the cache has ended.
func (c *Cache[O, T]) List(ctx context.Context) ([]T, error) {
	if err := c.wait(ctx); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.index.all.values(), nil
}

// Grouped is like List, but for one group.
func (c *Cache[O, T]) Grouped(ctx context.Context, group string) ([]T, error) {
	if err := c.wait(ctx); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.index.groups[group].values(), nil
}

// Get returns the entry with this name, or nil.
func (c *Cache[O, T]) Get(ctx context.Context, name string) (*Entry[T], error) {
	if err := c.wait(ctx); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.index.all.get(name), nil
}

// Peek is like Get, but does not wait until the cache is filled, and has no entry from before the last DecodeAgain. A nil cache
// has no entries.
func (c *Cache[O, T]) Peek(name string) *Entry[T] {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.index.all.get(name); e != nil && e.decoder == c.decoder {
		return e
	}
	return nil
}

// Len returns the number of objects, and whether the cache is filled.
func (c *Cache[O, T]) Len() (objects int, filled bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.filled:
		filled = true
	default:
	}
	return len(c.index.all), filled
}

// Version returns the resourceVersion that the cache has reached; empty until it is filled.
func (c *Cache[O, T]) Version() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.version
}

// wait waits until the cache is filled for the first time.
func (c *Cache[O, T]) wait(ctx context.Context) error {
	select {
	case <-c.filled:
	case <-c.ended:
	case <-ctx.Done():
		c.mu.Lock()
		defer c.mu.Unlock()
		err := fmt.Errorf("no response from the API server yet: %w", ctx.Err())
		if c.trouble != nil {
			err = fmt.Errorf("%w (%w)", err, c.trouble)
		}
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-c.ended:
		return errors.New("the context of the watch has ended")
	default:
		return nil
	}
}
