package storetest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// RunCounter is like [Run], but for a [tokens.Counter] and the store of its tokens. Run and [RunClaims] test the rest of
// both.
func RunCounter(t *testing.T, open func(t *testing.T) (tokens.Store, tokens.Counter)) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, tokens.Store, tokens.Counter)
	}{
		{"Commit", testCommit},
		{"CommitMany", testCommitMany},
		{"CommitConflicts", testCommitConflicts},
		{"CommitRefuses", testCommitRefuses},
		{"CommitAtOnce", testCommitAtOnce},
		{"GiveBack", testGiveBack},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, c := open(t)
			test.run(t, s, c)
		})
	}
}

// counted returns a record that has counted a node, and the change that makes the node's claim.
func counted(r tokens.Record, node string) (tokens.Record, tokens.ClaimChange) {
	after := r.Clone()
	after.Nodes = append(after.Nodes, node)
	claim := tokens.Claim{Node: node, TokenID: r.Token.ID(), TokenUID: r.UID, Limits: r.Limits, Keys: []string{key("a")}}
	return after, tokens.ClaimChange{After: claim}
}

func testCommit(t *testing.T, s tokens.Store, c tokens.Counter) {
	r := create(t, s, sample())
	after, change := counted(r, "worker-7")
	claims, err := c.Commit(t.Context(), r, after, []tokens.ClaimChange{change})
	if err != nil || len(claims) != 1 {
		t.Fatalf("Commit = %+v, %v", claims, err)
	}
	got := get(t, s, r.Token.ID())
	if !slices.Equal(got.Nodes, after.Nodes) || got.Version == r.Version || got.UID != r.UID {
		t.Errorf("got record %+v, want nodes %v, another version and the same UID", got, after.Nodes)
	}
	claim, err := c.Get(t.Context(), "worker-7")
	if err != nil || !claim.Equal(claims[0]) || claim.UID == "" || claim.Version == "" || claim.Created.IsZero() || !slices.Equal(claim.Keys, change.After.Keys) {
		t.Errorf("got claim %+v, %v, want %+v with UID, Version and Created", claim, err, claims[0])
	}
	if held, err := c.HeldBy(t.Context(), r.Token.ID(), tokens.Live); err != nil || len(held) != 1 {
		t.Errorf("HeldBy = %+v, %v, want the claim", held, err)
	}

	next := claim.Clone()
	next.Keys = append(next.Keys, key("b"))
	claims, err = c.Commit(t.Context(), got, got, []tokens.ClaimChange{{Before: claim, After: next}})
	if err != nil || len(claims) != 1 || claims[0].Version == claim.Version || claims[0].UID != claim.UID || len(claims[0].Keys) != 2 {
		t.Errorf("Commit of a changed claim = %+v, %v", claims, err)
	}
	if stored, err := c.Get(t.Context(), "worker-7"); err != nil || !stored.Equal(claims[0]) {
		t.Errorf("got claim %+v, %v, want %+v", stored, err, claims[0])
	}
}

func testCommitMany(t *testing.T, s tokens.Store, c tokens.Counter) {
	r := sample()
	r.Limits, r.Nodes = tokens.Limits{MaxNodes: tokens.MaxNodes}, nil
	r = create(t, s, r)
	after := r
	var changes []tokens.ClaimChange
	for i := range c.MaxCommit() {
		var change tokens.ClaimChange
		after, change = counted(after, fmt.Sprintf("worker-%d", i))
		changes = append(changes, change)
	}
	claims, err := c.Commit(t.Context(), r, after, changes)
	if err != nil || len(claims) != len(changes) {
		t.Fatalf("Commit of %d claims = %d claims, %v", len(changes), len(claims), err)
	}
	for i, claim := range claims {
		if claim.Node != changes[i].After.Node {
			t.Errorf("got claim %d of node %s, want %s", i, claim.Node, changes[i].After.Node)
		}
	}
	if held, err := c.HeldBy(t.Context(), r.Token.ID(), tokens.Live); err != nil || len(held) != len(changes) {
		t.Errorf("got %d claims, %v, want %d", len(held), err, len(changes))
	}
}

// Nothing is written if the record or one claim has changed.
func testCommitConflicts(t *testing.T, s tokens.Store, c tokens.Counter) {
	taken, err := c.Create(t.Context(), tokens.Claim{Node: "taken", TokenID: "abcdef"})
	if err != nil {
		t.Fatal(err)
	}
	touch := func(r *tokens.Record) error { r.Description += "."; return nil }
	for name, spoil := range map[string]func(*testing.T, *tokens.Record, *tokens.ClaimChange){
		"the record has changed": func(t *testing.T, r *tokens.Record, _ *tokens.ClaimChange) {
			if _, err := s.Update(t.Context(), r.Token.ID(), touch); err != nil {
				t.Fatal(err)
			}
		},
		"the record is gone": func(t *testing.T, r *tokens.Record, _ *tokens.ClaimChange) {
			if err := s.Delete(t.Context(), *r); err != nil {
				t.Fatal(err)
			}
		},
		"the record was replaced": func(t *testing.T, r *tokens.Record, _ *tokens.ClaimChange) {
			if err := s.Delete(t.Context(), *r); err != nil {
				t.Fatal(err)
			}
			create(t, s, *r)
		},
		"another claim has the name": func(_ *testing.T, _ *tokens.Record, c *tokens.ClaimChange) { c.After.Node = "taken" },
		"the claim has changed": func(t *testing.T, _ *tokens.Record, change *tokens.ClaimChange) {
			claim, err := c.Create(t.Context(), tokens.Claim{Node: "changed", TokenID: "abcdef"})
			if err != nil {
				t.Fatal(err)
			}
			change.Before, change.After.Node = claim, "changed"
			if _, err := c.Update(t.Context(), "changed", func(c *tokens.Claim) error { c.Keys = []string{key("c")}; return nil }); err != nil {
				t.Fatal(err)
			}
		},
		"the claim is gone": func(_ *testing.T, _ *tokens.Record, change *tokens.ClaimChange) {
			change.Before = taken.Clone()
			change.Before.Node, change.After.Node = "gone", "gone"
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := create(t, s, sample())
			after, bad := counted(r, "worker-8")
			after, good := counted(after, "worker-"+r.Token.ID())
			spoil(t, &r, &bad)
			before, found := s.Get(t.Context(), r.Token.ID())
			claims, err := c.Commit(t.Context(), r, after, []tokens.ClaimChange{good, bad})
			wantError(t, "Commit", err, tokens.ErrConflict)
			if len(claims) > 0 {
				t.Errorf("Commit returned claims %+v", claims)
			}
			if _, err := c.Get(t.Context(), good.After.Node); !errors.Is(err, tokens.ErrNotFound) {
				t.Errorf("the other claim was written: %v", err)
			}
			now, err := s.Get(t.Context(), r.Token.ID())
			if errors.Is(found, tokens.ErrNotFound) {
				wantError(t, "Get of the deleted record", err, tokens.ErrNotFound)
			} else if err != nil || !same(now, before) {
				t.Errorf("got record %+v, %v, want it as before", now, err)
			}
		})
	}
}

func testCommitRefuses(t *testing.T, s tokens.Store, c tokens.Counter) {
	r := create(t, s, sample())
	for name, spoil := range map[string]func(*tokens.Record, *tokens.ClaimChange){
		"limits":         func(r *tokens.Record, _ *tokens.ClaimChange) { r.Limits.MaxNodes = -1 },
		"another UID":    func(r *tokens.Record, _ *tokens.ClaimChange) { r.UID = "another" },
		"another token":  func(r *tokens.Record, _ *tokens.ClaimChange) { r.Token = tokens.Generate() },
		"node name":      func(_ *tokens.Record, c *tokens.ClaimChange) { c.After.Node = "A" },
		"claimed by '/'": func(_ *tokens.Record, c *tokens.ClaimChange) { c.After.TokenID = "abc/ef" },
	} {
		after, change := counted(r, "worker-9")
		spoil(&after, &change)
		if claims, err := c.Commit(t.Context(), r, after, []tokens.ClaimChange{change}); err == nil || errors.Is(err, tokens.ErrConflict) {
			t.Errorf("%s: Commit = %+v, %v, want an error that a retry does not change", name, claims, err)
		}
	}
	wantSame(t, "Get", get(t, s, r.Token.ID()), r)
}

// testCommitAtOnce counts nodes concurrently: each node that was committed is counted, and no more than the limit.
func testCommitAtOnce(t *testing.T, s tokens.Store, c tokens.Counter) {
	const limit, machines = 5, 12
	r := sample()
	r.Limits, r.Nodes, r.Expires = tokens.Limits{MaxNodes: limit}, nil, time.Time{}
	r = create(t, s, r)
	var joined sync.Map
	var wg sync.WaitGroup
	for i := range machines {
		wg.Go(func() {
			node := fmt.Sprintf("worker-%d", i)
			for {
				now, err := s.Get(t.Context(), r.Token.ID())
				if err != nil {
					t.Errorf("Get: %v", err)
					return
				}
				if now.Spent() {
					return
				}
				after, change := counted(now, node)
				switch _, err := c.Commit(t.Context(), now, after, []tokens.ClaimChange{change}); {
				case err == nil:
					joined.Store(node, true)
					return
				case !errors.Is(err, tokens.ErrConflict):
					t.Errorf("Commit: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	now := get(t, s, r.Token.ID())
	held, err := c.HeldBy(t.Context(), r.Token.ID(), tokens.Live)
	if err != nil || len(now.Nodes) != limit || len(held) != limit {
		t.Errorf("got nodes %v and %d claims, %v, want %d", now.Nodes, len(held), err, limit)
	}
	for _, node := range now.Nodes {
		if _, found := joined.Load(node); !found {
			t.Errorf("node %s is counted, but its Commit failed", node)
		}
	}
}

// Catches a slot that is free while a claim holds its name.
func testGiveBack(t *testing.T, s tokens.Store, c tokens.Counter) {
	r := create(t, s, sample())
	id := r.Token.ID()
	after, change := counted(r, "worker-7")
	claims, err := c.Commit(t.Context(), r, after, []tokens.ClaimChange{change})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tokens.GiveBack(t.Context(), s, c, id, "worker-7"); !errors.Is(err, tokens.ErrConflict) {
		t.Errorf("got error %v while the claim exists, want ErrConflict", err)
	}
	if got := get(t, s, id); !slices.Equal(got.Nodes, after.Nodes) {
		t.Errorf("got nodes %v while the claim exists, want %v", got.Nodes, after.Nodes)
	}
	if err := c.Delete(t.Context(), claims[0]); err != nil {
		t.Fatal(err)
	}
	if got, err := tokens.GiveBack(t.Context(), s, c, id, "worker-7"); err != nil || !slices.Equal(got.Nodes, r.Nodes) {
		t.Errorf("got nodes %v, error %v after the claim was deleted, want nodes %v", got.Nodes, err, r.Nodes)
	}
	if _, err := tokens.GiveBack(t.Context(), s, c, id, "worker-7"); !errors.Is(err, tokens.ErrNotFound) {
		t.Errorf("got error %v for a name that is not counted, want ErrNotFound", err)
	}
}
