package tokens_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
)

func TestDifferentClaimsAreNotEqual(t *testing.T) {
	zero := tokens.Claim{}
	for name, other := range map[string]tokens.Claim{
		"Node":                     {Node: "worker-1"},
		"TokenID":                  {TokenID: id},
		"TokenUID":                 {TokenUID: "u"},
		"Limits":                   {Limits: tokens.Limits{MaxNodes: 1}},
		"Keys":                     {Keys: []string{"sha256:00"}},
		"Requests":                 {Requests: []string{"u"}},
		"NodeUID":                  {NodeUID: "u"},
		"ReadyBefore":              {ReadyBefore: "r"},
		"ReadyAgain":               {ReadyAgain: true},
		"Past.Until":               {Past: tokens.ReleasedClaim{Until: noon}},
		"Past.CertificateDuration": {Past: tokens.ReleasedClaim{CertificateDuration: time.Hour}},
		"Identity":                 {Identity: tokens.Identity{NodeUID: "u"}},
		"Created":                  {Created: noon},
		"UID":                      {UID: "u"},
		"Version":                  {Version: "1"},
	} {
		if zero.Equal(other) || other.Equal(zero) || !other.Equal(other) {
			t.Errorf("%s: got equal, want different", name)
		}
	}
}

// Same must return false for a new claim of the same node name, and for a claim of another token.
func TestSameClaim(t *testing.T) {
	claim := tokens.Claim{UID: "u", TokenID: id, TokenUID: "t", Version: "1"}
	for name, test := range map[string]struct {
		change func(*tokens.Claim)
		same   bool
	}{
		"version":   {func(c *tokens.Claim) { c.Version = "2" }, true},
		"keys":      {func(c *tokens.Claim) { c.Keys = []string{"sha256:00"} }, true},
		"UID":       {func(c *tokens.Claim) { c.UID = "v" }, false},
		"token ID":  {func(c *tokens.Claim) { c.TokenID = "abc124" }, false},
		"token UID": {func(c *tokens.Claim) { c.TokenUID = "v" }, false},
	} {
		other := claim
		test.change(&other)
		if claim.Same(other) != test.same {
			t.Errorf("another %s: Same = %t, want %t", name, claim.Same(other), test.same)
		}
	}
}

func TestClaimCheck(t *testing.T) {
	full := tokens.Claim{Node: "worker-1", TokenID: id, TokenUID: "t", Keys: []string{"sha256:00"}, Requests: []string{"u"}, NodeUID: "u",
		Past:     tokens.ReleasedClaim{Until: noon, CertificateDuration: time.Hour},
		Identity: tokens.Identity{NodeUID: "u", Keys: []string{"a", "b"}, NotAfter: noon, Fingerprint: "f", Rejoins: []time.Time{noon}, TokenID: id}}
	must.OK(t, full.Check())
	for name, change := range map[string]func(*tokens.Claim){
		"no node name":             func(c *tokens.Claim) { c.Node = "" },
		"name of an own object":    func(c *tokens.Claim) { c.Node = "kubejoin-control-plane-turn" },
		"malformed token ID":       func(c *tokens.Claim) { c.TokenID = "ABC123" },
		"limits":                   func(c *tokens.Claim) { c.Limits.MaxNodes = -1 },
		"too many keys":            func(c *tokens.Claim) { c.Keys = []string{"a", "b", "c", "d"} },
		"empty key":                func(c *tokens.Claim) { c.Keys = []string{""} },
		"key with comma":           func(c *tokens.Claim) { c.Keys = []string{"a,b"} },
		"empty request":            func(c *tokens.Claim) { c.Requests = []string{""} },
		"request with space":       func(c *tokens.Claim) { c.Requests = []string{"a b"} },
		"identity, long word":      func(c *tokens.Claim) { c.Identity.NodeUID = strings.Repeat("u", 129) },
		"identity, three keys":     func(c *tokens.Claim) { c.Identity.Keys = []string{"a", "b", "c"} },
		"identity, empty key":      func(c *tokens.Claim) { c.Identity.Keys = []string{""} },
		"identity, slash":          func(c *tokens.Claim) { c.Identity.BoundKey = "a/b" },
		"identity, token":          func(c *tokens.Claim) { c.Identity.TokenID = "ABC123" },
		"identity, fraction":       func(c *tokens.Claim) { c.Identity.NotAfter = noon.Add(time.Millisecond) },
		"identity, year":           func(c *tokens.Claim) { c.Identity.NotAfter = noon.AddDate(9000, 0, 0) },
		"identity, early":          func(c *tokens.Claim) { c.Identity.Rejoins = []time.Time{noon.AddDate(-1000, 0, 0)} },
		"identity, many rejoins":   func(c *tokens.Claim) { c.Identity.Rejoins = make([]time.Time, tokens.MaxRejoins+1) },
		"past without end":         func(c *tokens.Claim) { c.Past.Until = time.Time{} },
		"past with fraction":       func(c *tokens.Claim) { c.Past.Until = noon.Add(time.Millisecond) },
		"past with short lifetime": func(c *tokens.Claim) { c.Past.CertificateDuration = time.Minute },
	} {
		claim := full.Clone()
		change(&claim)
		if claim.Check() == nil {
			t.Errorf("%s: got Check = nil, want an error", name)
		}
	}
}

func TestDifferentIdentitiesAreNotEqual(t *testing.T) {
	zero := tokens.Identity{}
	for name, other := range map[string]tokens.Identity{
		"NodeUID":     {NodeUID: "u"},
		"Keys":        {Keys: []string{"a"}},
		"NotAfter":    {NotAfter: noon},
		"BoundKey":    {BoundKey: "a"},
		"Fingerprint": {Fingerprint: "f"},
		"Rejoins":     {Rejoins: []time.Time{noon}},
		"TokenID":     {TokenID: id},
	} {
		if zero.Equal(other) || other.Equal(zero) || !other.Equal(other) || other.IsZero() {
			t.Errorf("%s: got equal, want different", name)
		}
	}
}

// An old copy of a disk must not pass for the node: only the last two keys count.
func TestIdentityKeepsTwoKeys(t *testing.T) {
	var i tokens.Identity
	for _, key := range []string{"a", "b", "b", "c"} {
		i = i.WithKey(key)
	}
	if !slices.Equal(i.Keys, []string{"b", "c"}) {
		t.Errorf("got keys %q, want b and c", i.Keys)
	}
	if i = i.WithKey("b"); i.Keys[1] != "b" {
		t.Errorf("got keys %q, want b as the newest", i.Keys)
	}
}

func TestReleasedClaimHasOnlyPast(t *testing.T) {
	for name, claim := range map[string]tokens.Claim{
		"token UID": {TokenUID: "u"},
		"limits":    {Limits: tokens.Limits{MaxNodes: 1}},
		"keys":      {Keys: []string{"sha256:00"}},
		"requests":  {Requests: []string{"u"}},
		"node UID":  {NodeUID: "u"},
	} {
		claim.Node, claim.Past.Until = "worker-1", noon
		if claim.Check() == nil {
			t.Errorf("released claim with %s: got Check = nil, want an error", name)
		}
	}
	if err := (tokens.Claim{Node: "worker-1", Past: tokens.ReleasedClaim{Until: noon}}).Check(); err != nil {
		t.Error(err)
	}
}

func TestReleaseDeletesClaimWithoutPast(t *testing.T) {
	claims := memdb.Open().Claims()
	c, err := claims.Create(t.Context(), tokens.Claim{Node: "worker-1", TokenID: id})
	if err != nil {
		t.Fatal(err)
	}
	err = tokens.Release(t.Context(), claims, c, tokens.ReleasedClaim{})
	if _, getErr := claims.Get(t.Context(), "worker-1"); err != nil || !errors.Is(getErr, tokens.ErrNotFound) {
		t.Errorf("Release = %v, then Get = %v, want ErrNotFound", err, getErr)
	}
}

// Release must compare the UID and the version: an API server restored from a backup may assign a version twice.
func TestReleaseLeavesOtherClaimAlone(t *testing.T) {
	db := memdb.Open()
	claims := secretstore.Steps{Claims: db.Claims(), Tokens: db}
	stored := must.Value(claims.Create(t.Context(), tokens.Claim{Node: "worker-1", TokenID: id}))(t)
	uid, version := stored, stored
	uid.UID, version.Version = "another", "another"
	for name, other := range map[string]tokens.Claim{"UID": uid, "version": version} {
		err := tokens.Release(t.Context(), claims, other, tokens.ReleasedClaim{Until: noon})
		if now, getErr := claims.Get(t.Context(), "worker-1"); !errors.Is(err, tokens.ErrConflict) || getErr != nil || !now.Equal(stored) {
			t.Errorf("another %s: got Release = %v and claim %+v, %v, want ErrConflict and an unchanged claim", name, err, now, getErr)
		}
	}
}

// Renewals extend what remains of a released claim, and few of them cost a write. It lasts a day longer than the last
// certificate, because clocks may differ.
func TestRenewedPastOutlivesCertificates(t *testing.T) {
	const duration = 2 * time.Hour
	now, writes := time.Now(), 0
	p := tokens.Claim{Limits: tokens.Limits{CertificateDuration: duration}}.PastAfterRelease(now, 0)
	for i := range 100 { // as a kubelet renews for a week
		before := p
		if p = p.Renewed(now); p != before {
			writes++
		}
		if end := now.Add(duration); p.CertificateDuration != duration || !p.Active(end.Add(24*time.Hour)) || p.Active(end.Add(72*time.Hour)) {
			t.Fatalf("renewal %d: got %+v, want it to last one to three days longer than the certificate, until %s", i, p, end)
		}
		now = now.Add(duration * 8 / 10)
	}
	if writes == 0 || writes > 10 {
		t.Errorf("got %d writes for 100 renewals, want 1 to 10", writes)
	}
}
