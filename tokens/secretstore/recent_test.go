package secretstore_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// A link is the connection of a store to the API server. Its fault begins when the test sets faulty.
type link struct {
	faulty atomic.Bool
	delay  time.Duration              // of watch events; negative: no more events
	cut    bool                       // each watch fails
	fail   func(r *http.Request) bool // these requests fail
	reads  map[string]*atomic.Int64   // live reads by resource
}

func (l *link) RoundTrip(next http.RoundTripper, r *http.Request) (*http.Response, error) {
	query, faulty := r.URL.Query(), l.faulty.Load()
	watch := query.Has("watch")
	if faulty && (watch && l.cut || l.fail != nil && l.fail(r)) {
		return nil, errors.New("the connection was cut")
	}
	for resource, reads := range l.reads {
		_, name, one := strings.Cut(r.URL.Path, "/"+resource+"/")
		if r.Method == http.MethodGet && !watch && (one && name != "kubejoin-proof" || query.Has("labelSelector") && strings.HasSuffix(r.URL.Path, resource)) {
			reads.Add(1)
		}
	}
	response, err := next.RoundTrip(r)
	if err == nil && watch {
		response.Body = &slowBody{ReadCloser: response.Body, link: l, gone: r.Context().Done()}
	}
	return response, err
}

// A slowBody delays the events of a watch.
type slowBody struct {
	io.ReadCloser
	link *link
	gone <-chan struct{}
}

func (b *slowBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if !b.link.faulty.Load() {
		return n, err
	}
	switch {
	case b.link.cut:
		return 0, io.ErrUnexpectedEOF
	case b.link.delay < 0:
		<-b.gone
		return 0, io.ErrUnexpectedEOF
	}
	select {
	case <-time.After(b.link.delay):
	case <-b.gone:
	}
	return n, err
}

// Whatever happens to the connection, no read uses a cache that is older than a second. Another replica writes.
func TestRecentIsLessThanASecondOld(t *testing.T) {
	for name, test := range map[string]struct {
		link   *link
		cached []string // the resources that are read from the cache in spite of the fault
	}{
		"no fault":           {&link{}, []string{"secrets", "leases"}},
		"watches lag by 5 s": {&link{delay: 5 * time.Second}, []string{"secrets"}},
		"watches hang":       {&link{delay: -1}, []string{"secrets"}},
		"watches are cut":    {&link{cut: true}, []string{"secrets"}},
		"no list": {&link{fail: func(r *http.Request) bool {
			return strings.HasSuffix(r.URL.Path, "/secrets") && !r.URL.Query().Has("watch") && !r.URL.Query().Has("labelSelector")
		}}, []string{"leases"}},
		"no write": {&link{fail: func(r *http.Request) bool { return r.Method != http.MethodGet }}, []string{"secrets"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.link.reads = map[string]*atomic.Int64{"secrets": {}, "leases": {}}
			testRecent(t, test.link, test.cached)
		})
	}
}

func testRecent(t *testing.T, l *link, cached []string) {
	config := cluster.Shared(t).AdminConfig()
	config.QPS = -1
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) { return l.RoundTrip(next, r) })
	})
	client := must.Value(kubernetes.NewForConfig(config))(t)
	other := cluster.Shared(t).Client()
	namespace := must.Value(other.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "recent-"}}, metav1.CreateOptions{}))(t)
	open := func(client kubernetes.Interface) (*secretstore.Store, *secretstore.Claims) {
		store := must.Value(secretstore.Open(t.Context(), client, nil))(t)
		claims := must.Value(secretstore.OpenClaims(t.Context(), client, store, namespace.Name, nil))(t)
		must.Value(claims.List(t.Context()))(t)
		return store, claims
	}
	store, claims := open(client)
	writer, claimer := open(other)
	var ids []string // a token that another replica changes, one that nobody changes, and one that the store itself changes
	for range 3 {
		token := tokens.Generate()
		must.Value(writer.Create(t.Context(), tokens.Record{Token: token}))(t)
		ids = append(ids, token.ID())
	}
	changes := store.Watch(t.Context())
	for found := 0; found < len(ids); <-changes {
		found = 0
		for _, id := range ids {
			if _, err := store.Get(t.Context(), id, tokens.Cached); err == nil {
				found++
			}
		}
	}
	l.faulty.Store(true)

	const rounds = 3
	node := func(round int) string { return fmt.Sprintf("recent-%s-%d", ids[0], round) }
	var wrote [rounds]atomic.Pointer[time.Time] // when the writes of each round had returned
	due := func(began time.Time) (round int) {  // the round that a read must show
		for i := range wrote {
			if at := wrote[i].Load(); at != nil && began.Sub(*at) >= tokens.MaxAge {
				round = i + 1
			}
		}
		return round
	}
	began, stop := time.Now(), make(chan struct{})
	fromCache := map[string]*atomic.Int64{"secrets": {}, "leases": {}}
	shown := map[string]*atomic.Int64{"secrets": {}, "leases": {}} // the reads that had to show all rounds so far
	var reading sync.WaitGroup
	read := func(resource string, one func(round int) error) {
		reading.Go(func() {
			for !t.Failed() {
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
				}
				at, before := time.Now(), l.reads[resource].Load()
				round := due(at)
				if err := one(round); err != nil {
					t.Errorf("%s: %v", resource, err)
				}
				if at.Sub(began) <= tokens.MaxAge {
					continue
				}
				if l.reads[resource].Load() == before {
					fromCache[resource].Add(1)
				}
				if round == rounds || wrote[round].Load() == nil {
					shown[resource].Add(1)
				}
			}
		})
	}
	read("secrets", func(round int) error {
		if _, err := store.Get(t.Context(), ids[1], tokens.Recent); err != nil {
			return err
		}
		r, err := store.Get(t.Context(), ids[0], tokens.Recent)
		if got, _ := strconv.Atoi(r.Description); err == nil && got < round {
			err = fmt.Errorf("got a token of round %d, and round %d had ended %s before", got, round, tokens.MaxAge)
		}
		return err
	})
	read("leases", func(round int) error {
		held, err := claims.HeldBy(t.Context(), ids[0], tokens.Recent)
		if err != nil || len(held) < round {
			return fmt.Errorf("got %d claims, %v, and round %d had ended %s before", len(held), err, round, tokens.MaxAge)
		}
		if _, err := claims.Get(t.Context(), node(max(1, round)), tokens.Recent); err != nil && (round > 0 || !errors.Is(err, tokens.ErrNotFound)) {
			return fmt.Errorf("no claim, and round %d had ended %s before: %w", round, tokens.MaxAge, err)
		}
		return nil
	})
	// settle waits for two ages, and for reads that had to show all rounds so far.
	settle := func() {
		t.Helper()
		start := time.Now()
		for resource, reads := range shown {
			before := reads.Load()
			wait.Until(t, "reads of "+resource, func() bool {
				return reads.Load() > before+20 && time.Since(start) > 2*tokens.MaxAge || t.Failed()
			})
		}
	}
	for i := range rounds {
		settle()
		must.Value(writer.Update(t.Context(), ids[0], func(r *tokens.Record) error { r.Description = strconv.Itoa(i + 1); return nil }))(t)
		must.Value(storetest.CreateClaim(t.Context(), claimer, tokens.Claim{Node: node(i + 1), TokenID: ids[0], Limits: tokens.Limits{MaxNodes: rounds}}))(t)
		at := time.Now()
		wrote[i].Store(&at)
		// The writes of a store count for it at once, no matter how much the watch lags.
		updated, err := store.Update(t.Context(), ids[2], func(r *tokens.Record) error { r.Description = strconv.Itoa(i + 1); return nil })
		if err != nil {
			continue // the fault
		}
		if r, err := store.Get(t.Context(), ids[2], tokens.Recent); err != nil || r.Description != updated.Description {
			t.Errorf("Recent gives %q, %v after this store wrote %q", r.Description, err, updated.Description)
		}
		if i < rounds-1 {
			continue
		}
		if err := store.Delete(t.Context(), updated); err != nil {
			t.Error(err)
		}
		if _, err := store.Get(t.Context(), ids[2], tokens.Recent); !errors.Is(err, tokens.ErrNotFound) {
			t.Errorf("Recent gives %v after this store deleted the token", err)
		}
	}
	settle()
	close(stop)
	reading.Wait()
	for resource, reads := range fromCache {
		if n := reads.Load(); (n > 0) != slices.Contains(cached, resource) {
			t.Errorf("%d reads of %s from the cache, although the cache can be proven only for %q", n, resource, cached)
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
