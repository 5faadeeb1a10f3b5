package kubecache_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/kube/kubecache"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
)

var errMalformed = errors.New("malformed")

// object returns an object whose value is text. Each word of the text is a group.
func object(name, version, text string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}},
		Data:       map[string]string{"text": text},
	}
}

// source is a fake resource.
type source struct {
	mu      sync.Mutex
	items   []*corev1.ConfigMap
	err     error // error of List
	hangs   bool  // whether Watch hangs
	lists   int
	watches []metav1.ListOptions
	w       *watch.FakeWatcher // watcher of the last request to watch
}

func (s *source) List(context.Context, metav1.ListOptions) (*corev1.ConfigMapList, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists++
	list := &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: "100"}}
	for _, m := range s.items {
		list.Items = append(list.Items, *m.DeepCopy())
	}
	return list, s.err
}

func (s *source) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	if s.hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches = append(s.watches, options)
	s.w = watch.NewFake()
	return s.w, nil
}

// set sets the result of the next list.
func (s *source) set(err error, items ...*corev1.ConfigMap) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err, s.items = err, items
}

// A cache is a Cache under test that records decoded and reported objects.
type cache struct {
	*kubecache.Cache[*corev1.ConfigMap, string]
	source  *source
	decoded []string // names
	objects []*corev1.ConfigMap
	changed []string // "name=value", or "name: error"
	log     bytes.Buffer
}

// open returns a cache after its first list. streamed selects whether the API server streams the list.
func open(t *testing.T, streamed bool, items ...*corev1.ConfigMap) *cache {
	t.Helper()
	c := &cache{source: &source{items: items}}
	c.open(t, streamed)
	if streamed {
		for _, m := range items {
			c.source.w.Add(m)
		}
		c.source.w.Action(watch.Bookmark, end())
	}
	synctest.Wait()
	return c
}

func (c *cache) open(t *testing.T, streamed bool) {
	var client any // a client that supports streamed lists
	if !streamed {
		client = fake.NewClientset()
	}
	c.Cache = kubecache.Open(t.Context(), client, c.source, "", kubecache.Config[*corev1.ConfigMap, string]{
		What: "objects",
		Decode: func(m *corev1.ConfigMap) (string, error) {
			c.decoded, c.objects = append(c.decoded, m.Name), append(c.objects, m)
			if m.Data["text"] == "malformed" {
				return "malformed", errMalformed
			}
			return m.Data["text"], nil
		},
		Groups: func(text string) []string {
			if text == "malformed" {
				t.Error("requested the groups of an object with a decode error")
			}
			return strings.Fields(text)
		},
		Same: func(before, now string) bool {
			if before == "malformed" || now == "malformed" {
				t.Error("compared the value of an object with a decode error")
			}
			return strings.EqualFold(before, now)
		},
		Changed: func(name, value string, err error) {
			if err != nil {
				c.changed = append(c.changed, name+": "+err.Error())
				return
			}
			c.changed = append(c.changed, name+"="+value)
		},
		Log: slog.New(slog.NewTextHandler(&c.log, nil)),
	})
	synctest.Wait()
}

// end marks the end of a streamed list.
func end() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "100", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}}
}

// want checks the values of all objects, and the values of some groups.
func (c *cache) want(t *testing.T, all []string, groups map[string][]string) {
	t.Helper()
	synctest.Wait()
	if got, err := c.List(t.Context()); err != nil || !slices.Equal(got, all) {
		t.Errorf("List: got %q, %v, want %q", got, err, all)
	}
	for _, m := range c.objects {
		if m.ManagedFields != nil {
			t.Errorf("%s has managed fields", m.Name)
		}
	}
	for group, want := range groups {
		if got, err := c.Grouped(t.Context(), group); err != nil || !slices.Equal(got, want) {
			t.Errorf("group %s: got %q, %v, want %q", group, got, err, want)
		}
	}
}

func (c *cache) wantChanged(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	if !slices.Equal(c.changed, want) {
		t.Errorf("got changes %q, want %q", c.changed, want)
	}
	c.changed = nil
}

func bothLists(t *testing.T, test func(t *testing.T, streamed bool)) {
	for name, streamed := range map[string]bool{"list": false, "streamed list": true} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { test(t, streamed) }) })
	}
}

func TestFillsAndFollows(t *testing.T) {
	bothLists(t, func(t *testing.T, streamed bool) {
		c := open(t, streamed, object("c", "3", "x"), object("a", "1", "x y"), object("b", "2", "malformed"))
		c.want(t, []string{"x y", "x"}, map[string][]string{"x": {"x y", "x"}, "y": {"x y"}, "z": {}})
		c.wantChanged(t, "a=x y", "b: malformed", "c=x")
		if n, filled := c.Len(); n != 3 || !filled {
			t.Errorf("got length %d, %t, want 3 of a filled cache", n, filled)
		}
		c.source.w.Modify(object("a", "4", "z"))
		c.source.w.Modify(object("b", "5", "z"))
		c.source.w.Modify(object("c", "6", "malformed"))
		c.source.w.Add(object("d", "7", "y"))
		c.source.w.Modify(object("d", "7", "y")) // the same version
		c.want(t, []string{"z", "z", "y"}, map[string][]string{"x": {}, "y": {"y"}, "z": {"z", "z"}})
		c.wantChanged(t, "a=z", "b=z", "c: malformed", "d=y")
		c.source.w.Delete(object("a", "8", "z"))
		c.source.w.Delete(object("c", "9", "malformed"))
		c.source.w.Delete(object("nobody", "10", "z"))
		c.want(t, []string{"z", "y"}, map[string][]string{"z": {"z"}})
		c.wantChanged(t)
	})
}

// An entry must have the version and the decode error of its object. A caller may wait for a version that it has written.
func TestEntryHasVersionAndError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t, false, object("a", "1", "x"), object("b", "2", "malformed"))
		for _, want := range []kubecache.Entry[string]{{Name: "a", Version: "1", Value: "x"}, {Name: "b", Version: "2", Value: "malformed", Err: errMalformed}} {
			if got := c.Peek(want.Name); got == nil || *got != want {
				t.Errorf("Peek: got %+v, want %+v", got, want)
			}
			if got, err := c.Get(t.Context(), want.Name); err != nil || got == nil || *got != want {
				t.Errorf("Get: got %+v, %v, want %+v", got, err, want)
			}
		}
		if got := c.Version(); got != "100" {
			t.Errorf("got version %q of the cache, want that of the list", got)
		}
		c.source.w.Modify(object("a", "101", "y"))
		if synctest.Wait(); c.Version() != "101" {
			t.Errorf("got version %q of the cache, want that of the last event", c.Version())
		}
		if got, err := c.Get(t.Context(), "nobody"); got != nil || err != nil {
			t.Errorf("nobody: got %+v, %v", got, err)
		}
		var none *kubecache.Cache[*corev1.ConfigMap, string]
		if got := none.Peek("a"); got != nil {
			t.Errorf("nil cache: got %+v", got)
		}
	})
}

// The reflector keeps received objects until a streamed list is complete. Catches a cache that decodes only then,
// because whole objects of a large cluster need gigabytes.
func TestDecodesStreamedListAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cache{source: &source{}}
		c.open(t, true)
		c.source.w.Add(object("a", "1", "x"))
		c.source.w.Add(object("b", "2", "x"))
		c.source.w.Modify(object("b", "3", "y"))
		c.source.w.Delete(object("a", "4", "x"))
		synctest.Wait()
		if want := []string{"a", "b", "b"}; !slices.Equal(c.decoded, want) {
			t.Errorf("decoded %q before the end of the list, want %q", c.decoded, want)
		}
		if n, filled := c.Len(); n != 0 || filled {
			t.Errorf("got %d objects, filled %t before the end of the list", n, filled)
		}
		c.source.w.Action(watch.Bookmark, end())
		c.want(t, []string{"y"}, nil)
		if c.source.lists > 0 || len(c.decoded) != 3 {
			t.Errorf("got %d lists, decoded %q; want no list, and each object once", c.source.lists, c.decoded)
		}
	})
}

// A reader that sees a version of an object must see all earlier changes, even after another list. Catches a cache that
// replaces its entries one by one.
func TestListReplacesAllEntriesAtOnce(t *testing.T) {
	bothLists(t, func(t *testing.T, streamed bool) {
		var c *kubecache.Cache[*corev1.ConfigMap, string]
		list := func(version string) []*corev1.ConfigMap {
			return []*corev1.ConfigMap{object("c", "c"+version, "x "+version), object("a", "a"+version, "x "+version), object("b", "b"+version, "x "+version)}
		}
		s := &source{items: list("1")}
		want, seen := "", 0 // value that readers must see, and number of reads so far
		look := func() {
			seen++
			got, err := c.List(t.Context())
			grouped, groupErr := c.Grouped(t.Context(), "x")
			if err := errors.Join(err, groupErr); err != nil || strings.Join(got, ",") != want || strings.Join(grouped, ",") != want {
				t.Errorf("got %q, group %q, %v; want %q", got, grouped, err, want)
			}
		}
		var client any
		if !streamed {
			client = fake.NewClientset()
		}
		s.mu.Lock() // released when c is set
		c = kubecache.Open(t.Context(), client, s, "", kubecache.Config[*corev1.ConfigMap, string]{
			What: "objects",
			Decode: func(m *corev1.ConfigMap) (string, error) {
				if want != "" {
					look()
				}
				return m.Data["text"], nil
			},
			Groups: strings.Fields,
			Changed: func(string, string, error) {
				want = "x 2,x 2,x 2"
				if !strings.Contains(c.Peek("a").Value, "2") {
					want = "x 1,x 1,x 1"
				}
				look()
			},
		})
		s.mu.Unlock()
		stream := func() {
			synctest.Wait()
			for _, m := range s.items {
				s.w.Add(m)
			}
			s.w.Action(watch.Bookmark, end())
			synctest.Wait()
		}
		if streamed {
			stream()
		}
		synctest.Wait()
		s.set(nil, list("2")...)
		s.w.Error(&apierrors.NewResourceExpired("too old").ErrStatus)
		time.Sleep(2 * time.Second)
		if streamed {
			stream()
		}
		synctest.Wait()
		if want != "x 2,x 2,x 2" || seen != 3+3+3 {
			t.Errorf("looked %d times, at last for %q; want 9, and the second list", seen, want)
		}
	})
}

// After another list, deleted objects are gone. The others are neither decoded nor reported again.
func TestListsAgain(t *testing.T) {
	bothLists(t, func(t *testing.T, streamed bool) {
		c := open(t, streamed, object("a", "1", "x"), object("b", "2", "x"), object("c", "3", "x"))
		c.wantChanged(t, "a=x", "b=x", "c=x")
		before := c.Peek("a")
		c.source.set(nil, object("a", "1", "x"), object("c", "4", "y"))
		c.decoded = nil
		hints := c.Watch(t.Context())
		<-hints
		c.source.w.Error(&apierrors.NewResourceExpired("too old").ErrStatus)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if streamed {
			for _, m := range c.source.items {
				c.source.w.Add(m)
			}
			c.source.w.Action(watch.Bookmark, end())
		}
		c.want(t, []string{"x", "y"}, map[string][]string{"x": {"x"}, "y": {"y"}})
		c.wantChanged(t, "c=y")
		if c.Peek("a") != before || !slices.Equal(c.decoded, []string{"c"}) {
			t.Errorf("decoded %q again, want only c", c.decoded)
		}
		<-hints
	})
}

// Catches a cache that keeps the values of an older Decode, and one that is empty or failing meanwhile.
func TestDecodesAgain(t *testing.T) {
	bothLists(t, func(t *testing.T, streamed bool) {
		c := open(t, streamed, object("a", "1", "x"), object("b", "2", "y"))
		c.wantChanged(t, "a=x", "b=y")
		c.decoded = nil
		c.DecodeAgain()
		c.want(t, []string{"x", "y"}, nil)
		if e := must.Value(c.Get(t.Context(), "a"))(t); e == nil || c.Peek("a") != nil {
			t.Errorf("before the list: got %v, and from Peek %v, want the value of before and none", e, c.Peek("a"))
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if streamed {
			for _, m := range c.source.items {
				c.source.w.Add(m)
			}
			c.source.w.Action(watch.Bookmark, end())
		}
		c.want(t, []string{"x", "y"}, map[string][]string{"x": {"x"}, "y": {"y"}})
		c.wantChanged(t, "a=x", "b=y")
		if c.Peek("a") == nil || !slices.Equal(c.decoded, []string{"a", "b"}) || c.log.Len() > 0 {
			t.Errorf("decoded %q again, want a and b; log %s", c.decoded, c.log.String())
		}
		c.source.w.Modify(object("a", "3", "z"))
		c.want(t, []string{"z", "y"}, nil)
	})
}

// A fake client may leave the resourceVersion empty. Catches a cache that treats all versions of an object as the same version.
func TestSeesChangesOfObjectsWithoutVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t, false, object("a", "", "x"))
		c.source.w.Modify(object("a", "", "y"))
		c.want(t, []string{"y"}, nil)
	})
}

// The cache must retry a failed list, and errors of reads must say why they waited.
func TestRetriesFailedList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cache{source: &source{err: apierrors.NewForbidden(schema.GroupResource{Resource: "objects"}, "", errors.New("not you"))}}
		c.open(t, false)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := c.List(ctx); !errors.Is(err, context.DeadlineExceeded) || !apierrors.IsForbidden(err) {
			t.Errorf("got %v, want the error of the context and the reason", err)
		}
		// Up to 60 s pass between two tries.
		if log := c.log.String(); c.source.lists < 60 || c.source.lists > 300 || strings.Count(log, "watch failed, retrying") != c.source.lists || !strings.Contains(log, "objects=objects") || !strings.Contains(log, "not you") {
			t.Errorf("%d lists in an hour, log:\n%.500s", c.source.lists, log)
		}
		synctest.Wait()
		c.source.set(nil, object("a", "1", "x"))
		if got, err := c.List(t.Context()); err != nil || len(got) != 1 {
			t.Errorf("got %q, %v, want one value", got, err)
		}
	})
}

// The cache must log an outage once, and its end once.
func TestLogsOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cache{source: &source{err: apierrors.NewServiceUnavailable("starting")}}
		c.open(t, false)
		time.Sleep(time.Hour)
		c.source.set(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		if log := c.log.String(); strings.Count(log, "API server unreachable") != 1 || strings.Count(log, "watch works again") != 1 {
			t.Errorf("got log:\n%s", log)
		}
	})
}

// A watch that ends after its timeout must continue where it ended, without another list. The log must have no warning
// about a watch that has only ended or expired.
func TestRestartsEndedWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t, false, object("a", "1", "x"))
		c.source.w.Modify(object("a", "101", "y"))
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		c.source.w.Stop()
		synctest.Wait()
		c.source.w.Modify(object("a", "102", "z"))
		c.want(t, []string{"z"}, nil)
		if n := len(c.source.watches); c.source.lists != 1 || n != 2 || c.source.watches[n-1].ResourceVersion != "101" {
			t.Errorf("got %d lists, watches %+v; want one list and a second watch from 101", c.source.lists, c.source.watches)
		}
		c.source.set(io.EOF)
		c.source.w.Error(&apierrors.NewResourceExpired("too old").ErrStatus)
		time.Sleep(time.Minute)
		c.source.set(&apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonExpired, Code: http.StatusGone}})
		time.Sleep(time.Minute)
		synctest.Wait()
		if c.source.lists < 5 || c.log.Len() > 0 {
			t.Errorf("got %d lists, log %s; want retries without a warning", c.source.lists, &c.log)
		}
	})
}

// A hint must arrive only after the change is in the cache. Changes for which Same returns true send none.
func TestHints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t, false, object("a", "1", "x"), object("b", "1", "malformed"))
		hints := c.Watch(t.Context())
		<-hints
		for i, test := range []struct {
			action watch.EventType
			object *corev1.ConfigMap
			hint   bool
		}{
			{watch.Modified, object("a", "2", "X"), false},
			{watch.Modified, object("a", "3", "y"), true},
			{watch.Modified, object("a", "4", "malformed"), true},
			{watch.Modified, object("a", "5", ""), true},
			{watch.Modified, object("a", "5", ""), false}, // the same version
			{watch.Modified, object("a", "6", "malformed"), true},
			{watch.Modified, object("b", "6", "malformed"), true},
			{watch.Added, object("c", "7", ""), true},
			{watch.Deleted, object("c", "8", ""), true},
		} {
			c.source.w.Action(test.action, test.object)
			synctest.Wait()
			hint := false
			select {
			case <-hints:
				hint = true
			default:
			}
			if hint != test.hint {
				t.Errorf("change %d: got a hint: %t, want %t", i, hint, test.hint)
			}
		}
	})
}

// A canceled read must fail, even if the cache is filled. Peek must still work after the watch has ended.
func TestReadsFailAfterEndOfContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t, false, object("a", "1", "x"))
		ctx, stop := context.WithCancel(t.Context())
		stop()
		for range 100 { // repeat, because select chooses randomly between two ready channels
			_, getErr := c.Get(ctx, "a")
			_, listErr := c.List(ctx)
			_, groupErr := c.Grouped(ctx, "x")
			for _, err := range []error{getErr, listErr, groupErr} {
				if !errors.Is(err, context.Canceled) {
					t.Fatalf("got %v, want context.Canceled", err)
				}
			}
		}
		ended := kubecache.Open(ctx, fake.NewClientset(), &source{}, "", kubecache.Config[*corev1.ConfigMap, string]{What: "objects"})
		if _, err := ended.List(t.Context()); err == nil || !strings.Contains(err.Error(), "context of the watch has ended") {
			t.Errorf("ended watch: got %v", err)
		}
	})
}

// Only What and Decode are required. Catches a panic in the goroutine of the watch.
func TestOptionalFieldsOfConfig(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{items: []*corev1.ConfigMap{object("a", "1", "x")}}
		c := kubecache.Open(t.Context(), fake.NewClientset(), s, "", kubecache.Config[*corev1.ConfigMap, string]{
			What: "objects", Decode: func(m *corev1.ConfigMap) (string, error) { return m.Data["text"], nil },
		})
		hints := c.Watch(t.Context())
		synctest.Wait()
		<-hints
		s.w.Modify(object("a", "2", "x"))
		synctest.Wait()
		<-hints
		s.w.Delete(object("a", "3", "x"))
		synctest.Wait()
		s.set(apierrors.NewForbidden(schema.GroupResource{}, "", nil))
		s.w.Error(&apierrors.NewResourceExpired("too old").ErrStatus)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n, filled := c.Len(); n != 0 || !filled || s.lists < 2 {
			t.Errorf("got %d objects, filled %t, after %d lists; want none", n, filled, s.lists)
		}
	})
}

// A program that stops must not log that its watch failed.
func TestEndOfContextIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var log bytes.Buffer
		kubecache.Open(ctx, fake.NewClientset(), &source{hangs: true}, "", kubecache.Config[*corev1.ConfigMap, string]{
			What: "objects", Log: slog.New(slog.NewTextHandler(&log, nil)),
		})
		synctest.Wait()
		stop()
		synctest.Wait()
		if log.Len() > 0 {
			t.Errorf("got log %s", &log)
		}
	})
}

// Catches a cache that inserts the objects of a list one by one into a sorted list. With 100,000 objects, this takes minutes.
func BenchmarkList(b *testing.B) {
	client := fake.NewClientset()
	for _, n := range []int{1_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var items []*corev1.ConfigMap
			for i := range n {
				items = append(items, object(fmt.Sprint(i*7919%n), "1", fmt.Sprint(i)))
			}
			for b.Loop() {
				ctx, stop := context.WithCancel(b.Context())
				c := kubecache.Open(ctx, client, &source{items: items}, "", kubecache.Config[*corev1.ConfigMap, string]{
					What:   "objects",
					Decode: func(m *corev1.ConfigMap) (string, error) { return m.Data["text"], nil },
					Groups: strings.Fields,
				})
				if all, err := c.List(b.Context()); err != nil || len(all) != n {
					b.Fatal(len(all), err)
				}
				stop()
			}
		})
	}
}
