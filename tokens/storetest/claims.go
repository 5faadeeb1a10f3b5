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
	run(t, func(t *testing.T) kind[tokens.Claim] { return claimsOf(open(t)) })
	for name, test := range map[string]func(*testing.T, tokens.Claims){
		"Empty": testNoClaims, "HeldBy": testHeldBy, "HeldByAtOnce": testHeldByAtOnce, "Recent": testRecentClaims,
		"UpdateNothing": testUpdateClaimNothing, "Release": testReleaseClaim, "Malformed": testMalformedClaim,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

func hash(digit string) string { return strings.Repeat(digit, 64) }

// key returns a valid key that repeats one hex digit.
func key(digit string) string { return "sha256:" + hash(digit) }

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
		Waits:    true,

		ReadyBefore: "0123456789abcdef0123456789abcdef",
		ReadyAgain:  true,

		Past: tokens.ReleasedClaim{Until: time.Date(2031, 2, 3, 4, 5, 6, 0, time.UTC), CertificateDuration: 90 * time.Minute, Rejoin: tokens.RejoinDeny, Node: tokens.NodeProperties{Labels: "a=b", Taints: "c:NoSchedule", ReadyAfter: tokens.ReadyAfterLabels}},

		Identity: tokens.Identity{
			NodeUID: "8c1d3c0e-6a55-4bb5-b0a4-1d6d6e3e7f0d", Credentials: []tokens.Credential{{Key: key("e"), Fingerprint: hash("1")}, {Key: key("d"), Fingerprint: hash("2")}},
			Bound:    tokens.Credential{Key: key("f"), Fingerprint: hash("1")},
			NotAfter: time.Date(2032, 2, 3, 4, 5, 6, 0, time.UTC),
			Rejoins:  []time.Time{time.Date(2032, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2032, 3, 4, 5, 6, 7, 0, time.UTC)},
			TokenID:  "abc123",
		},

		Machine: tokens.Machine{
			Key: key("c"), By: "alice", Added: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC), Expires: time.Date(2033, 1, 2, 3, 4, 5, 0, time.UTC),
			CertificateDuration: time.Hour, Rejoin: tokens.RejoinDeny, Node: tokens.NodeProperties{Labels: "a=b", ReadyAfter: tokens.ReadyAfterLabels},
			TokenID: "def456", TokenUID: "8c1d3c0e-6a55-4bb5-b0a4-1d6d6e3e7f0e", Revoked: true,
			RefusedSince: time.Date(2030, 2, 2, 3, 4, 5, 0, time.UTC), RefusedLast: time.Date(2030, 2, 2, 3, 6, 5, 0, time.UTC),
		},
	}
}

func getClaim(t *testing.T, s tokens.Claims, node string) tokens.Claim {
	t.Helper()
	c, err := s.Get(t.Context(), node, tokens.Live)
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

// wantClaims waits for List, cached Get and cached HeldBy to show these claims and no others.
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

// notShown returns which method does not return the wanted claims, and what it returns instead. It returns an empty string
// if all methods return the wanted claims.
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
		got, err := s.Get(t.Context(), c.Node, tokens.Cached)
		if err != nil && !errors.Is(err, tokens.ErrNotFound) {
			t.Fatalf("cached Get: %v", err)
		}
		if err != nil || !sameClaim(got, c) {
			return fmt.Sprintf("cached Get, which gives\n%+v, %v", got, err)
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

// wantNoClaim checks that Get no longer returns a claim. Then it waits until the cached Get and HeldBy no longer return it.
func wantNoClaim(t *testing.T, s tokens.Claims, c tokens.Claim) {
	t.Helper()
	_, err := s.Get(t.Context(), c.Node, tokens.Live)
	wantError(t, "Get", err, tokens.ErrNotFound)
	eventually(t, s, "cached Get of a free name", func() bool {
		_, err := s.Get(t.Context(), c.Node, tokens.Cached)
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
	moved, err := UpdateClaim(t.Context(), s, made[1].Node, func(c *tokens.Claim) error { c.TokenID = other; return nil })
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
	if err := DeleteClaim(t.Context(), s, made[0]); err != nil {
		t.Fatalf("Delete: %v", err)
	}
	made = made[1:]
	wantHeld("deleted", id, made...)

	cached := func() {
		t.Helper()
		eventually(t, s, "cached HeldBy with the same claims", func() bool {
			got, err := s.HeldBy(t.Context(), id, tokens.Cached)
			return err == nil && slices.EqualFunc(got, made, sameClaim)
		})
	}
	cached()
	// The caller may change the claims that HeldBy returns.
	for _, read := range []tokens.Read{tokens.Live, tokens.Cached} {
		got, err := s.HeldBy(t.Context(), id, read)
		if err != nil || len(got) == 0 {
			t.Fatalf("HeldBy = %+v, %v", got, err)
		}
		claimsOf(s).spoil(got[0])
		got[0].Node = "changed"
	}
	wantHeld("what it gave before was changed", id, made...)
	cached()
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

func testMalformedClaim(t *testing.T, s tokens.Claims) {
	ctx := t.Context()
	for _, node := range []string{"", "Worker", "a/b", "../kube-system/x", "a b", "a\n", "-a", strings.Repeat("a", 254)} {
		_, getErr := s.Get(ctx, node, tokens.Live)
		_, findErr := s.Get(ctx, node, tokens.Cached)
		_, updateErr := UpdateClaim(ctx, s, node, func(*tokens.Claim) error { return nil })
		for what, err := range map[string]error{
			"Get": getErr, "cached Get": findErr, "Update": updateErr, "Delete": DeleteClaim(ctx, s, tokens.Claim{Node: node, TokenID: "abcdef", UID: "u", Version: "1"}),
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

// claimsOf returns the kind whose values are the claims of a store.
func claimsOf(s tokens.Claims) kind[tokens.Claim] {
	type claim = tokens.Claim
	return kind[claim]{
		sample: sampleClaim, key: func(c claim) string { return c.Node },
		blank:  func() claim { c := sampleClaim(); return claim{Node: c.Node, TokenID: c.TokenID} },
		keyed:  func(node string) claim { c := sampleClaim(); c.Node = node; return c },
		keys:   []string{"b", "a", "a.b", "a-b", "a0", "a-b.c", longName(1), longName(0), "0", "10", "9"},
		stamps: func(c *claim) (uid, version *string, created *time.Time) { return &c.UID, &c.Version, &c.Created },
		text:   func(c *claim) *string { return &c.NodeUID },
		alter: func(c *claim) {
			c.TokenID, c.TokenUID, c.Keys = tokens.Generate().ID(), "another", append(c.Keys, key("c"))
			c.Requests, c.NodeUID, c.Limits = nil, "", tokens.Limits{MaxNodes: 1}
		},
		spoil:  func(c claim) { c.Keys[0], c.Requests[0], c.Limits.NodeNames[0] = "changed", "changed", "changed" },
		clone:  claim.Clone,
		same:   sameClaim,
		stored: func(c claim) claim { return c },
		assign: func(to *claim, from claim) {
			from.Node, from.Created, from.UID, from.Version = to.Node, to.Created, to.UID, to.Version
			*to = from
		},
		fields: map[string]func(*claim){
			"everything":      func(*claim) {},
			"the least":       func(c *claim) { *c = claim{Node: c.Node, TokenID: c.TokenID} },
			"empty lists":     func(c *claim) { c.Keys, c.Requests, c.Limits.NodeNames = []string{}, []string{}, []string{} },
			"253 characters":  func(c *claim) { c.Node = longName(0) },
			"one character":   func(c *claim) { c.Node = "0" },
			"most keys":       func(c *claim) { c.Keys = []string{key("3"), key("1"), key("2")} },
			"most requests":   func(c *claim) { c.Requests = []string{strings.Repeat("r", 128), "1", "2"} },
			"never Ready":     func(c *claim) { c.ReadyBefore = "" },
			"waits no longer": func(c *claim) { c.Waits = false },
			"not Ready yet":   func(c *claim) { c.ReadyAgain = false },
			"no limits":       func(c *claim) { c.Limits = tokens.Limits{} },
			"a Node to replace": func(c *claim) {
				c.Limits = tokens.Limits{MaxNodes: 1, NodeNames: []string{"*"}, Replaces: tokens.NodeRef{Name: longName(1), UID: c.NodeUID}}
			},
			"released":              func(c *claim) { *c = released(*c) },
			"released, as signed":   func(c *claim) { *c = released(*c); c.Past.CertificateDuration = 0 },
			"a past with no length": func(c *claim) { c.Past.CertificateDuration = 0 },
			"no identity":           func(c *claim) { c.Identity = tokens.Identity{} },
			"an identity alone":     func(c *claim) { *c = released(*c); c.Past = tokens.ReleasedClaim{} },
			"no machine":            func(c *claim) { c.Machine = tokens.Machine{} },
			"a machine alone": func(c *claim) {
				*c = claim{Node: c.Node, Machine: tokens.Machine{Key: "lusab-babad-gutih-tugad", Added: c.Machine.Added}}
			},
			"most rejoins": func(c *claim) {
				c.Identity.Rejoins = slices.Repeat([]time.Time{c.Identity.NotAfter}, tokens.MaxRejoins)
			},
			"an identity elsewhere": func(c *claim) {
				zone := time.FixedZone("", 3600)
				c.Identity.NotAfter = c.Identity.NotAfter.In(zone)
			},
			"a past elsewhere": func(c *claim) { c.Past.Until = c.Past.Until.In(time.FixedZone("", 3600)) },
			"an odd duration":  func(c *claim) { c.Limits.CertificateDuration = 25*time.Hour + 61*time.Second },
		},
		wrong: map[string]func(*claim){
			"limits":      func(c *claim) { c.Limits.MaxNodes = -1 },
			"keys":        func(c *claim) { c.Keys = []string{""} },
			"a past":      func(c *claim) { c.Past.CertificateDuration = time.Second },
			"a past node": func(c *claim) { c.Past.Node.Taints = "a" },
			"an identity": func(c *claim) { c.Identity.Bound.Key = `"` },
			"a machine":   func(c *claim) { c.Machine.Key = "lusab" },
			"no key":      func(c *claim) { c.Machine.Key = "" },
			"a claim":     func(c *claim) { *c = released(*c); c.NodeUID = "u" },
			"a node name": func(c *claim) { c.Node = "a,b" },
		},
		fixed: map[string]func(*claim){
			"Node":    func(c *claim) { c.Node = "another" },
			"Created": func(c *claim) { c.Created = c.Created.Add(time.Second) },
			"UID":     func(c *claim) { c.UID = "another" },
		},
		shows: func(t *testing.T, want ...claim) { t.Helper(); wantClaims(t, s, want...) },
		reads: map[string]func(context.Context) error{
			"cached Get":    func(ctx context.Context) error { _, err := s.Get(ctx, "worker-1", tokens.Cached); return err },
			"cached HeldBy": func(ctx context.Context) error { _, err := s.HeldBy(ctx, "abcdef", tokens.Cached); return err },
			"HeldBy":        func(ctx context.Context) error { _, err := s.HeldBy(ctx, "abcdef", tokens.Live); return err },
		},
		exists: tokens.ErrConflict, gone: tokens.ErrConflict,
		read: s.Get, list: s.List, watch: s.Watch,
		create: func(ctx context.Context, c claim) (claim, error) { return CreateClaim(ctx, s, c) },
		update: func(ctx context.Context, node string, change func(*claim) error) (claim, error) {
			return UpdateClaim(ctx, s, node, change)
		},
		delete: func(ctx context.Context, c claim) error { return DeleteClaim(ctx, s, c) },
	}
}

// CreateClaim commits a new claim.
func CreateClaim(ctx context.Context, s tokens.Claims, c tokens.Claim) (tokens.Claim, error) {
	return tokens.CommitClaim(ctx, s, tokens.Claim{}, c)
}

// UpdateClaim reads a claim, calls change on it and commits the change. If the claim has changed meanwhile, UpdateClaim
// starts over.
func UpdateClaim(ctx context.Context, s tokens.Claims, node string, change func(*tokens.Claim) error) (tokens.Claim, error) {
	for {
		before, err := s.Get(ctx, node, tokens.Live)
		if err != nil {
			return tokens.Claim{}, err
		}
		after := before.Clone()
		if err := change(&after); err != nil {
			return tokens.Claim{}, err
		}
		if c, err := tokens.CommitClaim(ctx, s, before, after); !errors.Is(err, tokens.ErrConflict) {
			return c, err
		}
	}
}

// DeleteClaim commits the deletion of a claim.
func DeleteClaim(ctx context.Context, s tokens.Claims, c tokens.Claim) error {
	_, err := tokens.CommitClaim(ctx, s, c, tokens.Claim{Node: c.Node, Created: c.Created, UID: c.UID, Version: c.Version})
	return err
}

func createClaim(t *testing.T, s tokens.Claims, c tokens.Claim) tokens.Claim {
	t.Helper()
	return claimsOf(s).mustCreate(t, c)
}

// released returns what remains of c after a release.
func released(c tokens.Claim) tokens.Claim {
	return tokens.Claim{Node: c.Node, Past: c.Past, Identity: c.Identity, Machine: c.Machine, Created: c.Created, UID: c.UID, Version: c.Version}
}

func testUpdateClaimNothing(t *testing.T, s tokens.Claims) {
	c := createClaim(t, s, sampleClaim())
	for what, change := range map[string]func(*tokens.Claim){
		"nothing":      func(*tokens.Claim) {},
		"Version":      func(c *tokens.Claim) { c.Version = "the store's affair" },
		"what it was":  func(mine *tokens.Claim) { *mine = c.Clone() },
		"another zone": func(c *tokens.Claim) { c.Created = c.Created.In(time.FixedZone("", 3600)) },
	} {
		got, err := UpdateClaim(t.Context(), s, c.Node, func(c *tokens.Claim) error { change(c); return nil })
		if err != nil {
			t.Errorf("Update of %s: %v", what, err)
		}
		wantSameClaim(t, "Update of "+what, got, c)
		wantSameClaim(t, "Get after Update of "+what, getClaim(t, s, c.Node), c)
	}
}

// testReleaseClaim releases a claim, then takes its name with another token.
func testReleaseClaim(t *testing.T, s tokens.Claims) {
	c := createClaim(t, s, sampleClaim())
	changed, err := UpdateClaim(t.Context(), s, c.Node, func(c *tokens.Claim) error { c.NodeUID = "changed"; return nil })
	if err != nil {
		t.Fatalf("Update: %v", err)
	}
	wantError(t, "Release of the version before", tokens.Release(t.Context(), s, c, c.Past), tokens.ErrConflict)
	wantClaims(t, s, changed)
	if err := tokens.Release(t.Context(), s, changed, c.Past); err != nil {
		t.Fatalf("Release: %v", err)
	}
	left := getClaim(t, s, c.Node)
	want := released(c)
	want.Identity = tokens.Identity{} // a release ends the Identity
	want.Version = left.Version
	wantSameClaim(t, "Get of a claim that was released", left, want)
	wantClaims(t, s, left)
	wantNotOfToken(t, s, c)
	wantError(t, "Release again", tokens.Release(t.Context(), s, changed, c.Past), tokens.ErrConflict)

	// Another token takes the name, then releases it without a Past.
	again := c.Clone()
	again.TokenID, again.Machine = tokens.Generate().ID(), tokens.Machine{}
	_, err = CreateClaim(t.Context(), s, again)
	wantError(t, "Create where a claim was released", err, tokens.ErrConflict)
	again, err = UpdateClaim(t.Context(), s, c.Node, func(now *tokens.Claim) error {
		uid, version, created := now.UID, now.Version, now.Created
		*now = again.Clone()
		now.UID, now.Version, now.Created = uid, version, created
		return nil
	})
	if err != nil {
		t.Fatalf("Update: %v", err)
	}
	if again.Created.Before(c.Created) || again.UID != c.UID {
		t.Errorf("claim after one of token %s was released: got token %s and UID %s", c.Created, again.Created, again.UID)
	}
	wantClaims(t, s, again)
	wantNotOfToken(t, s, c)
	if err := tokens.Release(t.Context(), s, again, tokens.ReleasedClaim{}); err != nil {
		t.Fatalf("Release: %v", err)
	}
	wantNoClaim(t, s, again)
	wantClaims(t, s)
}

// ownWrites is how many writes the tests of Recent make: enough for a store to read from a proven cache between them.
const ownWrites = 100

// testRecent checks that Recent shows each write of the store at once.
func testRecent(t *testing.T, s tokens.Store) {
	_, err := s.Get(t.Context(), "abcdef", tokens.Recent)
	wantError(t, "Recent", err, tokens.ErrNotFound)
	r := create(t, s, sample())
	id := r.Token.ID()
	for i := range ownWrites {
		if r, err = s.Update(t.Context(), id, func(r *tokens.Record) error { r.Signing = !r.Signing; return nil }); err != nil {
			t.Fatalf("Update: %v", err)
		}
		for range 3 {
			got, err := s.Get(t.Context(), id, tokens.Recent)
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
	_, err = s.Get(t.Context(), id, tokens.Recent)
	wantError(t, "Recent", err, tokens.ErrNotFound)
}

// testRecentClaims checks that Recent, and HeldBy with [tokens.Recent], show each write of a claim at once.
func testRecentClaims(t *testing.T, s tokens.Claims) {
	c := sampleClaim()
	for i := range ownWrites {
		_, err := s.Get(t.Context(), c.Node, tokens.Recent)
		wantError(t, "Recent", err, tokens.ErrNotFound)
		made := createClaim(t, s, c)
		for range 3 {
			got, err := s.Get(t.Context(), c.Node, tokens.Recent)
			if err != nil {
				t.Fatalf("Recent: %v", err)
			}
			wantSameClaim(t, "Recent", got, made)
			wantHeld(t, s, c.TokenID, made)
		}
		other := made
		other.TokenID, other.TokenUID = "abcdef", "another"
		if other, err = UpdateClaim(t.Context(), s, c.Node, func(c *tokens.Claim) error { *c = other; return nil }); err != nil {
			t.Fatalf("Update: %v", err)
		}
		wantHeld(t, s, c.TokenID)
		wantHeld(t, s, other.TokenID, other)
		if err := DeleteClaim(t.Context(), s, other); err != nil {
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
		t.Fatalf("HeldBy with Recent returns\n%+v, %v\nwant\n%+v", held, err, want)
	}
}
