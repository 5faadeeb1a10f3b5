package csr_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/kubejoin/kubejoin/tokens"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// gate counts reads of Nodes and, while it is shut, holds back their answers.
type gate struct {
	next http.RoundTripper

	mu          sync.Mutex
	gets, lists int
	responses   int           // that have come
	open        chan struct{} // closed when answers may pass
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

// pass lets all answers pass that have been asked for so far, and holds back those after.
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

// nodeRequest are questions about Nodes that are under way.
type lookups struct {
	running sync.WaitGroup
	mu      sync.Mutex
	uids    map[string]string
	errs    map[string]error
}

func (a *lookups) start(ctx context.Context, nodes *csr.Nodes, names ...string) {
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

// gatedNodes are Nodes behind a gate, which is open, and a way to make one.
func gatedNodes(t *testing.T) (*csr.Nodes, *gate, func(name string) string) {
	t.Helper()
	w := newWorld(t)
	g := &gate{open: make(chan struct{})}
	close(g.open)
	config := w.cluster.AdminConfig()
	config.QPS = -1
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { g.next = next; return g })
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := csr.OpenNodes(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nodes.Nodes(t.Context()); err != nil { // has been read
		t.Fatal(err)
	}
	return nodes, g, func(name string) string {
		t.Helper()
		node, err := w.admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := w.admin.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
		return string(node.UID)
	}
}

func TestManyNodeLookupsShareOneList(t *testing.T) {
	nodes, g, create := gatedNodes(t)
	w := &world{T: t}
	there := create("questioned-1")
	for range 3 {
		if uid, err := nodes.Node(t.Context(), "questioned-1"); err != nil || uid != there {
			t.Fatalf("Node has UID %q, %v; want %q", uid, err, there)
		}
	}
	if gets, lists, _ := g.read(); gets != 3 || lists != 0 {
		t.Errorf("%d reads and %d lists for three questions one after the other, want 3 and none", gets, lists)
	}

	// A few are asked for one by one. The next one begins a round of its own; what comes after
	// waits for that, and goes into one list.
	g.shut()
	a := newLookups()
	a.start(t.Context(), nodes, numbered(0, csr.FewQuestions+1)...)
	w.poll("the first questions", func() bool { gets, _, _ := g.read(); return gets == 3+csr.FewQuestions+1 })
	a.start(t.Context(), nodes, numbered(100, 150)...)
	a.start(t.Context(), nodes, "questioned-1", "questioned-2")
	w.poll("all questions", func() bool { return nodes.Asking() == csr.FewQuestions+1+52 })
	g.pass()
	w.poll("the answer to the list", func() bool { _, lists, responses := g.read(); return lists == 1 && responses == 3+csr.FewQuestions+2 })
	// A Node that comes while the list is on its way is found by who asks from now on.
	late := create("questioned-late")
	a.start(t.Context(), nodes, "questioned-late")
	w.poll("the late question", func() bool { return nodes.Asking() == 53 })
	g.pass()
	w.poll("the late answer", func() bool { _, _, responses := g.read(); return responses == 3+csr.FewQuestions+3 })
	g.pass()
	a.running.Wait()

	gets, lists, _ := g.read()
	if gets != 3+csr.FewQuestions+1+1 || lists != 1 {
		t.Errorf("%d reads and %d lists, want %d and 1", gets, lists, 3+csr.FewQuestions+1+1)
	}
	for name, err := range a.errs {
		switch want := map[string]string{"questioned-1": there, "questioned-late": late}[name]; {
		case want == "" && !errors.Is(err, tokens.ErrNotFound):
			t.Errorf("%s: %q, %v; want that there is none", name, a.uids[name], err)
		case want != "" && (err != nil || a.uids[name] != want):
			t.Errorf("%s: %q, %v; want %q", name, a.uids[name], err, want)
		}
	}
}

// Who gives up gets the error of his context at once; the others their answer, and nothing goes
// on when all have given up.
func TestCanceledNodeLookupsReturnAtOnce(t *testing.T) {
	nodes, g, _ := gatedNodes(t)
	w := &world{T: t}
	before := goleak.IgnoreCurrent()
	g.shut()
	a, b := newLookups(), newLookups()
	ctx, cancel := context.WithCancel(t.Context())
	b.start(ctx, nodes, numbered(0, csr.FewQuestions+1)...)
	w.poll("the first questions", func() bool { gets, _, _ := g.read(); return gets == csr.FewQuestions+1 })
	b.start(ctx, nodes, numbered(100, 120)...)
	a.start(t.Context(), nodes, "nobody-else")
	w.poll("all questions", func() bool { return nodes.Asking() == csr.FewQuestions+1+21 })
	cancel()
	b.running.Wait()
	for name, err := range b.errs {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s was given up: %v", name, err)
		}
	}
	w.poll("the list for the one that stays", func() bool { _, lists, _ := g.read(); return lists == 1 })
	g.pass()
	a.running.Wait()
	if err := a.errs["nobody-else"]; !errors.Is(err, tokens.ErrNotFound) {
		t.Errorf("the one that stays has error %v, want that there is none", err)
	}
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
}
