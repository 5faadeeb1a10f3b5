package storetest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// RunCommit is like [Run], but tests Claims.Commit together with the store of the tokens. Run and [RunClaims] test the
// other methods.
func RunCommit(t *testing.T, open func(t *testing.T) (tokens.Store, tokens.Claims)) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, tokens.Store, tokens.Claims)
	}{
		{"Commit", testCommit},
		{"CommitMany", testCommitMany},
		{"CommitConflicts", testCommitConflicts},
		{"CommitRefuses", testCommitRefuses},
		{"CommitAtOnce", testCommitAtOnce},
		{"CommitFreesSlot", testCommitFreesSlot},
		{"CommitEndsClaim", testCommitEndsClaim},
		{"CommitTakesOver", testCommitTakesOver},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, c := open(t)
			test.run(t, s, c)
		})
	}
}

// counted returns r with a node counted, and the change that creates the node's claim.
func counted(r tokens.Record, node string) (tokens.Record, tokens.ClaimChange) {
	after := r.Clone()
	if !slices.Contains(after.Nodes, node) {
		after.Nodes = append(after.Nodes, node)
	}
	claim := tokens.Claim{Node: node, TokenID: r.Token.ID(), TokenUID: r.UID, Limits: r.Limits, Keys: []string{key("a")}}
	return after, tokens.ClaimChange{After: claim}
}

func uncounted(r tokens.Record, node string) tokens.Record {
	r = r.Clone()
	r.Nodes = slices.DeleteFunc(r.Nodes, func(name string) bool { return name == node })
	return r
}

// unique returns a node name that no other test uses.
func unique(r tokens.Record, name string) string { return name + "-" + r.Token.ID() }

// commit commits one change and returns the error of the commit or of its outcome.
func commit(t *testing.T, c tokens.Claims, before, after tokens.Record, change tokens.ClaimChange) (tokens.Claim, error) {
	t.Helper()
	outcomes, err := c.Commit(t.Context(), before, after, []tokens.ClaimChange{change})
	if len(outcomes) == 0 {
		return tokens.Claim{}, cmp.Or(err, errors.New("no outcome"))
	}
	return outcomes[0].Claim, cmp.Or(outcomes[0].Err, err)
}

func mustCommit(t *testing.T, c tokens.Claims, before, after tokens.Record, change tokens.ClaimChange) tokens.Claim {
	t.Helper()
	claim, err := commit(t, c, before, after, change)
	if err != nil {
		t.Fatalf("Commit: %v", err)
	}
	return claim
}

func testCommit(t *testing.T, s tokens.Store, c tokens.Claims) {
	r := create(t, s, sample())
	node := unique(r, "worker-7")
	after, change := counted(r, node)
	made := mustCommit(t, c, r, after, change)
	got := get(t, s, r.Token.ID())
	if !slices.Equal(got.Nodes, after.Nodes) || got.Version == r.Version || got.UID != r.UID {
		t.Errorf("got record %+v, want nodes %v, another version and the same UID", got, after.Nodes)
	}
	claim := getClaim(t, c, node)
	if !claim.Equal(made) || claim.UID == "" || claim.Version == "" || claim.Created.IsZero() || !slices.Equal(claim.Keys, change.After.Keys) {
		t.Errorf("got claim %+v, want %+v with UID, Version and Created", claim, made)
	}
	if held, err := c.HeldBy(t.Context(), r.Token.ID(), tokens.Live); err != nil || len(held) != 1 || c.Ended(got, claim) {
		t.Errorf("HeldBy = %+v, %v, want the claim, and Ended false", held, err)
	}

	next := claim.Clone()
	next.Keys = append(next.Keys, key("b"))
	changed := mustCommit(t, c, got, got, tokens.ClaimChange{Before: claim, After: next})
	if changed.Version == claim.Version || changed.UID != claim.UID || len(changed.Keys) != 2 {
		t.Errorf("Commit of a changed claim = %+v", changed)
	}
	wantSameClaim(t, "Get", getClaim(t, c, node), changed)
	if same := mustCommit(t, c, got, got, tokens.ClaimChange{Before: changed, After: changed}); same.Version != changed.Version {
		t.Errorf("Commit of the same claim = %+v, want it unchanged", same)
	}
}

// testCommitMany commits more claims than some databases allow in one transaction.
func testCommitMany(t *testing.T, s tokens.Store, c tokens.Claims) {
	r := sample()
	r.Limits, r.Nodes = tokens.Limits{MaxNodes: 100}, nil
	r = create(t, s, r)
	after := r
	var changes []tokens.ClaimChange
	for i := range 100 {
		var change tokens.ClaimChange
		after, change = counted(after, unique(r, fmt.Sprintf("worker-%d", i)))
		changes = append(changes, change)
	}
	after.Expires = time.Now().Add(time.Minute).UTC().Truncate(time.Second)
	outcomes, err := c.Commit(t.Context(), r, after, changes)
	if err != nil || len(outcomes) != len(changes) {
		t.Fatalf("Commit of %d claims = %d outcomes, %v", len(changes), len(outcomes), err)
	}
	for i, o := range outcomes {
		if o.Err != nil || o.Claim.Node != changes[i].After.Node {
			t.Errorf("got claim %d of node %s, %v, want %s", i, o.Claim.Node, o.Err, changes[i].After.Node)
		}
	}
	if held, err := c.HeldBy(t.Context(), r.Token.ID(), tokens.Live); err != nil || len(held) != len(changes) {
		t.Errorf("got %d claims, %v, want %d", len(held), err, len(changes))
	}
	if now := get(t, s, r.Token.ID()); !slices.Equal(now.Nodes, after.Nodes) || !now.Expires.Equal(after.Expires) {
		t.Errorf("got %d nodes until %s, want %d until %s", len(now.Nodes), now.Expires, len(after.Nodes), after.Expires)
	}
}

// Commit must skip a change whose claim has changed since it was read. If the record has changed, Commit must skip all changes.
func testCommitConflicts(t *testing.T, s tokens.Store, c tokens.Claims) {
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
		"another claim has the name": func(t *testing.T, r *tokens.Record, change *tokens.ClaimChange) {
			change.After.Node = unique(*r, "taken")
			createClaim(t, c, tokens.Claim{Node: change.After.Node, TokenID: "abcdef"})
		},
		"the claim has changed": func(t *testing.T, r *tokens.Record, change *tokens.ClaimChange) {
			change.Before = createClaim(t, c, tokens.Claim{Node: unique(*r, "changed"), TokenID: "abcdef"})
			change.After = change.Before.Clone()
			change.After.TokenID = r.Token.ID()
			if _, err := UpdateClaim(t.Context(), c, change.After.Node, func(c *tokens.Claim) error { c.Keys = []string{key("c")}; return nil }); err != nil {
				t.Fatal(err)
			}
		},
		"the claim is gone": func(t *testing.T, r *tokens.Record, change *tokens.ClaimChange) {
			change.Before = createClaim(t, c, tokens.Claim{Node: unique(*r, "gone"), TokenID: "abcdef"})
			change.After = change.Before.Clone()
			change.After.TokenID = r.Token.ID()
			if err := DeleteClaim(t.Context(), c, change.Before); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			first := sample()
			first.Nodes = nil
			r := create(t, s, first)
			after, bad := counted(r, unique(r, "worker-8"))
			after, good := counted(after, unique(r, "worker-9"))
			spoil(t, &r, &bad)
			before, found := s.Get(t.Context(), r.Token.ID(), tokens.Live)
			outcomes, err := c.Commit(t.Context(), r, after, []tokens.ClaimChange{good, bad})
			if err == nil && len(outcomes) == 2 {
				wantError(t, "outcome", outcomes[1].Err, tokens.ErrConflict)
				if text := fmt.Sprint(outcomes[1].Err); !strings.Contains(text, bad.After.Node) {
					t.Errorf("outcome: got %s, want it to name node %s", text, bad.After.Node)
				}
			} else if len(outcomes) > 0 || !errors.Is(err, tokens.ErrConflict) && !errors.Is(err, tokens.ErrNotFound) {
				t.Errorf("Commit = %+v, %v, want ErrConflict", outcomes, err)
			}
			if _, getErr := c.Get(t.Context(), good.After.Node, tokens.Live); (err == nil) != (getErr == nil) {
				t.Errorf("Commit = %v, then Get of the other claim = %v", err, getErr)
			}
			now, getErr := s.Get(t.Context(), r.Token.ID(), tokens.Live)
			if errors.Is(found, tokens.ErrNotFound) {
				wantError(t, "Get of the deleted record", getErr, tokens.ErrNotFound)
			} else if getErr != nil || err != nil && !same(now, before) {
				t.Errorf("got record %+v, %v, want it as before", now, getErr)
			}
		})
	}
}

func testCommitRefuses(t *testing.T, s tokens.Store, c tokens.Claims) {
	for name, spoil := range map[string]func(*tokens.Record, *tokens.ClaimChange){
		"limits":         func(r *tokens.Record, _ *tokens.ClaimChange) { r.Limits.MaxNodes = -1 },
		"another UID":    func(r *tokens.Record, _ *tokens.ClaimChange) { r.UID = "another" },
		"another token":  func(r *tokens.Record, _ *tokens.ClaimChange) { r.Token = tokens.Generate() },
		"node name":      func(_ *tokens.Record, c *tokens.ClaimChange) { c.After.Node = "A" },
		"claimed by '/'": func(_ *tokens.Record, c *tokens.ClaimChange) { c.After.TokenID = "abc/ef" },
	} {
		r := create(t, s, sample())
		after, change := counted(r, unique(r, "worker-9"))
		spoil(&after, &change)
		if claim, err := commit(t, c, r, after, change); err == nil || errors.Is(err, tokens.ErrConflict) {
			t.Errorf("%s: Commit = %+v, %v, want an error that a retry does not change", name, claim, err)
		}
		if held, err := c.HeldBy(t.Context(), r.Token.ID(), tokens.Live); err != nil || len(held) > 0 {
			t.Errorf("%s: got claims %+v, %v, want none", name, held, err)
		}
	}
}

// testCommitAtOnce counts nodes concurrently. The record must count each committed node, and not more nodes than its limit.
func testCommitAtOnce(t *testing.T, s tokens.Store, c tokens.Claims) {
	const limit, machines = 5, 12
	r := sample()
	r.Limits, r.Nodes, r.Expires = tokens.Limits{MaxNodes: limit}, nil, time.Time{}
	r = create(t, s, r)
	var joined sync.Map
	var wg sync.WaitGroup
	for i := range machines {
		wg.Go(func() {
			node := unique(r, fmt.Sprintf("worker-%d", i))
			for {
				now, err := s.Get(t.Context(), r.Token.ID(), tokens.Live)
				if err != nil {
					t.Errorf("Get: %v", err)
					return
				}
				if now.Spent() && !slices.Contains(now.Nodes, node) {
					return
				}
				after, change := counted(now, node)
				switch _, err := commit(t, c, now, after, change); {
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

// Catches a slot that is free while a claim still holds the name.
func testCommitFreesSlot(t *testing.T, s tokens.Store, c tokens.Claims) {
	r := create(t, s, sample())
	id, node := r.Token.ID(), unique(r, "worker-7")
	after, change := counted(r, node)
	claim := mustCommit(t, c, r, after, change)
	now := get(t, s, id)
	_, err := c.Commit(t.Context(), now, uncounted(now, node), nil)
	wantError(t, "Commit without a name that is claimed", err, tokens.ErrConflict)
	if now = get(t, s, id); !slices.Equal(now.Nodes, after.Nodes) {
		t.Errorf("got nodes %v while the claim exists, want %v", now.Nodes, after.Nodes)
	}
	if err := DeleteClaim(t.Context(), c, claim); err != nil {
		t.Fatal(err)
	}
	now = get(t, s, id)
	if _, err := c.Commit(t.Context(), now, uncounted(now, node), nil); err != nil {
		t.Errorf("Commit after the claim was deleted: %v", err)
	}
	if now = get(t, s, id); !slices.Equal(now.Nodes, r.Nodes) {
		t.Errorf("got nodes %v after the claim was deleted, want %v", now.Nodes, r.Nodes)
	}

	// Commit releases the name and frees the slot together.
	after, change = counted(now, node)
	claim = mustCommit(t, c, now, after, change)
	now = get(t, s, id)
	mustCommit(t, c, now, uncounted(now, node), tokens.ClaimChange{Before: claim, After: claim.AfterRelease(tokens.ReleasedClaim{})})
	if now = get(t, s, id); !slices.Equal(now.Nodes, r.Nodes) {
		t.Errorf("got nodes %v after the release, want %v", now.Nodes, r.Nodes)
	}
	wantNoClaim(t, c, claim)
}

// Catches a token that still admits a machine under a name whose claim has ended.
func testCommitEndsClaim(t *testing.T, s tokens.Store, c tokens.Claims) {
	r := create(t, s, sample())
	id, node := r.Token.ID(), unique(r, "worker-7")
	after, change := counted(r, node)
	claim := mustCommit(t, c, r, after, change)
	past := tokens.ReleasedClaim{Until: time.Now().Add(time.Hour).UTC().Truncate(time.Second)}
	if err := tokens.Release(t.Context(), c, claim, past); err != nil {
		t.Fatal(err)
	}
	left := getClaim(t, c, node)
	if now := get(t, s, id); !slices.Equal(now.Nodes, after.Nodes) || !c.Ended(now, left) || !c.Ended(now, tokens.Claim{Node: node}) {
		t.Errorf("got nodes %v and Ended %t, want the name counted and ended", now.Nodes, c.Ended(now, left))
	}
	if !left.Released() || left.Past != past {
		t.Errorf("got claim %+v, want it released with the past", left)
	}
	empty := left.AfterRelease(tokens.ReleasedClaim{}) // a person may create such a Lease
	mustCommit(t, c, tokens.Record{}, tokens.Record{}, tokens.ClaimChange{Before: empty, After: empty})
	wantNoClaim(t, c, claim)
}

// A token takes the name of another token. The other token must then admit nobody under this name.
func testCommitTakesOver(t *testing.T, s tokens.Store, c tokens.Claims) {
	old, r := create(t, s, sample()), create(t, s, sample())
	node := unique(r, "worker-7")
	after, change := counted(old, node)
	claim := mustCommit(t, c, old, after, change)
	after, change = counted(r, node)
	change.Before, change.After.UID, change.After.Version, change.After.Created = claim, claim.UID, claim.Version, claim.Created
	taken := mustCommit(t, c, r, after, change)
	if taken.TokenID != r.Token.ID() || taken.UID != claim.UID || taken.Created.Before(claim.Created) {
		t.Errorf("got claim %+v, want that of token %s", taken, r.Token.ID())
	}
	wantSameClaim(t, "Get", getClaim(t, c, node), taken)
	if was, now := get(t, s, old.Token.ID()), get(t, s, r.Token.ID()); !c.Ended(was, taken) || !slices.Contains(was.Nodes, node) || c.Ended(now, taken) || !slices.Contains(now.Nodes, node) {
		t.Errorf("got nodes %v of the old token and %v of the new one, want the name in both, and ended for the old one", was.Nodes, now.Nodes)
	}
	if held, err := c.HeldBy(t.Context(), old.Token.ID(), tokens.Live); err != nil || slices.ContainsFunc(held, func(c tokens.Claim) bool { return strings.HasPrefix(c.Node, "worker-7") }) {
		t.Errorf("HeldBy of the old token = %+v, %v, want none", held, err)
	}
}
