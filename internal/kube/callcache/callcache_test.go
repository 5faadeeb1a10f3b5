package callcache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func ofStrings() *Cache[string] {
	return New[string](5*time.Second, time.Second, 3*time.Second)
}

func TestAnswersExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			name string
			yes  bool
			err  error
			age  time.Duration // how long the answer is cached
		}{
			{name: "yes", yes: true, age: 5 * time.Second},
			{name: "no", age: time.Second},
			{name: "error", err: errors.New("away")},
		} {
			a, asked := ofStrings(), 0
			ask := func(context.Context) (string, bool, error) {
				asked++
				time.Sleep(300 * time.Millisecond) // the age is measured from the start of the call
				return "ada", test.yes, test.err
			}
			of := func() {
				t.Helper()
				answer, yes, err := a.Get(t.Context(), []byte("secret"), ask)
				if yes != test.yes || !errors.Is(err, test.err) || err == nil && answer != "ada" {
					t.Errorf("%s: %q %v %v", test.name, answer, yes, err)
				}
			}
			of()
			of()
			if want := map[bool]int{true: 1, false: 2}[test.err == nil]; asked != want {
				t.Errorf("%s: asked %d times at once, want %d", test.name, asked, want)
			}
			if test.err != nil {
				continue
			}
			time.Sleep(test.age - 300*time.Millisecond - time.Nanosecond)
			of()
			if asked != 1 {
				t.Errorf("%s: asked again before it was %s old", test.name, test.age)
			}
			time.Sleep(2 * time.Nanosecond)
			of()
			if asked != 2 {
				t.Errorf("%s: not asked again when it was older than %s", test.name, test.age)
			}
		}
	})
}

// A new answer must replace the old answer.
func TestNewAnswerReplacesOldOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := ofStrings()
		for _, want := range []bool{true, false, true} {
			_, yes, err := a.Get(t.Context(), []byte("q"), func(context.Context) (string, bool, error) { return "", want, nil })
			if err != nil || yes != want {
				t.Errorf("%v %v, want %v", yes, err, want)
			}
			time.Sleep(5*time.Second + time.Nanosecond)
		}
	})
}

func TestAnswerWithZeroAgeIsNotCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, asked := New[string](time.Second, 0, 0), 0
		for range 2 {
			_, _, _ = a.Get(t.Context(), nil, func(context.Context) (string, bool, error) { asked++; return "", false, nil })
		}
		if asked != 2 {
			t.Errorf("asked %d times, want 2", asked)
		}
	})
}

// Concurrent callers with the same question must share one call, even if the first caller is canceled.
func TestConcurrentCallersShareOneAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := ofStrings()
		var asked atomic.Int32
		ask := func(ctx context.Context) (string, bool, error) {
			asked.Add(1)
			select {
			case <-time.After(2 * time.Second):
				return "ada", true, nil
			case <-ctx.Done():
				return "", false, ctx.Err()
			}
		}
		first, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			if _, yes, err := a.Get(first, []byte("q"), ask); !errors.Is(err, context.Canceled) || yes {
				t.Errorf("the first, who left: %v %v", yes, err)
			}
		})
		synctest.Wait()
		for range 100 {
			all.Go(func() {
				if answer, yes, err := a.Get(t.Context(), []byte("q"), ask); err != nil || !yes || answer != "ada" {
					t.Errorf("%q %v %v", answer, yes, err)
				}
			})
		}
		other := func(context.Context) (string, bool, error) { return "eve", true, nil }
		if answer, _, err := a.Get(t.Context(), []byte("other"), other); err != nil || answer != "eve" {
			t.Errorf("another question meanwhile: %q %v", answer, err)
		}
		synctest.Wait()
		leave()
		all.Wait()
		if n := asked.Load(); n != 2 {
			t.Errorf("asked %d times, want twice: for the first, and once for all others", n)
		}
	})
}

func TestCallTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := ofStrings()
		start := time.Now()
		_, yes, err := a.Get(t.Context(), []byte("q"), func(ctx context.Context) (string, bool, error) {
			<-ctx.Done()
			return "ada", true, ctx.Err()
		})
		if took := time.Since(start); yes || err == nil || !strings.Contains(err.Error(), "no response within 3s") || took != 3*time.Second {
			t.Errorf("%v %v after %s", yes, err, took)
		}
	})
}

// A Cache makes at most MaxCalls calls at once. A caller that gets no slot in time gets an error.
func TestLimitsConcurrentCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := ofStrings()
		var now, most, failed atomic.Int32
		ask := func(ctx context.Context) (string, bool, error) {
			for n := now.Add(1); ; {
				if before := most.Load(); n <= before || most.CompareAndSwap(before, n) {
					break
				}
			}
			defer now.Add(-1)
			select {
			case <-time.After(1400 * time.Millisecond):
			case <-ctx.Done():
			}
			return "", true, nil
		}
		var all sync.WaitGroup
		for i := range 3 * MaxCalls {
			all.Go(func() {
				if _, _, err := a.Get(t.Context(), fmt.Appendf(nil, "q%d", i), ask); err != nil {
					failed.Add(1)
				}
			})
			if i%MaxCalls == MaxCalls-1 {
				synctest.Wait()
			}
		}
		all.Wait()
		if most.Load() != MaxCalls || failed.Load() != MaxCalls { // two rounds fit into the timeout
			t.Errorf("%d at once, %d failed, want %d and %d", most.Load(), failed.Load(), MaxCalls, MaxCalls)
		}
	})
}

// The cache must not grow without limit, and must not contain tokens. A flood of bad tokens must not evict good tokens.
func TestCacheIsBoundedAndHoldsNoToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, asked := ofStrings(), 0
		ask := func(yes bool) func(context.Context) (string, bool, error) {
			return func(context.Context) (string, bool, error) { asked++; return "ada", yes, nil }
		}
		question := func(q string, yes bool) {
			t.Helper()
			if _, got, err := a.Get(t.Context(), []byte(q), ask(yes)); err != nil || got != yes {
				t.Fatalf("%v %v", got, err)
			}
		}
		question("good-token", true)
		for i := range 3 * MaxCached {
			question(fmt.Sprintf("bad-token-%d", i), false)
		}
		before := asked
		question("good-token", true)
		if asked != before {
			t.Error("the good token was evicted")
		}
		for i := range 2 * MaxCached {
			question(fmt.Sprintf("good-token-%d", i), true)
		}
		yes, no := a.yes.Keys(), a.no.Keys()
		if len(yes) != MaxCached || len(no) != MaxCached {
			t.Errorf("%d and %d are cached, want %d each", len(yes), len(no), MaxCached)
		}
		for _, key := range slices.Concat(yes, no) {
			mac, isMAC := key.(digest)
			if kept, found := a.cached(mac); !isMAC || !found || strings.Contains(fmt.Sprint(kept), "-token") {
				t.Fatalf("the key %v is no MAC, or %v holds a token", key, kept)
			}
		}
		if b := ofStrings(); a.key == b.key {
			t.Error("two caches share a key")
		}
	})
}
