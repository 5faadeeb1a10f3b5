package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/tokens"
)

// Catches a token limit of one user that a restart or another replica lifts, or that applies to other users.
func TestBoundsTokensOfOneUser(t *testing.T) {
	for _, path := range []string{commandPath, tokenPath} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t)
			s.Advertise, s.UserTokens = "192.0.2.1:9443", 3
			s.Authorize = auth.AllowGroup("makers")
			users, err := auth.ParseTokenFile([]byte(adminBearer + ",ada,1,makers\n" + viewerBearer + ",vic,2,makers\n"))
			if err != nil {
				t.Fatal(err)
			}
			s.Authenticate = users.Authenticate
			replica := func() http.Handler {
				s := *s
				s.Registerer = nil
				return s.Handler()
			}
			ask := func(to http.Handler, bearer, path string) (int, string) {
				r := httptest.NewRequestWithContext(t.Context(), "POST", path, nil)
				r.Header.Set("Authorization", "Bearer "+bearer)
				w := httptest.NewRecorder()
				to.ServeHTTP(w, r)
				return w.Code, w.Body.String()
			}
			made := func(what string, to http.Handler, bearer string) {
				t.Helper()
				if status, body := ask(to, bearer, path+"?ttl=1h"); status/100 != 2 {
					t.Errorf("%s: %d %s", what, status, body)
				}
			}
			refused := func(what string, to http.Handler, path string) {
				t.Helper()
				if status, body := ask(to, adminBearer, path); status != 507 || !strings.Contains(body, api.ProblemTooManyTokens) || !strings.Contains(body, "created 3 tokens that have not expired, and at most 3 are allowed") {
					t.Errorf("%s: %d %s, want 507", what, status, body)
				}
			}
			first := replica()
			for i := range 3 {
				if path == tokenPath {
					if status, body := ask(first, adminBearer, path+"?dryRun"); status != 200 {
						t.Errorf("a dry run: %d %s", status, body)
					}
				}
				made(fmt.Sprint("token ", i), first, adminBearer)
			}
			refused("the fourth", first, path)
			refused("the fourth, after a restart", replica(), path)
			if path == tokenPath {
				refused("a dry run", first, path+"?dryRun")
			}
			made("another user's", first, viewerBearer)
			if len(s.ids(t)) != 4 {
				t.Errorf("%d tokens, want 4", len(s.ids(t)))
			}

			// A deleted token frees its slot after about two seconds.
			for _, id := range s.ids(t) {
				if r := s.record(t, id); r.Creator == tokens.CreatorOf("ada") {
					if err := s.store.Delete(t.Context(), r); err != nil {
						t.Fatal(err)
					}
					break
				}
			}
			time.Sleep(2 * time.Second)
			made("after one was deleted", first, adminBearer)
			refused("the fourth after one was deleted", first, path)
			// An expired token does not count, even before it is deleted.
			time.Sleep(2 * time.Hour)
			made("after all expired", first, adminBearer)
			// Tokens that another replica creates count after about ten seconds.
			second := replica()
			made("the second, by another replica", second, adminBearer)
			made("the third, by another replica", second, adminBearer)
			time.Sleep(11 * time.Second)
			refused("the fourth, by the first replica", first, path)
		})
	}
}

func TestNegativeUserTokensMeansUnlimited(t *testing.T) {
	s := newSite(t)
	s.UserTokens = -1
	s.start(t)
	made, _, got := askFor[api.Token](t, s, "POST", tokenPath, "")
	if got.status != 201 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	if r := s.record(t, made.ID); r.Creator != "" {
		t.Errorf("got creator %q, want none without a limit", r.Creator)
	}
}

// unlisted is a store whose List blocks, as if the API server did not respond.
type unlisted struct{ tokens.Store }

func (unlisted) List(ctx context.Context) ([]tokens.Record, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// Catches a request that hangs when the tokens cannot be counted, or that waits for the counts of other requests.
func TestCountOfTokensDoesNotWaitForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.Tokens = unlisted{s.store}
		handler := s.Handler()
		ask := func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			r := httptest.NewRequestWithContext(ctx, "POST", tokenPath, nil)
			r.Header.Set("Authorization", "Bearer "+adminBearer)
			w, began := httptest.NewRecorder(), time.Now()
			handler.ServeHTTP(w, r)
			if took := time.Since(began); w.Code != 503 || took > 10*time.Second {
				t.Errorf("%d after %s: %s", w.Code, took, w.Body)
			}
		}
		if ask(); t.Failed() {
			return
		}
		var all sync.WaitGroup
		for range 10 {
			all.Go(ask)
		}
		all.Wait()
	})
}

// listing is a store whose first list is returned late, when it is stale.
type listing struct {
	tokens.Store
	lists         atomic.Int64
	entered, free chan struct{}
}

func (s *listing) List(ctx context.Context) ([]tokens.Record, error) {
	all, err := s.Store.List(ctx)
	if s.lists.Add(1) == 1 {
		close(s.entered)
		<-s.free
	}
	return all, err
}

// Catches a slow, stale count that replaces a newer one.
func TestCountsTokensMadeDuringTheCount(t *testing.T) {
	s := newSite(t)
	s.UserTokens = 1
	store := &listing{Store: s.store, entered: make(chan struct{}), free: make(chan struct{})}
	s.Tokens = store
	handler := s.Handler()
	ask := func() int {
		return from(t, handler, "192.0.2.1:1", "POST", tokenPath+"?wait=0", adminBearer, nil).Code
	}
	first := make(chan int)
	go func() { first <- ask() }()
	<-store.entered
	if status := ask(); status != 201 {
		t.Errorf("during the count: %d", status)
	}
	close(store.free)
	if status := <-first; status != 507 || len(s.ids(t)) != 1 {
		t.Errorf("after the count: %d with %d tokens, want 507 with one", status, len(s.ids(t)))
	}
}

// Catches a repeated request that counts its existing token twice.
func TestRepeatedCreateDoesNotCountTwice(t *testing.T) {
	s := newSite(t)
	s.UserTokens = 1
	s.start(t)
	body := `{"token":"` + tokens.Generate().Reveal() + `"}`
	for _, want := range []int{201, 200} {
		if _, _, got := askFor[api.Token](t, s, "POST", tokenPath, body); got.status != want {
			t.Errorf("%d %s, want %d", got.status, got.body, want)
		}
	}
}

// Catches a new token that exceeds the size limits, and an older, larger token that cannot be read or renewed any more.
func TestBoundsSizeOfNewToken(t *testing.T) {
	s := newSite(t)
	s.start(t)
	list := func(n, length int, prefix string) []string {
		var all []string
		for i := range n {
			all = append(all, prefix+strings.Repeat("x", length)+fmt.Sprint(i))
		}
		return all
	}
	for name, c := range map[string]struct {
		body, field, want string
	}{
		"6,000 names":  {jsonOf(t, api.TokenSpec{NodeNames: list(6000, 0, "")}), "nodeNames", "6000 names given, 256 allowed"},
		"257 names":    {jsonOf(t, api.TokenSpec{NodeNames: list(257, 1, "")}), "nodeNames", "257 names given, 256 allowed"},
		"10 kB":        {jsonOf(t, api.TokenSpec{NodeNames: list(50, 200, "")}), "nodeNames", "bytes given, 8192 allowed"},
		"33 groups":    {jsonOf(t, api.TokenSpec{Groups: list(33, 1, "system:bootstrappers:")}), "groups", "33 given, 32 allowed"},
		"as allowed":   {jsonOf(t, api.TokenSpec{NodeNames: list(256, 25, ""), Groups: list(32, 1, "system:bootstrappers:")}), "", ""},
		"long as well": {jsonOf(t, api.TokenSpec{NodeNames: list(32, 250, "")}), "", ""},
	} {
		for _, path := range []string{tokenPath, commandPath} {
			if c.want == "" {
				if got := s.do(t, "POST", path, adminBearer, "application/json", c.body); got.status/100 != 2 {
					t.Errorf("%s: %s: %d %.300s", path, name, got.status, got.body)
				}
				continue
			}
			if _, p, got := askFor[api.Token](t, s, "POST", path, c.body); got.status != 400 || p.Field != c.field || !strings.Contains(p.Detail, c.want) {
				t.Errorf("%s: %s: %d %.300s", path, name, got.status, got.body)
			}
		}
	}

	// A larger token of an earlier version still works and keeps its limits.
	r := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
	r.Limits.NodeNames = list(6000, 1, "n")
	if _, err := s.store.Create(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	shown, _, got := askFor[api.Token](t, s, "GET", tokenPath+"/"+r.Token.ID(), "")
	if got.status != 200 || len(shown.NodeNames) != 6000 {
		t.Errorf("%d with %d names", got.status, len(shown.NodeNames))
	}
	if _, _, got := askFor[api.Token](t, s, "POST", tokenPath+"/"+r.Token.ID()+"/renew", `{"ttl":"2h"}`); got.status != 200 {
		t.Errorf("renewal: %d %.300s", got.status, got.body)
	}
	if now := s.record(t, r.Token.ID()); !now.Limits.Equal(r.Limits) || now.Limits.AllowsName("other") || !now.Limits.AllowsName("nx7") {
		t.Errorf("limits are others now, with %d names", len(now.Limits.NodeNames))
	}
}

// Catches a token that takes more memory than the documentation of DefaultUserTokens says.
func TestTokensTakeBoundedMemory(t *testing.T) {
	for name, c := range map[string]struct {
		most  int
		limit func(*tokens.Record)
	}{
		"usual": {10_000, func(r *tokens.Record) { r.Limits.MaxNodes = 1 }},
		"largest": {32_000, func(r *tokens.Record) {
			r.Groups = nil
			for i := range tokens.MaxNewGroups {
				r.Groups = append(r.Groups, fmt.Sprint(tokens.DefaultGroup, i))
			}
			for i := range tokens.MaxNewNodeNames {
				r.Limits.NodeNames = append(r.Limits.NodeNames, fmt.Sprintf("worker-%0*d", tokens.MaxNewNodeNamesBytes/tokens.MaxNewNodeNames-8, i))
			}
		}},
	} {
		s := newSite(t)
		used := func() uint64 {
			if _, err := s.store.List(t.Context()); err != nil {
				t.Fatal(err)
			}
			runtime.GC()
			runtime.GC() // frees what the first run found to be garbage
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		const n = 200
		before := used()
		for range n {
			r := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
			c.limit(&r)
			if err := r.CheckNew(); err != nil {
				t.Fatal(err)
			}
			if _, err := s.store.Create(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		each := (int(used()) - int(before)) / n
		t.Logf("%s: %d bytes each", name, each)
		if each > c.most {
			t.Errorf("%s: got %d bytes a token, want at most %d", name, each, c.most)
		}
		runtime.KeepAlive(s)
	}
}

func jsonOf(t testing.TB, v any) string {
	t.Helper()
	content, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
