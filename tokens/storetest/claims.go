package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// RunClaims is like [Run], but for claims. Each test calls open once. open must return a [tokens.Claims]
// without claims that stays usable until the test ends.
func RunClaims(t *testing.T, open func(t *testing.T) tokens.Claims) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, tokens.Claims)
	}{
		{"Empty", testNoClaims},
		{"Create", testCreateClaim},
		{"CreateExists", testCreateClaimExists},
		{"CreateRefuses", testCreateClaimRefuses},
		{"CreateAtOnce", testCreateClaimAtOnce},
		{"KeepsFields", testKeepsClaimFields},
		{"List", testListClaims},
		{"HeldBy", testHeldBy},
		{"HeldByAtOnce", testHeldByAtOnce},
		{"Recent", testRecentClaims},
		{"Update", testUpdateClaim},
		{"UpdateNothing", testUpdateClaimNothing},
		{"UpdateFails", testUpdateClaimFails},
		{"UpdateRefuses", testUpdateClaimRefuses},
		{"UpdateStartsOver", testUpdateClaimStartsOver},
		{"UpdateAtOnce", testUpdateClaimAtOnce},
		{"Release", testReleaseClaim},
		{"Delete", testDeleteClaim},
		{"DeleteOther", testDeleteOtherClaim},
		{"DeleteAtOnce", testDeleteClaimAtOnce},
		{"Copies", testClaimCopies},
		{"Malformed", testMalformedClaim},
		{"Canceled", testClaimsCanceled},
		{"Watch", testWatchClaims},
		{"WatchEnds", testWatchClaimsEnds},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, open(t)) })
	}
}

// key returns a valid key that repeats one hex digit.
func key(digit string) string { return "sha256:" + strings.Repeat(digit, 64) }

// sampleClaim returns a new claim with all fields set.
func sampleClaim() tokens.Claim {
	r := sample()
	return tokens.Claim{
		Node:     "worker-" + r.Token.ID(),
		TokenID:  r.Token.ID(),
		TokenUID: "8c1d3c0e-6a55-4bb5-b0a4-1d6d6e3e7f0a",
		Limits:   r.Limits,
		Keys:     []string{key("b"), key("a")},
		Requests: []string{"8c1d3c0e-6a55-4bb5-b0a4-1d6d6e3e7f0b", "8c1d3c0e-6a55-4bb5-b0a4-1d6d6e3e7f0a"},
		NodeUID:  "8c1d3c0e-6a55-4bb5-b0a4-1d6d6e3e7f0c",

		ReadyBefore: "0123456789abcdef0123456789abcdef",
		ReadyAgain:  true,

		Past: tokens.ReleasedClaim{Until: time.Date(2031, 2, 3, 4, 5, 6, 0, time.UTC), CertificateDuration: 90 * time.Minute},

		Identity: tokens.Identity{
			NodeUID: "8c1d3c0e-6a55-4bb5-b0a4-1d6d6e3e7f0d", Keys: []string{key("e"), key("d")}, BoundKey: key("f"),
			NotAfter: time.Date(2032, 2, 3, 4, 5, 6, 0, time.UTC),
			Rejoins:  []time.Time{time.Date(2032, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2032, 3, 4, 5, 6, 7, 0, time.UTC)},
			TokenID:  "abc123",
		},
	}
}

func createClaim(t *testing.T, s tokens.Claims, c tokens.Claim) tokens.Claim {
	t.Helper()
	got, err := s.Create(t.Context(), c)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	return got
}

func getClaim(t *testing.T, s tokens.Claims, node string) tokens.Claim {
	t.Helper()
	c, err := s.Get(t.Context(), node)
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	return c
}

// sameClaim reports whether all fields are equal. Created must have the same location too, as in same.
func sameClaim(a, b tokens.Claim) bool { return a.Equal(b) && a.Created == b.Created }

func wantSameClaim(t *testing.T, what string, got, want tokens.Claim) {
	t.Helper()
	if !sameClaim(got, want) {
		t.Errorf("%s gives\n%+v\nwant\n%+v", what, got, want)
	}
}

// wantClaims waits for List, Find and cached HeldBy to show these claims and no others.
func wantClaims(t *testing.T, s tokens.Claims, want ...tokens.Claim) {
	t.Helper()
	slices.SortFunc(want, func(a, b tokens.Claim) int { return strings.Compare(a.Node, b.Node) })
	var missing string
	defer func() {
		if missing != "" {
			t.Errorf("got other claims from %s\nwant\n%+v", missing, want)
		}
	}()
	eventually(t, s, "all claims", func() bool {
		missing = notShown(t, s, want)
		return missing == ""
	})
}

// notShown returns which method does not return the wanted claims, and what it returns instead. It is empty
// if all methods return them.
func notShown(t *testing.T, s tokens.Claims, want []tokens.Claim) string {
	t.Helper()
	got, err := s.List(t.Context())
	if err != nil {
		t.Fatalf("List: %v", err)
	}
	if !slices.EqualFunc(got, want, sameClaim) {
		return fmt.Sprintf("List, which gives\n%+v", got)
	}
	of := map[string][]tokens.Claim{}
	for _, c := range want {
		if !c.Released() {
			of[c.TokenID] = append(of[c.TokenID], c)
		}
		got, err := s.Find(t.Context(), c.Node)
		if err != nil && !errors.Is(err, tokens.ErrNotFound) {
			t.Fatalf("Find: %v", err)
		}
		if err != nil || !sameClaim(got, c) {
			return fmt.Sprintf("Find, which gives\n%+v, %v", got, err)
		}
	}
	for id, want := range of {
		got, err := s.HeldBy(t.Context(), id, tokens.Cached)
		if err != nil {
			t.Fatalf("cached HeldBy: %v", err)
		}
		if !slices.EqualFunc(got, want, sameClaim) {
			return fmt.Sprintf("cached HeldBy, which gives\n%+v", got)
		}
	}
	return ""
}

// wantNoClaim checks that Get no longer returns a claim, and waits until Find and cached HeldBy do not either.
func wantNoClaim(t *testing.T, s tokens.Claims, c tokens.Claim) {
	t.Helper()
	_, err := s.Get(t.Context(), c.Node)
	wantError(t, "Get", err, tokens.ErrNotFound)
	eventually(t, s, "Find of a free name", func() bool {
		_, err := s.Find(t.Context(), c.Node)
		return errors.Is(err, tokens.ErrNotFound)
	})
	wantNotOfToken(t, s, c)
}

// wantNotOfToken waits until cached HeldBy no longer returns a claim.
func wantNotOfToken(t *testing.T, s tokens.Claims, c tokens.Claim) {
	t.Helper()
	eventually(t, s, "cached HeldBy without "+c.Node, func() bool {
		of, err := s.HeldBy(t.Context(), c.TokenID, tokens.Cached)
		if err != nil {
			t.Fatalf("cached HeldBy: %v", err)
		}
		return !slices.ContainsFunc(of, func(o tokens.Claim) bool { return o.Node == c.Node })
	})
}

// eventually calls done at every hint until it returns true. It fails the test after lag.
func eventually(t *testing.T, s tokens.Claims, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lag)
	defer cancel()
	for hints := s.Watch(ctx); ; {
		select {
		case <-hints:
		case <-ctx.Done():
			t.Fatalf("%v after the last change: got no %s", lag, what)
		}
		if done() {
			return
		}
	}
}

func testNoClaims(t *testing.T, s tokens.Claims) {
	wantClaims(t, s)
	wantNoClaim(t, s, tokens.Claim{Node: "worker-1", TokenID: "abcdef"})
}

func testListClaims(t *testing.T, s tokens.Claims) {
	var all []tokens.Claim
	ids := []string{tokens.Generate().ID(), tokens.Generate().ID()}
	for i, node := range []string{"b", "a", "a.b", "a-b", "a0", "a-b.c", longName(1), longName(0), "0", "10", "9"} {
		c := sampleClaim()
		c.Node, c.TokenID = node, ids[i%2]
		all = append(all, createClaim(t, s, c))
	}
	wantClaims(t, s, slices.Clone(all)...) // a clone, because wantClaims sorts it
	var left []tokens.Claim
	for i, c := range all {
		if i%3 == 0 {
			left = append(left, c)
			continue
		}
		if err := s.Delete(t.Context(), c); err != nil {
			t.Fatalf("Delete: %v", err)
		}
	}
	wantClaims(t, s, left...)
	if of, err := s.HeldBy(t.Context(), tokens.Generate().ID(), tokens.Cached); err != nil || len(of) > 0 {
		t.Errorf("cached HeldBy of a token without claims = %+v, %v, want none", of, err)
	}
}

// testHeldBy checks that HeldBy shows each change immediately. It does not wait for hints.
func testHeldBy(t *testing.T, s tokens.Claims) {
	id, other := tokens.Generate().ID(), tokens.Generate().ID()
	wantHeld := func(what, id string, want ...tokens.Claim) {
		t.Helper()
		got, err := s.HeldBy(t.Context(), id, tokens.Live)
		if err != nil || !slices.EqualFunc(got, want, sameClaim) {
			t.Errorf("%s: HeldBy gives\n%+v, %v\nwant\n%+v", what, got, err, want)
		}
	}
	wantHeld("no claims", id)
	var made []tokens.Claim
	for i, node := range []string{"b", "a", "a.b", "a-b", longName(0)} {
		c := sampleClaim()
		c.Node, c.TokenID, c.TokenUID = node, id, strconv.Itoa(i)
		made = append(made, createClaim(t, s, c))
		slices.SortFunc(made, func(a, b tokens.Claim) int { return strings.Compare(a.Node, b.Node) })
		wantHeld("created", id, made...)
	}
	wantHeld("created for another token", other)
	moved, err := s.Update(t.Context(), made[1].Node, func(c *tokens.Claim) error { c.TokenID = other; return nil })
	if err != nil {
		t.Fatalf("Update: %v", err)
	}
	made = slices.Delete(made, 1, 2)
	wantHeld("taken over", id, made...)
	wantHeld("taken over", other, moved)
	if err := tokens.Release(t.Context(), s, moved, moved.Past); err != nil {
		t.Fatalf("Release: %v", err)
	}
	wantHeld("released", other)
	if err := s.Delete(t.Context(), made[0]); err != nil {
		t.Fatalf("Delete: %v", err)
	}
	made = made[1:]
	wantHeld("deleted", id, made...)

	// The caller may change the claims that HeldBy returns.
	got, err := s.HeldBy(t.Context(), id, tokens.Live)
	if err != nil || len(got) == 0 {
		t.Fatalf("HeldBy = %+v, %v", got, err)
	}
	got[0].Keys[0], got[0].Requests[0], got[0].Limits.NodeNames[0] = "changed", "changed", "changed"
	wantHeld("what it gave before was changed", id, made...)
}

// testHeldByAtOnce calls HeldBy for many tokens concurrently. Each call must return exactly the claims of its
// token, including those created just before.
func testHeldByAtOnce(t *testing.T, s tokens.Claims) {
	var asking sync.WaitGroup
	for i := range 40 {
		asking.Go(func() {
			c := sampleClaim()
			if i%2 == 0 {
				c = createClaim(t, s, c)
			}
			got, err := s.HeldBy(t.Context(), c.TokenID, tokens.Live)
			switch {
			case err != nil:
				t.Errorf("HeldBy: %v", err)
			case i%2 == 0 && (len(got) != 1 || !sameClaim(got[0], c)), i%2 != 0 && len(got) > 0:
				t.Errorf("HeldBy of token %s gives %+v", c.TokenID, got)
			}
		})
	}
	asking.Wait()
}

// testClaimCopies changes claims that were passed to the store or returned by it. The store must not change.
func testClaimCopies(t *testing.T, s tokens.Claims) {
	spoil := func(c tokens.Claim) {
		c.Keys[0], c.Requests[0], c.Limits.NodeNames[0] = "changed", "changed", "changed"
	}
	given := sampleClaim()
	want := given.Clone()
	made := createClaim(t, s, given)
	want.Created, want.UID, want.Version = made.Created, made.UID, made.Version
	spoil(given)
	spoil(made)
	wantClaims(t, s, want)

	listed, err := s.List(t.Context())
	if err != nil || len(listed) != 1 {
		t.Fatalf("List = %+v, %v, want one claim", listed, err)
	}
	of, err := s.HeldBy(t.Context(), want.TokenID, tokens.Cached)
	if err != nil || len(of) != 1 {
		t.Fatalf("cached HeldBy = %+v, %v, want one claim", of, err)
	}
	found, err := s.Find(t.Context(), want.Node)
	if err != nil {
		t.Fatalf("Find: %v", err)
	}
	for _, c := range []tokens.Claim{listed[0], of[0], found, getClaim(t, s, want.Node)} {
		spoil(c)
	}
	listed[0].Node, of[0].Node = "changed", "changed"
	wantSameClaim(t, "Get after its claim was changed", getClaim(t, s, want.Node), want)
	wantClaims(t, s, want)

	var kept *tokens.Claim
	updated, err := s.Update(t.Context(), want.Node, func(c *tokens.Claim) error {
		c.NodeUID, kept = "again", c
		return nil
	})
	if err != nil {
		t.Fatalf("Update: %v", err)
	}
	want.NodeUID, want.Version = "again", updated.Version
	spoil(*kept)
	spoil(updated)
	wantSameClaim(t, "Get after the claim in Update was changed", getClaim(t, s, want.Node), want)
	wantClaims(t, s, want)
}

func testMalformedClaim(t *testing.T, s tokens.Claims) {
	ctx := t.Context()
	for _, node := range []string{"", "Worker", "a/b", "../kube-system/x", "a b", "a\n", "-a", strings.Repeat("a", 254)} {
		_, getErr := s.Get(ctx, node)
		_, findErr := s.Find(ctx, node)
		_, updateErr := s.Update(ctx, node, func(*tokens.Claim) error { return nil })
		for what, err := range map[string]error{
			"Get": getErr, "Find": findErr, "Update": updateErr, "Delete": s.Delete(ctx, tokens.Claim{Node: node, UID: "u", Version: "1"}),
		} {
			if err == nil || errors.Is(err, tokens.ErrNotFound) || !strings.Contains(err.Error(), "node name") {
				t.Errorf("%s of %q = %v, want what is wrong with the name", what, node, err)
			}
		}
	}
	whole := tokens.Generate().Reveal()
	_, err := s.HeldBy(ctx, whole, tokens.Cached)
	wantError(t, "cached HeldBy of a whole token", err, tokens.ErrMalformed)
	if err != nil && strings.Contains(err.Error(), whole) {
		t.Errorf("cached HeldBy of a whole token returned an error that contains it: %q", err)
	}
	_, err = s.HeldBy(ctx, whole, tokens.Live)
	wantError(t, "HeldBy of a whole token", err, tokens.ErrMalformed)
	if err != nil && strings.Contains(err.Error(), whole) {
		t.Errorf("HeldBy of a whole token returned an error that contains it: %q", err)
	}
}

func testClaimsCanceled(t *testing.T, s tokens.Claims) {
	c := createClaim(t, s, sampleClaim())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, getErr := s.Get(ctx, c.Node)
	_, findErr := s.Find(ctx, c.Node)
	_, listErr := s.List(ctx)
	_, ofErr := s.HeldBy(ctx, c.TokenID, tokens.Cached)
	_, heldErr := s.HeldBy(ctx, c.TokenID, tokens.Live)
	_, createErr := s.Create(ctx, sampleClaim())
	_, updateErr := s.Update(ctx, c.Node, func(c *tokens.Claim) error { c.NodeUID = "changed"; return nil })
	for what, err := range map[string]error{
		"Get": getErr, "Find": findErr, "List": listErr, "cached HeldBy": ofErr, "HeldBy": heldErr,
		"Create": createErr, "Update": updateErr, "Delete": s.Delete(ctx, c),
	} {
		wantError(t, what, err, context.Canceled)
	}
	wantClaims(t, s, c)

	// Every try of this Update conflicts with a newer change. Only its context can end it.
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	tries := 0
	_, err := s.Update(ctx, c.Node, func(mine *tokens.Claim) error {
		if tries++; tries == 3 {
			cancel()
		}
		_, err := s.Update(t.Context(), c.Node, func(c *tokens.Claim) error { c.NodeUID += "x"; return nil })
		mine.NodeUID = "never"
		return err
	})
	wantError(t, "Update that always comes too late", err, context.Canceled)
}

// testWatchClaims checks that two listeners get a hint after each kind of change.
func testWatchClaims(t *testing.T, s tokens.Claims) {
	one, two := s.Watch(t.Context()), s.Watch(t.Context())
	wantHint := func(what string, listed func([]tokens.Claim) bool) {
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
	wantHint("start", func(all []tokens.Claim) bool { return len(all) == 0 })
	c := createClaim(t, s, sampleClaim())
	wantHint("Create", func(all []tokens.Claim) bool { return len(all) == 1 })
	c, err := s.Update(t.Context(), c.Node, func(c *tokens.Claim) error { c.NodeUID = "changed"; return nil })
	if err != nil {
		t.Fatalf("Update: %v", err)
	}
	wantHint("Update", func(all []tokens.Claim) bool { return len(all) == 1 && all[0].NodeUID == "changed" })
	if err := s.Delete(t.Context(), c); err != nil {
		t.Fatalf("Delete: %v", err)
	}
	wantHint("Delete", func(all []tokens.Claim) bool { return len(all) == 0 })

	for range 10 {
		createClaim(t, s, sampleClaim())
	}
	wantHint("burst", func(all []tokens.Claim) bool { return len(all) == 10 })
}

func testWatchClaimsEnds(t *testing.T, s tokens.Claims) {
	watchEnds(t, s.Watch, func() { createClaim(t, s, sampleClaim()) })
}
