package kubecache

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// A store lets the reflector of client-go fill a cache. The reflector calls one method at a time.
type store[O metav1.Object, T any] struct{ *Cache[O, T] }

var (
	_ cache.TransformingStore      = store[*metav1.ObjectMeta, any]{}
	_ cache.ResourceVersionUpdater = store[*metav1.ObjectMeta, any]{}
)

// Transformer returns a function that decodes an object. While the API server streams a list, the reflector keeps the
// decoded entries instead of whole objects.
func (s store[O, T]) Transformer() cache.TransformFunc {
	return func(object any) (any, error) { return s.decode(object) }
}

// decode returns the entry of an object. If the object has not changed, it returns the cached entry: after an
// interruption, the reflector lists all objects again.
func (s store[O, T]) decode(object any) (*Entry[T], error) {
	if e, ok := object.(*Entry[T]); ok { // the Transformer has decoded it
		return e, nil
	}
	o, ok := object.(O)
	if !ok {
		return nil, fmt.Errorf("got an object of type %T in the watch of %s", object, s.config.What)
	}
	s.mu.Lock()
	before, decoder := s.index.all.get(o.GetName()), s.decoder
	s.mu.Unlock()
	if before != nil && before.decoder == decoder && before.Version != "" && before.Version == o.GetResourceVersion() {
		return before, nil
	}
	if shared, ok := object.(runtime.Object); ok && s.shared {
		o, _ = shared.DeepCopyObject().(O)
	}
	e := &Entry[T]{Name: o.GetName(), Version: o.GetResourceVersion(), decoder: decoder}
	e.Value, e.Err = s.config.Decode(o)
	o.SetManagedFields(nil) // managed fields take about a third of the memory of an object
	return e, nil
}

func (s store[O, T]) Add(object any) error {
	e, err := s.decode(object)
	if err != nil {
		return err
	}
	s.mu.Lock()
	before := s.index.put(e)
	s.mu.Unlock()
	if before == e {
		return nil
	}
	same := s.config.Same
	if same == nil || before == nil || before.Err != nil || e.Err != nil || !same(before.Value, e.Value) {
		s.hints.Send()
	}
	s.changed(e)
	return nil
}

func (s store[O, T]) Update(object any) error { return s.Add(object) }

func (s store[O, T]) Delete(object any) error {
	o, ok := object.(O)
	if !ok {
		return fmt.Errorf("got an object of type %T in the watch of %s", object, s.config.What)
	}
	s.mu.Lock()
	s.index.remove(o.GetName())
	s.mu.Unlock()
	s.hints.Send()
	return nil
}

// Replace replaces all entries in one step: readers never see a part of the list.
func (s store[O, T]) Replace(objects []any, version string) error {
	list := make(entries[T], len(objects))
	for i, object := range objects {
		var err error
		if list[i], err = s.decode(object); err != nil {
			return err
		}
	}
	slices.SortFunc(list, func(a, b *Entry[T]) int { return strings.Compare(a.Name, b.Name) })
	next := index[T]{groupsOf: s.config.Groups, all: make(entries[T], 0, len(list))}
	for _, e := range list { // sorted by name, so that put appends each entry
		next.put(e)
	}
	s.mu.Lock()
	before := s.index
	s.index, s.version = next, version
	s.mu.Unlock()
	select {
	case <-s.filled:
	default:
		close(s.filled)
	}
	s.hints.Send()
	for _, e := range list {
		if before.all.get(e.Name) != e {
			s.changed(e)
		}
	}
	return nil
}

func (s store[O, T]) changed(e *Entry[T]) {
	if s.config.Changed != nil {
		s.config.Changed(e.Name, e.Value, e.Err)
	}
}

// UpdateResourceVersion records the version of the last event. The reflector calls it after each event.
func (s store[O, T]) UpdateResourceVersion(version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version = version
}

func (s store[O, T]) Resync() error { return nil }
