package kubefacts_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/signer/kubefacts"
	"github.com/kubejoin/kubejoin/tokens"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// gate counts reads of Nodes. While it is shut, it holds back the responses.
type gate struct {
	next http.RoundTripper

	mu          sync.Mutex
	gets, lists int
	responses   int           // responses that have arrived
	open        chan struct{} // closed when responses may pass
}

func (g *gate) RoundTrip(r *http.Request) (*http.Response, error) {
	one := strings.HasPrefix(r.URL.Path, "/api/v1/nodes/")
	all := r.URL.Path == "/api/v1/nodes" && strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadataList")
	if !one && !all {
		return g.next.RoundTrip(r)
	}
	g.mu.Lock()
	if one {
		g.gets++
	} else {
		g.lists++
	}
	open := g.open
	g.mu.Unlock()
	response, err := g.next.RoundTrip(r)
	g.mu.Lock()
	g.responses++
	g.mu.Unlock()
	select {
	case <-open:
	case <-r.Context().Done():
		if err == nil {
			err = errors.Join(r.Context().Err(), response.Body.Close())
		}
		return nil, err
	}
	return response, err
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = make(chan struct{})
}

// pass releases the responses to all requests so far, and holds back later responses.
func (g *gate) pass() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.open)
	g.open = make(chan struct{})
}

func (g *gate) read() (gets, lists, responses int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.gets, g.lists, g.responses
}

// lookups collects the results of concurrent lookups of Nodes.
type lookups struct {
	running sync.WaitGroup
	mu      sync.Mutex
	uids    map[string]string
	errs    map[string]error
}

func (a *lookups) start(ctx context.Context, nodes *kubefacts.NodeCache, names ...string) {
	for _, name := range names {
		a.running.Go(func() {
			uid, err := nodes.Node(ctx, name)
			a.mu.Lock()
			defer a.mu.Unlock()
			a.uids[name], a.errs[name] = uid, err
		})
	}
}

func newLookups() *lookups { return &lookups{uids: map[string]string{}, errs: map[string]error{}} }

func numbered(from, to int) (names []string) {
	for i := from; i < to; i++ {
		names = append(names, fmt.Sprintf("nobody-%d", i))
	}
	return names
}

// gatedNodes returns Nodes behind an open gate, and a function that creates a Node and returns its UID.
func gatedNodes(t *testing.T) (*kubefacts.NodeCache, *gate, func(name string) string) {
	t.Helper()
	g := &gate{open: make(chan struct{})}
	close(g.open)
	client := newClient(t, func(config *rest.Config) {
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { g.next = next; return g })
	})
	nodes := kubefacts.OpenNodes(t.Context(), client)
	if _, err := nodes.Nodes(t.Context()); err != nil { // wait for the first list
		t.Fatal(err)
	}
	admin := newClient(t, func(*rest.Config) {})
	return nodes, g, func(name string) string {
		t.Helper()
		node := must.Value(admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))(t)
		t.Cleanup(func() {
			if err := admin.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
		return string(node.UID)
	}
}

func TestManyNodeLookupsShareOneList(t *testing.T) {
	nodes, g, create := gatedNodes(t)
	there := create("looked-up-1")
	for range 3 {
		if uid, err := nodes.Node(t.Context(), "looked-up-1"); err != nil || uid != there {
			t.Fatalf("Node has UID %q, %v; want %q", uid, err, there)
		}
	}
	if gets, lists, _ := g.read(); gets != 3 || lists != 0 {
		t.Errorf("got %d reads and %d lists for three lookups one after the other, want 3 and none", gets, lists)
	}

	// A few lookups read one Node each. Later lookups share lists.
	g.shut()
	a := newLookups()
	a.start(t.Context(), nodes, numbered(0, kubefacts.FewLookups)...)
	wait.Until(t, "the first lookups", func() bool { gets, _, _ := g.read(); return gets == 3+kubefacts.FewLookups })
	a.start(t.Context(), nodes, numbered(100, 150)...)
	a.start(t.Context(), nodes, "looked-up-1", "looked-up-2")
	wait.Until(t, "a list", func() bool { _, lists, _ := g.read(); return nodes.Asking() == kubefacts.FewLookups+52 && lists > 0 })
	// A list does not wait for the response to an earlier list, and shows a Node that was created meanwhile.
	late := create("looked-up-late")
	_, before, _ := g.read()
	a.start(t.Context(), nodes, "looked-up-late", "looked-up-2")
	wait.Until(t, "another list", func() bool {
		_, lists, _ := g.read()
		return nodes.Asking() == kubefacts.FewLookups+54 && lists > before
	})
	wait.Until(t, "all responses", func() bool { g.pass(); return nodes.Asking() == 0 })
	a.running.Wait()

	gets, lists, _ := g.read()
	if gets != 3+kubefacts.FewLookups || lists > 20 {
		t.Errorf("got %d reads and %d lists, want %d and a few", gets, lists, 3+kubefacts.FewLookups)
	}
	for name, err := range a.errs {
		switch want := map[string]string{"looked-up-1": there, "looked-up-late": late}[name]; {
		case want == "" && !errors.Is(err, tokens.ErrNotFound):
			t.Errorf("%s: got %q, %v, want ErrNotFound", name, a.uids[name], err)
		case want != "" && (err != nil || a.uids[name] != want):
			t.Errorf("%s: got %q, %v, want %q", name, a.uids[name], err, want)
		}
	}
}

// A canceled lookup returns the error of its context at once. The other lookups still get their response, and no
// goroutine remains when all are canceled.
func TestCanceledNodeLookupsReturnAtOnce(t *testing.T) {
	nodes, g, _ := gatedNodes(t)
	before := goleak.IgnoreCurrent()
	g.shut()
	a, b := newLookups(), newLookups()
	ctx, cancel := context.WithCancel(t.Context())
	b.start(ctx, nodes, numbered(0, kubefacts.FewLookups)...)
	wait.Until(t, "the first lookups", func() bool { gets, _, _ := g.read(); return gets == kubefacts.FewLookups })
	b.start(ctx, nodes, numbered(100, 120)...)
	a.start(t.Context(), nodes, "nobody-else", "nobody")
	wait.Until(t, "all lookups", func() bool { return nodes.Asking() == kubefacts.FewLookups+22 })
	cancel()
	b.running.Wait()
	for name, err := range b.errs {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got %v, want context.Canceled", name, err)
		}
	}
	wait.Until(t, "all responses", func() bool { g.pass(); return nodes.Asking() == 0 })
	a.running.Wait()
	if err := a.errs["nobody-else"]; !errors.Is(err, tokens.ErrNotFound) {
		t.Errorf("remaining lookup: got error %v, want ErrNotFound", err)
	}
	err := goleak.Find(before)
	for try := 0; err != nil && try < 60; try++ { // Find waits half a second
		err = goleak.Find(before)
	}
	if err != nil {
		t.Error(err)
	}
}
