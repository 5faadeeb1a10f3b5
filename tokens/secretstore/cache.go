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

// A cache has every object O of one kind as a value T, decoded and put in order once for each
// change: with 12,000 tokens a List after every burst of changes must not do it for all.
type cache[O metav1.Object, T any] struct {
	what    string // is followed, for people
	decode  func(O) (T, error)
	changed func(name string, value T, err error) // of each change, what decode made of it
	group   func(T) string                        // nil is no groups
	log     *slog.Logger

	hints  tokens.Hints
	synced chan struct{} // closed when all is there for the first time
	ended  <-chan struct{}

	mu      sync.Mutex
	entries entries[T]
	groups  map[string]entries[T]
	trouble error // why the first answer is not there yet
}

// An entry is what became of one object. It does not change.
type entry[T any] struct {
	name    string
	version string
	value   T
	err     error // of decode
}

// entries are in the order of their names.
type entries[T any] []*entry[T]

// follow starts the informer.
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
		return // the informer has read everything again, and this has not changed
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
		c.log.Error("informer gives a deleted object that has no name", "error", foreign.Text(err.Error(), foreign.MaxMessage))
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

// ungroup takes an entry out of its group.
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

// list gives what could be decoded. It shares with the cache what values point at.
func (c *cache[O, T]) list(ctx context.Context) ([]T, error) {
	if err := c.wait(ctx); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entries.values(), nil
}

// grouped is list for one group.
func (c *cache[O, T]) grouped(ctx context.Context, group string) ([]T, error) {
	if err := c.wait(ctx); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.groups[group].values(), nil
}

// get gives what became of the object of that name, or nil where there is none.
func (c *cache[O, T]) get(ctx context.Context, name string) (*entry[T], error) {
	if err := c.wait(ctx); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, found := c.entries.find(name); found {
		return c.entries[at], nil
	}
	return nil, nil
}

// find gives the place of a name, or the one that it would have.
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

// wait returns when the cache has everything that was there when it began to follow.
func (c *cache[O, T]) wait(ctx context.Context) error {
	select {
	case <-c.synced:
	case <-c.ended:
	case <-ctx.Done():
		c.mu.Lock()
		defer c.mu.Unlock()
		err := fmt.Errorf("no answer of the API server yet: %w", ctx.Err())
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
