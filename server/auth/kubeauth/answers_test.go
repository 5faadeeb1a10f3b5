package kubeauth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func ofStrings() *answers[string] {
	return newAnswers[string](5*time.Second, time.Second, 3*time.Second)
}

func TestAnswersAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			name string
			yes  bool
			err  error
			age  time.Duration // for which it is remembered
		}{
			{name: "yes", yes: true, age: 5 * time.Second},
			{name: "no", age: time.Second},
			{name: "error", err: errors.New("away")},
		} {
			a, asked := ofStrings(), 0
			ask := func(context.Context) (string, bool, error) {
				asked++
				time.Sleep(300 * time.Millisecond) // its age counts from before
				return "ada", test.yes, test.err
			}
			of := func() {
				t.Helper()
				answer, yes, err := a.of(t.Context(), []byte("secret"), ask)
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
			time.Sleep(time.Nanosecond)
			of()
			if asked != 2 {
				t.Errorf("%s: not asked again when it was %s old", test.name, test.age)
			}
		}
	})
}

// An answer replaces the one before, whatever that was.
func TestAnswersChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := ofStrings()
		for _, want := range []bool{true, false, true} {
			_, yes, err := a.of(t.Context(), []byte("q"), func(context.Context) (string, bool, error) { return "", want, nil })
			if err != nil || yes != want {
				t.Errorf("%v %v, want %v", yes, err, want)
			}
			time.Sleep(5 * time.Second)
		}
	})
}

// Who asks the same at the same time shares an answer, also when the first of them leaves.
func TestAnswersShared(t *testing.T) {
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
			if _, yes, err := a.of(first, []byte("q"), ask); !errors.Is(err, context.Canceled) || yes {
				t.Errorf("the first, who left: %v %v", yes, err)
			}
		})
		synctest.Wait()
		for range 100 {
			all.Go(func() {
				if answer, yes, err := a.of(t.Context(), []byte("q"), ask); err != nil || !yes || answer != "ada" {
					t.Errorf("%q %v %v", answer, yes, err)
				}
			})
		}
		other := func(context.Context) (string, bool, error) { return "eve", true, nil }
		if answer, _, err := a.of(t.Context(), []byte("other"), other); err != nil || answer != "eve" {
			t.Errorf("another question meanwhile: %q %v", answer, err)
		}
		synctest.Wait()
		leave()
		all.Wait()
		if n := asked.Load(); n != 1 {
			t.Errorf("asked %d times, want once", n)
		}
	})
}

func TestAnswersTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := ofStrings()
		start := time.Now()
		_, yes, err := a.of(t.Context(), []byte("q"), func(ctx context.Context) (string, bool, error) {
			<-ctx.Done()
			return "ada", true, ctx.Err()
		})
		if took := time.Since(start); yes || err == nil || !strings.Contains(err.Error(), "no answer within 3s") || took != 3*time.Second {
			t.Errorf("%v %v after %s", yes, err, took)
		}
	})
}

// No more than MaxReviews are asked at once; who finds no place in time is told so.
func TestAnswersPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := ofStrings()
		var now, most, failed atomic.Int32
		ask := func(context.Context) (string, bool, error) {
			most.Store(max(most.Load(), now.Add(1)))
			time.Sleep(2 * time.Second)
			now.Add(-1)
			return "", true, nil
		}
		var all sync.WaitGroup
		for i := range 3 * MaxReviews {
			all.Go(func() {
				if _, _, err := a.of(t.Context(), fmt.Appendf(nil, "q%d", i), ask); err != nil {
					failed.Add(1)
				}
			})
			if i%MaxReviews == MaxReviews-1 {
				synctest.Wait()
			}
		}
		all.Wait()
		if most.Load() != MaxReviews || failed.Load() != MaxReviews { // two rounds fit into the time of one who waits
			t.Errorf("%d at once, %d failed, want %d and %d", most.Load(), failed.Load(), MaxReviews, MaxReviews)
		}
	})
}

// What is remembered is bounded, a flood of bad tokens pushes out no good one, and no token is in it.
func TestAnswersBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, asked := ofStrings(), 0
		ask := func(yes bool) func(context.Context) (string, bool, error) {
			return func(context.Context) (string, bool, error) { asked++; return "ada", yes, nil }
		}
		question := func(q string, yes bool) {
			t.Helper()
			if _, got, err := a.of(t.Context(), []byte(q), ask(yes)); err != nil || got != yes {
				t.Fatalf("%v %v", got, err)
			}
		}
		question("good-token", true)
		for i := range 3 * MaxAnswers {
			question(fmt.Sprintf("bad-token-%d", i), false)
		}
		before := asked
		question("good-token", true)
		if asked != before {
			t.Error("the good one was forgotten")
		}
		for i := range 2 * MaxAnswers {
			question(fmt.Sprintf("good-token-%d", i), true)
		}
		if len(a.yes.all) != MaxAnswers || len(a.no.all) != MaxAnswers {
			t.Errorf("%d and %d are remembered, want %d each", len(a.yes.all), len(a.no.all), MaxAnswers)
		}
		// Those that are too old go first.
		time.Sleep(5 * time.Second)
		question("new", true)
		if len(a.yes.all) != 1 {
			t.Errorf("%d are remembered after all of them were too old", len(a.yes.all))
		}
		for mac := range a.no.all { // keys are MACs by their type; and of no key that another one has
			b := ofStrings()
			if _, _, err := b.of(t.Context(), []byte("new"), ask(true)); err != nil {
				t.Fatal(err)
			}
			if _, same := b.yes.all[mac]; same || bytes.Equal(a.key[:], b.key[:]) {
				t.Error("two caches have a key in common")
			}
			break
		}
		if text := fmt.Sprintf("%q %+[1]v", []any{a.yes, a.no}); strings.Contains(text, "-token") {
			t.Error("a token is in what is remembered")
		}
	})
}
