package secretstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/kubejoin/kubejoin/internal/foreign"
	"github.com/kubejoin/kubejoin/tokens"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientcache "k8s.io/client-go/tools/cache"
)

// A cache contains all objects O of one kind, each decoded to a value T and sorted by name. It decodes only
// objects that change: with 12,000 tokens, a List after every burst of changes must not decode all of them.
type cache[O metav1.Object, T any] struct {
	what    string // what is watched, for log messages
	decode  func(O) (T, error)
	changed func(name string, value T, err error) // called after each change with the result of decode
	group   func(T) string                        // returns the group of a value; nil means no groups
	log     *slog.Logger

	hints  tokens.Hints
	synced chan struct{} // closed when the cache is filled for the first time
	ended  <-chan struct{}

	mu      sync.Mutex
	entries entries[T]
	groups  map[string]entries[T]
	trouble error // the last error of the watch, for wait
}

// An entry is the result of decoding one object. It is immutable.
type entry[T any] struct {
	name    string
	version string
	value   T
	err     error // of decode
}

// entries are sorted by name.
type entries[T any] []*entry[T]

// follow starts the informer, which stops when ctx ends.
func (c *cache[O, T]) follow(ctx context.Context, source clientcache.ListerWatcher, example runtime.Object) error {
	c.synced, c.ended = make(chan struct{}), ctx.Done()
	informer := clientcache.NewSharedIndexInformer(source, example, 0, nil)
	handler, err := informer.AddEventHandler(clientcache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { c.set(object) },
		UpdateFunc: func(_, object any) { c.set(object) },
		DeleteFunc: c.remove,
	})
	err = errors.Join(err,
		informer.SetTransform(dropManagedFields),
		informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *clientcache.Reflector, err error) { c.watchFailed(err) }))
	if err != nil {
		return err
	}
	go informer.RunWithContext(ctx)
	go func() {
		if clientcache.WaitForCacheSync(ctx.Done(), handler.HasSynced) {
			close(c.synced)
			c.hints.Send()
		}
	}()
	return nil
}

// dropManagedFields saves about a third of the memory.
func dropManagedFields(object any) (any, error) {
	if o, err := meta.Accessor(object); err == nil {
		o.SetManagedFields(nil)
	}
	return object, nil
}

func (c *cache[O, T]) set(object any) {
	o, ok := object.(O)
	if !ok {
		return
	}
	c.mu.Lock()
	at, found := c.entries.find(o.GetName())
	if found && c.entries[at].version == o.GetResourceVersion() {
		c.mu.Unlock()
		return // the informer has listed all objects again, and this one has not changed
	}
	value, err := c.decode(o)
	if found {
		c.ungroup(c.entries[at])
	}
	e := &entry[T]{name: o.GetName(), version: o.GetResourceVersion(), value: value, err: err}
	c.entries.put(e)
	if c.group != nil && err == nil {
		if c.groups == nil {
			c.groups = map[string]entries[T]{}
		}
		group := c.groups[c.group(value)]
		group.put(e)
		c.groups[c.group(value)] = group
	}
	c.mu.Unlock()
	c.hints.Send()
	c.changed(e.name, value, err)
}

func (c *cache[O, T]) remove(object any) {
	key, err := clientcache.DeletionHandlingObjectToName(object)
	if err != nil {
		c.log.Error("informer returned a deleted object without a name", "error", foreign.Text(err.Error(), foreign.MaxMessage))
		return
	}
	c.mu.Lock()
	if at, found := c.entries.find(key.Name); found {
		c.ungroup(c.entries[at])
		c.entries = slices.Delete(c.entries, at, at+1)
	}
	c.mu.Unlock()
	c.hints.Send()
}

// ungroup removes an entry from its group.
func (c *cache[O, T]) ungroup(e *entry[T]) {
	if c.group == nil || e.err != nil {
		return
	}
	name := c.group(e.value)
	group := c.groups[name]
	if at, found := group.find(e.name); found {
		group = slices.Delete(group, at, at+1)
	}
	if c.groups[name] = group; len(group) == 0 {
		delete(c.groups, name)
	}
}

// outage logs that the API server does not respond or, if err is nil, that it responds again.
func (c *cache[O, T]) outage(err error) {
	if err == nil {
		c.log.Info("watch works again", "objects", c.what)
		return
	}
	c.log.Warn("watch failed: API server unreachable, retrying", "objects", c.what, "error", foreign.Text(err.Error(), foreign.MaxMessage))
	c.mu.Lock()
	c.trouble = err
	c.mu.Unlock()
}

// watchFailed logs that the watch has stopped. The informer restarts it with backoff.
func (c *cache[O, T]) watchFailed(err error) {
	if errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		c.log.Debug("watch ended, restarting", "objects", c.what, "reason", foreign.Text(err.Error(), foreign.MaxMessage))
		return
	}
	c.log.Warn("watch failed, retrying", "objects", c.what, "error", foreign.Text(err.Error(), foreign.MaxMessage))
	c.mu.Lock()
	c.trouble = err
	c.mu.Unlock()
}

// list returns the values of all objects without a decode error. They share memory with the cache.
func (c *cache[O, T]) list(ctx context.Context) ([]T, error) {
	if err := c.wait(ctx); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entries.values(), nil
}

// grouped is like list, but for one group.
func (c *cache[O, T]) grouped(ctx context.Context, group string) ([]T, error) {
	if err := c.wait(ctx); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.groups[group].values(), nil
}

// get returns the entry of the object with this name, or nil if there is none.
func (c *cache[O, T]) get(ctx context.Context, name string) (*entry[T], error) {
	if err := c.wait(ctx); err != nil {
		return nil, err
	}
	return c.peek(name), nil
}

// peek is like get, but does not wait until the cache is filled.
func (c *cache[O, T]) peek(name string) *entry[T] {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, found := c.entries.find(name); found {
		return c.entries[at]
	}
	return nil
}

// find returns the index of a name, or the index at which to insert it.
func (e entries[T]) find(name string) (at int, found bool) {
	return slices.BinarySearchFunc(e, name, func(e *entry[T], name string) int { return strings.Compare(e.name, name) })
}

func (e *entries[T]) put(one *entry[T]) {
	at, found := e.find(one.name)
	if found {
		(*e)[at] = one
		return
	}
	*e = slices.Insert(*e, at, one)
}

func (e entries[T]) values() []T {
	all := make([]T, 0, len(e))
	for _, one := range e {
		if one.err == nil {
			all = append(all, one.value)
		}
	}
	return all
}

// wait waits until the cache is filled for the first time. It returns an error if ctx or the context of the
// store has ended.
func (c *cache[O, T]) wait(ctx context.Context) error {
	select {
	case <-c.synced:
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
		return errors.New("the context of the store has ended")
	default:
		return nil
	}
}
