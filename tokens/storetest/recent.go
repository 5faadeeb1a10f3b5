package storetest

import (
	"slices"
	"testing"

	"github.com/kubejoin/kubejoin/tokens"
)

// ownWrites is how many writes the tests of Recent make: enough for a store to read from a proven cache between them.
const ownWrites = 100

// testRecent checks that Recent shows each write of the store at once.
func testRecent(t *testing.T, s tokens.Store) {
	_, err := s.Recent(t.Context(), "abcdef")
	wantError(t, "Recent", err, tokens.ErrNotFound)
	r := create(t, s, sample())
	id := r.Token.ID()
	for i := range ownWrites {
		if r, err = s.Update(t.Context(), id, func(r *tokens.Record) error { r.Signing = !r.Signing; return nil }); err != nil {
			t.Fatalf("Update: %v", err)
		}
		for range 3 {
			got, err := s.Recent(t.Context(), id)
			if err != nil {
				t.Fatalf("Recent: %v", err)
			}
			if wantSame(t, "Recent", got, r); t.Failed() {
				t.Fatalf("after write %d", i+1)
			}
		}
	}
	if err := s.Delete(t.Context(), r); err != nil {
		t.Fatalf("Delete: %v", err)
	}
	_, err = s.Recent(t.Context(), id)
	wantError(t, "Recent", err, tokens.ErrNotFound)
}

// testRecentClaims checks that Recent and a recent HeldBy show each write of the claims at once.
func testRecentClaims(t *testing.T, s tokens.Claims) {
	c := sampleClaim()
	for i := range ownWrites {
		_, err := s.Recent(t.Context(), c.Node)
		wantError(t, "Recent", err, tokens.ErrNotFound)
		made := createClaim(t, s, c)
		for range 3 {
			got, err := s.Recent(t.Context(), c.Node)
			if err != nil {
				t.Fatalf("Recent: %v", err)
			}
			wantSameClaim(t, "Recent", got, made)
			wantHeld(t, s, c.TokenID, made)
		}
		other := made
		other.TokenID, other.TokenUID = "abcdef", "another"
		if other, err = s.Update(t.Context(), c.Node, func(c *tokens.Claim) error { *c = other; return nil }); err != nil {
			t.Fatalf("Update: %v", err)
		}
		wantHeld(t, s, c.TokenID)
		wantHeld(t, s, other.TokenID, other)
		if err := s.Delete(t.Context(), other); err != nil {
			t.Fatalf("Delete: %v", err)
		}
		wantHeld(t, s, other.TokenID)
		if t.Failed() {
			t.Fatalf("after claim %d", i+1)
		}
	}
}

func wantHeld(t *testing.T, s tokens.Claims, id string, want ...tokens.Claim) {
	t.Helper()
	held, err := s.HeldBy(t.Context(), id, tokens.Recent)
	if err != nil || !slices.EqualFunc(held, want, sameClaim) {
		t.Fatalf("recent HeldBy gives\n%+v, %v\nwant\n%+v", held, err, want)
	}
}
