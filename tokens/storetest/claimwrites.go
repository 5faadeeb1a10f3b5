package storetest

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

func testCreateClaim(t *testing.T, s tokens.Claims) {
	c := sampleClaim()
	c.Created, c.UID, c.Version = time.Unix(1, 0), "chosen", "17"
	before := time.Now().Add(-time.Minute) // the clock of the API server may differ
	got := createClaim(t, s, c)
	if got.UID == "" || got.UID == c.UID || got.Version == "" || got.Version == c.Version {
		t.Errorf("got from Create: UID %q and Version %q, want the store's", got.UID, got.Version)
	}
	if got.Created.Before(before) || got.Created.After(time.Now().Add(time.Minute)) {
		t.Errorf("got from Create: Created %v, want now", got.Created)
	}
	want := c
	want.Created, want.UID, want.Version = got.Created, got.UID, got.Version
	wantSameClaim(t, "Create", got, want)
	wantSameClaim(t, "Get", getClaim(t, s, c.Node), want)
	wantClaims(t, s, want)
}

func testCreateClaimExists(t *testing.T, s tokens.Claims) {
	first := createClaim(t, s, sampleClaim())
	other := sampleClaim()
	other.Node = first.Node
	for what, c := range map[string]tokens.Claim{"the same claim": first, "another token's": other} {
		_, err := s.Create(t.Context(), c)
		wantError(t, "Create of "+what, err, tokens.ErrExists)
	}
	wantSameClaim(t, "Get", getClaim(t, s, first.Node), first)
	wantClaims(t, s, first)
	wantNotOfToken(t, s, other)
}

// malformed are changes that make a claim invalid.
var malformed = map[string]func(*tokens.Claim){
	"no token":                 func(c *tokens.Claim) { c.TokenID = "" },
	"token":                    func(c *tokens.Claim) { c.TokenID = "a/b" },
	"limits":                   func(c *tokens.Claim) { c.Limits.MaxNodes = -1 },
	"limits' problem":          func(c *tokens.Claim) { c.Limits.Problem = errors.New("known before") },
	"too many keys":            func(c *tokens.Claim) { c.Keys = []string{key("1"), key("2"), key("3"), key("4")} },
	"too many requests":        func(c *tokens.Claim) { c.Requests = []string{"1", "2", "3", "4"} },
	"long key":                 func(c *tokens.Claim) { c.Keys = []string{strings.Repeat("k", 129)} },
	"long request":             func(c *tokens.Claim) { c.Requests = []string{strings.Repeat("r", 129)} },
	"long spell":               func(c *tokens.Claim) { c.ReadyBefore = strings.Repeat("s", 129) },
	"spell with a space":       func(c *tokens.Claim) { c.ReadyBefore = "a b" },
	"key with a comma":         func(c *tokens.Claim) { c.Keys = []string{key("1") + "," + key("2")} },
	"empty key":                func(c *tokens.Claim) { c.Keys = []string{""} },
	"empty request":            func(c *tokens.Claim) { c.Requests = []string{"", ""} },
	"request":                  func(c *tokens.Claim) { c.Requests = []string{"a,b"} },
	"a past in between":        func(c *tokens.Claim) { c.Past.Until = c.Past.Until.Add(time.Millisecond) },
	"a past without end":       func(c *tokens.Claim) { c.Past.Until = time.Time{} },
	"a past's duration":        func(c *tokens.Claim) { c.Past.CertificateDuration = time.Second },
	"an identity in between":   func(c *tokens.Claim) { c.Identity.NotAfter = c.Identity.NotAfter.Add(time.Millisecond) },
	"three keys of a node":     func(c *tokens.Claim) { c.Identity.Keys = []string{key("1"), key("2"), key("3")} },
	"an empty key of a node":   func(c *tokens.Claim) { c.Identity.Keys = []string{""} },
	"a quoted key of a node":   func(c *tokens.Claim) { c.Identity.BoundKey = `"` },
	"many rejoins":             func(c *tokens.Claim) { c.Identity.Rejoins = make([]time.Time, tokens.MaxRejoins+1) },
	"a malformed token ID":     func(c *tokens.Claim) { c.Identity.TokenID = "token" },
	"released, with a past":    func(c *tokens.Claim) { *c = released(*c); c.Keys = []string{key("1")} },
	"released, with a token":   func(c *tokens.Claim) { *c = released(*c); c.TokenUID = "u" },
	"released, with limits":    func(c *tokens.Claim) { *c = released(*c); c.Limits.MaxNodes = 1 },
	"released, with a Node":    func(c *tokens.Claim) { *c = released(*c); c.NodeUID = "u" },
	"released, with a spell":   func(c *tokens.Claim) { *c = released(*c); c.ReadyBefore = "s" },
	"released, ready again":    func(c *tokens.Claim) { *c = released(*c); c.ReadyAgain = true },
	"released, with a request": func(c *tokens.Claim) { *c = released(*c); c.Requests = []string{"u"} },
}

func testCreateClaimRefuses(t *testing.T, s tokens.Claims) {
	for name, spoil := range malformed {
		c := sampleClaim()
		spoil(&c)
		if got, err := s.Create(t.Context(), c); err == nil {
			t.Errorf("%s: Create gives %+v, want an error", name, got)
		}
	}
	for _, node := range []string{"", "Worker", "a/b", "a,b", longName(0) + "a"} {
		c := sampleClaim()
		c.Node = node
		if got, err := s.Create(t.Context(), c); err == nil {
			t.Errorf("node %q: Create gives %+v, want an error", node, got)
		}
	}
	wantClaims(t, s)
}

func testCreateClaimAtOnce(t *testing.T, s tokens.Claims) {
	const n = 16
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		made []tokens.Claim
	)
	for range n {
		wg.Go(func() {
			c := sampleClaim()
			c.Node = "worker-1"
			switch c, err := s.Create(t.Context(), c); {
			case err == nil:
				mu.Lock()
				defer mu.Unlock()
				made = append(made, c)
			default:
				wantError(t, "Create", err, tokens.ErrExists)
			}
		})
	}
	wg.Wait()
	if len(made) != 1 {
		t.Fatalf("%d of %d concurrent creations of one name succeeded, want 1", len(made), n)
	}
	wantSameClaim(t, "Get", getClaim(t, s, "worker-1"), made[0])
	wantClaims(t, s, made[0])
}

// testKeepsClaimFields stores claims with a field at the limit of its valid values.
func testKeepsClaimFields(t *testing.T, s tokens.Claims) {
	var all []tokens.Claim
	for name, set := range map[string]func(*tokens.Claim){
		"everything":     func(*tokens.Claim) {},
		"the least":      func(c *tokens.Claim) { *c = tokens.Claim{Node: c.Node, TokenID: c.TokenID} },
		"empty lists":    func(c *tokens.Claim) { c.Keys, c.Requests, c.Limits.NodeNames = []string{}, []string{}, []string{} },
		"253 characters": func(c *tokens.Claim) { c.Node = longName(0) },
		"one character":  func(c *tokens.Claim) { c.Node = "0" },
		"most keys":      func(c *tokens.Claim) { c.Keys = []string{key("3"), key("1"), key("2")} },
		"most requests":  func(c *tokens.Claim) { c.Requests = []string{strings.Repeat("r", 128), "1", "2"} },
		"never Ready":    func(c *tokens.Claim) { c.ReadyBefore = "" },
		"not Ready yet":  func(c *tokens.Claim) { c.ReadyAgain = false },
		"no limits":      func(c *tokens.Claim) { c.Limits = tokens.Limits{} },
		"a Node to replace": func(c *tokens.Claim) {
			c.Limits = tokens.Limits{MaxNodes: 1, NodeNames: []string{"*"}, Replaces: tokens.NodeRef{Name: longName(1), UID: c.NodeUID}}
		},
		"released":              func(c *tokens.Claim) { *c = released(*c) },
		"released, as signed":   func(c *tokens.Claim) { *c = released(*c); c.Past.CertificateDuration = 0 },
		"a past with no length": func(c *tokens.Claim) { c.Past.CertificateDuration = 0 },
		"no identity":           func(c *tokens.Claim) { c.Identity = tokens.Identity{} },
		"an identity alone":     func(c *tokens.Claim) { *c = released(*c); c.Past = tokens.ReleasedClaim{} },
		"most rejoins": func(c *tokens.Claim) {
			c.Identity.Rejoins = slices.Repeat([]time.Time{c.Identity.NotAfter}, tokens.MaxRejoins)
		},
		"an identity elsewhere": func(c *tokens.Claim) {
			zone := time.FixedZone("", 3600)
			c.Identity.NotAfter = c.Identity.NotAfter.In(zone)
		},
		"a past elsewhere": func(c *tokens.Claim) { c.Past.Until = c.Past.Until.In(time.FixedZone("", 3600)) },
		"an odd duration":  func(c *tokens.Claim) { c.Limits.CertificateDuration = 25*time.Hour + 61*time.Second },
	} {
		c := sampleClaim()
		set(&c)
		got := createClaim(t, s, c)
		want := c
		want.Created, want.UID, want.Version = got.Created, got.UID, got.Version
		wantSameClaim(t, name+": Create", got, want)
		wantSameClaim(t, name+": Get", getClaim(t, s, c.Node), want)

		// Update must store the same fields.
		other := sampleClaim()
		blank := createClaim(t, s, tokens.Claim{Node: other.Node, TokenID: other.TokenID})
		got, err := s.Update(t.Context(), blank.Node, func(b *tokens.Claim) error {
			b.TokenID, b.TokenUID, b.Limits, b.NodeUID = c.TokenID, c.TokenUID, c.Limits, c.NodeUID
			b.Keys, b.Requests, b.Past, b.Identity = c.Keys, c.Requests, c.Past, c.Identity
			b.ReadyBefore, b.ReadyAgain = c.ReadyBefore, c.ReadyAgain
			return nil
		})
		if err != nil {
			t.Fatalf("%s: Update: %v", name, err)
		}
		updated := want
		updated.Node, updated.Created, updated.UID, updated.Version = blank.Node, got.Created, blank.UID, got.Version
		wantSameClaim(t, name+": Update", got, updated)
		wantSameClaim(t, name+": Get after Update", getClaim(t, s, blank.Node), updated)
		all = append(all, want, updated)
	}
	wantClaims(t, s, all...)
}

func testUpdateClaim(t *testing.T, s tokens.Claims) {
	other := createClaim(t, s, sampleClaim())
	c := createClaim(t, s, sampleClaim())
	want := c.Clone()
	want.TokenID, want.TokenUID = other.TokenID, "another"
	want.Keys = append(want.Keys, key("c"))
	want.Requests, want.NodeUID = nil, ""
	want.Limits = tokens.Limits{MaxNodes: 1}
	got, err := s.Update(t.Context(), c.Node, func(mine *tokens.Claim) error {
		wantSameClaim(t, "Update", *mine, c)
		changed := want.Clone()
		changed.Version = "the store's affair"
		*mine = changed
		return nil
	})
	if err != nil {
		t.Fatalf("Update: %v", err)
	}
	if got.Version == c.Version || got.Version == "the store's affair" {
		t.Errorf("Update gives Version %q after %q, want a new one of the store", got.Version, c.Version)
	}
	if got.Created.Before(c.Created) {
		t.Errorf("Update to another token gives Created %s after %s", got.Created, c.Created)
	}
	want.Version, want.Created = got.Version, got.Created
	wantSameClaim(t, "Update", got, want)
	wantSameClaim(t, "Get", getClaim(t, s, c.Node), want)
	wantClaims(t, s, want, other)
	wantNotOfToken(t, s, c)

	_, err = s.Update(t.Context(), "nobody", func(*tokens.Claim) error {
		t.Error("Update of a free name called change")
		return nil
	})
	wantError(t, "Update of a free name", err, tokens.ErrNotFound)
}

func testUpdateClaimNothing(t *testing.T, s tokens.Claims) {
	c := createClaim(t, s, sampleClaim())
	for what, change := range map[string]func(*tokens.Claim){
		"nothing":      func(*tokens.Claim) {},
		"Version":      func(c *tokens.Claim) { c.Version = "the store's affair" },
		"what it was":  func(mine *tokens.Claim) { *mine = c.Clone() },
		"another zone": func(c *tokens.Claim) { c.Created = c.Created.In(time.FixedZone("", 3600)) },
	} {
		got, err := s.Update(t.Context(), c.Node, func(c *tokens.Claim) error { change(c); return nil })
		if err != nil {
			t.Errorf("Update of %s: %v", what, err)
		}
		wantSameClaim(t, "Update of "+what, got, c)
		wantSameClaim(t, "Get after Update of "+what, getClaim(t, s, c.Node), c)
	}
}

func testUpdateClaimFails(t *testing.T, s tokens.Claims) {
	c := createClaim(t, s, sampleClaim())
	enough := errors.New("enough")
	_, err := s.Update(t.Context(), c.Node, func(c *tokens.Claim) error {
		c.NodeUID = "changed"
		c.Keys[0], c.Requests[0], c.Limits.NodeNames[0] = "changed", "changed", "changed"
		return enough
	})
	if err != enough { //nolint:errorlint // as it is
		t.Errorf("Update = %v, want the error of change as it is", err)
	}
	wantSameClaim(t, "Get", getClaim(t, s, c.Node), c)
}

func testUpdateClaimRefuses(t *testing.T, s tokens.Claims) {
	c := createClaim(t, s, sampleClaim())
	refuse := func(name string, change func(*tokens.Claim)) {
		if got, err := s.Update(t.Context(), c.Node, func(c *tokens.Claim) error { change(c); return nil }); err == nil {
			t.Errorf("Update of %s gives %+v, want an error", name, got)
		}
	}
	for name, change := range malformed {
		refuse(name, change)
	}
	refuse("Node", func(c *tokens.Claim) { c.Node = "another" })
	refuse("Created", func(c *tokens.Claim) { c.Created = c.Created.Add(time.Second) })
	refuse("UID", func(c *tokens.Claim) { c.UID = "another" })
	wantSameClaim(t, "Get", getClaim(t, s, c.Node), c)
}

// testUpdateClaimStartsOver updates and replaces the claim while change runs.
func testUpdateClaimStartsOver(t *testing.T, s tokens.Claims) {
	c := createClaim(t, s, sampleClaim())
	calls := 0
	got, err := s.Update(t.Context(), c.Node, func(mine *tokens.Claim) error {
		calls++
		switch calls {
		case 1:
			if _, err := s.Update(t.Context(), c.Node, func(c *tokens.Claim) error { c.Keys = nil; return nil }); err != nil {
				t.Errorf("Update within Update: %v", err)
			}
		case 2:
			if len(mine.Keys) > 0 {
				t.Error("the second try got the old claim, want the concurrent change")
			}
			if err := s.Delete(t.Context(), *mine); err != nil {
				t.Errorf("Delete within Update: %v", err)
			}
			createClaim(t, s, c)
		}
		mine.NodeUID = "try-" + strconv.Itoa(calls)
		return nil
	})
	if err != nil {
		t.Fatalf("Update: %v", err)
	}
	if calls != 3 || got.UID == c.UID || got.NodeUID != "try-3" || !slices.Equal(got.Keys, c.Keys) {
		t.Errorf("got %+[2]v after %[1]d tries of Update, want the new claim with the change of the third try", calls, got)
	}
	_, err = s.Update(t.Context(), c.Node, func(mine *tokens.Claim) error {
		if err := s.Delete(t.Context(), *mine); err != nil {
			t.Errorf("Delete within Update: %v", err)
		}
		mine.NodeUID = "too-late"
		return nil
	})
	wantError(t, "Update of a claim that is deleted meanwhile", err, tokens.ErrNotFound)
}

func testUpdateClaimAtOnce(t *testing.T, s tokens.Claims) {
	const workers, each = 8, 5
	c := sampleClaim()
	c.NodeUID = "0"
	c = createClaim(t, s, c)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range each {
				_, err := s.Update(t.Context(), c.Node, func(c *tokens.Claim) error {
					n, err := strconv.Atoi(c.NodeUID)
					c.NodeUID = strconv.Itoa(n + 1)
					return err
				})
				if err != nil {
					t.Errorf("Update: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if got, want := getClaim(t, s, c.Node).NodeUID, strconv.Itoa(workers*each); got != want {
		t.Errorf("after %s concurrent increments: got count %s", want, got)
	}
}

// released returns what remains of c after a release.
func released(c tokens.Claim) tokens.Claim {
	return tokens.Claim{Node: c.Node, Past: c.Past, Identity: c.Identity, Created: c.Created, UID: c.UID, Version: c.Version}
}

// testReleaseClaim releases a claim, then takes its name with another token.
func testReleaseClaim(t *testing.T, s tokens.Claims) {
	c := createClaim(t, s, sampleClaim())
	changed, err := s.Update(t.Context(), c.Node, func(c *tokens.Claim) error { c.NodeUID = "changed"; return nil })
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
	want.Identity = tokens.Identity{} // a person, or the end of the Node, has ended it
	want.Version = left.Version
	wantSameClaim(t, "Get of a claim that was released", left, want)
	wantClaims(t, s, left)
	wantNotOfToken(t, s, c)
	wantError(t, "Release again", tokens.Release(t.Context(), s, changed, c.Past), tokens.ErrConflict)

	// Another token takes the name, then releases it without a Past.
	again := c.Clone()
	again.TokenID = tokens.Generate().ID()
	_, err = s.Create(t.Context(), again)
	wantError(t, "Create where a claim was released", err, tokens.ErrExists)
	again, err = s.Update(t.Context(), c.Node, func(now *tokens.Claim) error {
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

func testDeleteClaim(t *testing.T, s tokens.Claims) {
	other := createClaim(t, s, sampleClaim())
	c := createClaim(t, s, sampleClaim())
	if err := s.Delete(t.Context(), c); err != nil {
		t.Fatalf("Delete: %v", err)
	}
	wantNoClaim(t, s, c)
	wantError(t, "Delete again", s.Delete(t.Context(), c), tokens.ErrNotFound)
	wantClaims(t, s, other)

	again := createClaim(t, s, c)
	if again.UID == c.UID {
		t.Error("got the old UID for a claim that was created again, want a new one")
	}
	wantClaims(t, s, again, other)
}

func testDeleteOtherClaim(t *testing.T, s tokens.Claims) {
	first := createClaim(t, s, sampleClaim())
	changed, err := s.Update(t.Context(), first.Node, func(c *tokens.Claim) error { c.NodeUID = "changed"; return nil })
	if err != nil {
		t.Fatalf("Update: %v", err)
	}
	wantError(t, "Delete of the version before", s.Delete(t.Context(), first), tokens.ErrConflict)
	blank := changed
	blank.UID, blank.Version = "", ""
	wantError(t, "Delete without UID and Version", s.Delete(t.Context(), blank), tokens.ErrConflict)
	wantSameClaim(t, "Get", getClaim(t, s, first.Node), changed)

	if err := s.Delete(t.Context(), changed); err != nil {
		t.Fatalf("Delete: %v", err)
	}
	again := createClaim(t, s, first)
	wantError(t, "Delete of the claim before", s.Delete(t.Context(), first), tokens.ErrConflict)
	wantError(t, "Delete of the claim before", s.Delete(t.Context(), changed), tokens.ErrConflict)
	disguised := changed
	disguised.Version = again.Version
	wantError(t, "Delete by another UID", s.Delete(t.Context(), disguised), tokens.ErrConflict)
	wantSameClaim(t, "Get", getClaim(t, s, first.Node), again)
}

// testDeleteClaimAtOnce runs a delete and an update concurrently. One must succeed, and the other must fail.
func testDeleteClaimAtOnce(t *testing.T, s tokens.Claims) {
	for range 10 {
		c := createClaim(t, s, sampleClaim())
		var wg sync.WaitGroup
		var deleted, updated error
		wg.Go(func() { deleted = s.Delete(t.Context(), c) })
		wg.Go(func() {
			_, updated = s.Update(t.Context(), c.Node, func(c *tokens.Claim) error { c.NodeUID = "changed"; return nil })
		})
		wg.Wait()
		_, found := s.Get(t.Context(), c.Node)
		switch {
		case deleted == nil:
			wantError(t, "Update", updated, tokens.ErrNotFound)
			wantError(t, "Get", found, tokens.ErrNotFound)
		case updated == nil:
			wantError(t, "Delete", deleted, tokens.ErrConflict)
			if found != nil {
				t.Errorf("Get of the updated claim: %v", found)
			}
		default:
			t.Errorf("Delete = %v and Update = %v, want one of them to succeed", deleted, updated)
		}
	}
}
