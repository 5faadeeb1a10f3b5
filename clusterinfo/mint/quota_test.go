package mint_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

func recordOf(user string, ttl time.Duration) tokens.Record {
	r := newRecord(ttl)
	r.Creator = tokens.CreatorOf(user)
	return r
}

// Catches a token limit of one user that a restart or another replica lifts, or that applies to other users.
func TestBoundsTokensOfOneUser(t *testing.T) {
	for _, how := range both {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t)
			replica := func() *site {
				return &site{&mint.Minter{Tokens: s.store, ClusterInfo: s.info, Endpoint: endpoint, UserTokens: 3}, s.store, s.info, s.cas}
			}
			made := func(what string, by *site, user string) {
				t.Helper()
				if _, err := how.call(t.Context(), by, recordOf(user, time.Hour)); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
			refused := func(what string, by *site) {
				t.Helper()
				_, err := how.call(t.Context(), by, recordOf("ada", time.Hour))
				if reason(t, err) != mint.TooManyTokens || !strings.Contains(err.Error(), "created 3 tokens that have not expired, and at most 3 are allowed") {
					t.Errorf("%s: got %v, want a refusal", what, err)
				}
			}
			dryRun := func(by *site) error {
				_, err := by.Create(t.Context(), mint.Creation{Record: recordOf("ada", time.Hour), DryRun: true})
				return err
			}
			first := replica()
			for i := range 3 {
				if err := dryRun(first); err != nil {
					t.Errorf("a dry run: %v", err)
				}
				made(fmt.Sprint("token ", i), first, "ada")
			}
			refused("the fourth", first)
			refused("the fourth, after a restart", replica())
			if err := dryRun(first); reason(t, err) != mint.TooManyTokens {
				t.Errorf("a dry run: %v", err)
			}
			made("another user's", first, "vic")
			made("a token without a creator", first, "")
			if len(s.ids(t)) != 5 {
				t.Errorf("%d tokens, want 5", len(s.ids(t)))
			}

			// A deleted token frees its slot after about two seconds.
			for _, id := range s.ids(t) {
				if r := s.record(t, id); r.Creator == tokens.CreatorOf("ada") {
					must.OK(t, s.store.Delete(t.Context(), r))
					break
				}
			}
			time.Sleep(2 * time.Second)
			made("after one was deleted", first, "ada")
			refused("the fourth after one was deleted", first)
			// The quota ignores an expired token, even before it is deleted.
			time.Sleep(2 * time.Hour)
			made("after all expired", first, "ada")
			// The quota includes tokens of another replica after about ten seconds.
			second := replica()
			made("the second, by another replica", second, "ada")
			made("the third, by another replica", second, "ada")
			time.Sleep(11 * time.Second)
			refused("the fourth, by the first replica", first)
			unlimited := replica()
			unlimited.UserTokens = -1
			made("without a limit", unlimited, "ada")
		})
	}
}

// Catches a call that hangs when the tokens cannot be counted, or that waits for the counts of other calls.
func TestCountOfTokensDoesNotWaitForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.Tokens = storetest.Faulty(func(c *storetest.Call, do func() error) error {
			if c.Method != "Store.List" {
				return do()
			}
			<-c.Context.Done() // as if the API server did not respond
			return c.Context.Err()
		}).Store(s.store)
		ask := func() {
			began := time.Now()
			_, err := s.Create(t.Context(), mint.Creation{Record: recordOf("ada", time.Hour)})
			if took := time.Since(began); reason(t, err) != mint.Unavailable || took > 10*time.Second {
				t.Errorf("got %v after %s", err, took)
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

// Catches a slow, stale count that replaces a newer one.
func TestCountsTokensMadeDuringTheCount(t *testing.T) {
	s := newSite(t)
	s.UserTokens = 1
	var lists atomic.Int64
	entered, free := make(chan struct{}), make(chan struct{})
	s.Tokens = storetest.After(func() error { // the first list is returned late, when it is stale
		if lists.Add(1) == 1 {
			close(entered)
			<-free
		}
		return nil
	}, "Store.List").Store(s.store)
	ask := func() error {
		_, err := s.Create(t.Context(), mint.Creation{Record: recordOf("ada", time.Hour)})
		return err
	}
	first := make(chan error)
	go func() { first <- ask() }()
	<-entered
	if err := ask(); err != nil {
		t.Errorf("during the count: %v", err)
	}
	close(free)
	if err := <-first; reason(t, err) != mint.TooManyTokens || len(s.ids(t)) != 1 {
		t.Errorf("after the count: %v with %d tokens, want a refusal with one", err, len(s.ids(t)))
	}
}

// Catches a repeated request that counts its existing token twice.
func TestRepeatedCreateDoesNotCountTwice(t *testing.T) {
	s := newSite(t)
	s.UserTokens = 1
	r := mint.Creation{Record: recordOf("ada", time.Hour), Chosen: true}
	for _, existing := range []bool{false, true} {
		if made, err := s.Create(t.Context(), r); err != nil || made.Existing != existing {
			t.Errorf("got %+v, %v", made, err)
		}
	}
	r.Record.Token = tokens.Generate()
	if _, err := s.Create(t.Context(), r); reason(t, err) != mint.TooManyTokens {
		t.Errorf("another token: %v", err)
	}
}

// Catches a token that is created, or a call that waits, when cluster-info has no space for its signature.
func TestRefusesTokensWhenClusterInfoIsFull(t *testing.T) {
	for _, how := range both {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t)
			info := &limited{ClusterInfo: s.info, capacity: 20, delay: time.Second, signed: map[string]bool{}}
			s.ClusterInfo = info
			ask := func() error {
				_, err := how.call(t.Context(), s, newRecord(time.Hour))
				return err
			}
			// All calls run concurrently: 30 must be refused before any token is signed.
			began := time.Now()
			var mu sync.Mutex
			reasons := map[string]int{}
			var all sync.WaitGroup
			for range 50 {
				all.Go(func() {
					err := ask()
					mu.Lock()
					defer mu.Unlock()
					reasons[reason(t, err)]++
					if took := time.Since(began); err != nil && took > 0 {
						t.Errorf("got a refusal after %s, want it at once", took)
					}
				})
			}
			all.Wait()
			if reasons[""] != 20 || reasons[mint.Full] != 30 || len(s.ids(t)) != 20 {
				t.Errorf("got reasons %v and %d tokens, want 20 created and 30 refused", reasons, len(s.ids(t)))
			}
			// A dry run is also refused, and reserves no space. A token without usage signing needs no space.
			authenticates := newRecord(time.Hour)
			authenticates.Signing = false
			for _, dryRun := range []bool{true, false} {
				if _, err := s.Create(t.Context(), mint.Creation{Record: newRecord(time.Hour), DryRun: dryRun}); reason(t, err) != mint.Full {
					t.Errorf("dry run %t: %v", dryRun, err)
				}
				if _, err := s.Create(t.Context(), mint.Creation{Record: authenticates, DryRun: dryRun}); err != nil {
					t.Errorf("dry run %t without usage signing: %v", dryRun, err)
				}
			}
			err := ask()
			for _, want := range []string{"signatures of 20 tokens", "Delete tokens that no machine joins with, wait until some expire", "--advertise"} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %q", err, want)
				}
			}
			info.mu.Lock()
			info.capacity = 21
			info.mu.Unlock()
			if err := ask(); err != nil {
				t.Errorf("with free space: %v", err)
			}
		})
	}
}

// Catches a timeout that does not report the full cluster-info as its cause, and reserved space that is not released
// after the timeout.
func TestReportsFullClusterInfoAfterWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		info := &limited{ClusterInfo: s.info, capacity: 1, delay: time.Second, signed: map[string]bool{}}
		s.ClusterInfo = info
		time.AfterFunc(500*time.Millisecond, func() {
			info.mu.Lock()
			defer info.mu.Unlock()
			info.signed["foreign"] = true
		})
		if _, err := s.Join(t.Context(), newRecord(time.Hour)); reason(t, err) != mint.NotSigned || !strings.Contains(err.Error(), "cluster-info is full") || len(s.ids(t)) != 0 {
			t.Errorf("got %v, and %d tokens are left", err, len(s.ids(t)))
		}
		info.mu.Lock()
		delete(info.signed, "foreign")
		info.mu.Unlock()
		if _, err := s.Join(t.Context(), newRecord(time.Hour)); err != nil {
			t.Error(err)
		}
	})
}

// Catches a repeated request that is refused because cluster-info is full, although its token is already in it.
func TestRepeatedCreateNeedsNoSpaceInClusterInfo(t *testing.T) {
	s := newSite(t)
	info := &limited{ClusterInfo: s.info, capacity: 1, signed: map[string]bool{}}
	s.ClusterInfo = info
	r := mint.Creation{Record: newRecord(time.Hour), Chosen: true}
	for _, existing := range []bool{false, true} {
		for _, r.DryRun = range []bool{true, false} {
			if made, err := s.Create(t.Context(), r); err != nil || made.Existing != existing {
				t.Errorf("dry run %t: got %+v, %v", r.DryRun, made, err)
			}
		}
		info.mu.Lock()
		info.signed[r.Record.Token.ID()] = true
		info.mu.Unlock()
	}
	r.Record.Token = tokens.Generate()
	if _, err := s.Create(t.Context(), r); reason(t, err) != mint.Full {
		t.Errorf("another token: %v", err)
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
			must.Value(s.store.List(t.Context()))(t)
			runtime.GC()
			runtime.GC() // the second run frees garbage that the first run found
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		const n = 200
		before := used()
		for range n {
			r := newRecord(time.Hour)
			c.limit(&r)
			must.OK(t, r.CheckNew())
			must.Value(s.store.Create(t.Context(), r))(t)
		}
		each := (int(used()) - int(before)) / n
		t.Logf("%s: %d bytes each", name, each)
		if each > c.most {
			t.Errorf("%s: got %d bytes a token, want at most %d", name, each, c.most)
		}
		runtime.KeepAlive(s)
	}
}
