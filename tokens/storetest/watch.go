package storetest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

func testMalformed(t *testing.T, s tokens.Store) {
	ctx := t.Context()
	whole := tokens.Generate().Reveal()
	for _, id := range []string{"", "abcde", "ABCDEF", "abc/ef", "../../", "abcdef\n", whole} {
		_, getErr := s.Get(ctx, id)
		_, updateErr := s.Update(ctx, id, func(*tokens.Record) error { return nil })
		for what, err := range map[string]error{"Get": getErr, "Update": updateErr} {
			wantError(t, what, err, tokens.ErrMalformed)
			if err != nil && strings.Contains(err.Error(), whole) {
				t.Errorf("%s of a whole token as ID returned an error that contains it", what)
			}
		}
	}
	wantError(t, "Delete", s.Delete(ctx, tokens.Record{}), tokens.ErrMalformed)
}

func testCanceled(t *testing.T, s tokens.Store) {
	r := create(t, s, sample())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, getErr := s.Get(ctx, r.Token.ID())
	_, listErr := s.List(ctx)
	_, createErr := s.Create(ctx, sample())
	_, updateErr := s.Update(ctx, r.Token.ID(), func(c *tokens.Record) error { c.Description = "changed"; return nil })
	for what, err := range map[string]error{
		"Get": getErr, "List": listErr, "Create": createErr, "Update": updateErr, "Delete": s.Delete(ctx, r),
	} {
		wantError(t, what, err, context.Canceled)
	}
	wantList(t, s, r)

	// Every try of this Update conflicts with a newer change. Only its context can end it.
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	tries := 0
	_, err := s.Update(ctx, r.Token.ID(), func(c *tokens.Record) error {
		if tries++; tries == 3 {
			cancel()
		}
		_, err := s.Update(t.Context(), r.Token.ID(), func(c *tokens.Record) error {
			c.Expires = c.Expires.Add(time.Minute)
			return nil
		})
		c.Description = "never"
		return err
	})
	wantError(t, "Update that always comes too late", err, context.Canceled)
}

// testWatch checks that two listeners get a hint after each kind of change.
func testWatch(t *testing.T, s tokens.Store) {
	one, two := s.Watch(t.Context()), s.Watch(t.Context())
	wantHint := func(what string, listed func([]tokens.Record) bool) {
		t.Helper()
		for name, hints := range map[string]<-chan struct{}{"first": one, "second": two} {
			deadline := time.After(lag)
			for seen := false; !seen; {
				select {
				case <-hints:
				case <-deadline:
					t.Fatalf("%s: the %s listener got no hint within %v after which List shows it", what, name, lag)
				}
				all, err := s.List(t.Context())
				if err != nil {
					t.Fatalf("List: %v", err)
				}
				seen = listed(all)
			}
		}
	}
	wantHint("start", func(all []tokens.Record) bool { return len(all) == 0 })
	r := create(t, s, sample())
	wantHint("Create", func(all []tokens.Record) bool { return len(all) == 1 })
	r, err := s.Update(t.Context(), r.Token.ID(), func(c *tokens.Record) error { c.Description = "changed"; return nil })
	if err != nil {
		t.Fatalf("Update: %v", err)
	}
	wantHint("Update", func(all []tokens.Record) bool { return len(all) == 1 && all[0].Description == "changed" })
	if err := s.Delete(t.Context(), r); err != nil {
		t.Fatalf("Delete: %v", err)
	}
	wantHint("Delete", func(all []tokens.Record) bool { return len(all) == 0 })

	// A listener that does not receive does not block changes, and gets at least one hint afterwards.
	for range 10 {
		create(t, s, sample())
	}
	wantHint("burst", func(all []tokens.Record) bool { return len(all) == 10 })
}

func testWatchEnds(t *testing.T, s tokens.Store) {
	watchEnds(t, s.Watch, func() { create(t, s, sample()) })
}

func watchEnds(t *testing.T, watch func(context.Context) <-chan struct{}, change func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended, lives := watch(ctx), watch(t.Context())
	<-ended
	<-lives
	cancel()
	// A hint that was on its way when the context ended may still arrive, but only one.
	for range 3 {
		change()
		select {
		case <-lives:
		case <-time.After(lag):
			t.Fatalf("no hint within %v", lag)
		}
	}
	extra := 0
	for {
		select {
		case _, open := <-ended:
			if extra++; !open {
				t.Fatal("the channel of Watch is closed after its context ended, want it open and silent")
			} else if extra > 1 {
				t.Fatal("got a hint after the context of Watch ended")
			}
		default:
			return
		}
	}
}
