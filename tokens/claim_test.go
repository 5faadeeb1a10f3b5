package tokens_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
	"github.com/kubejoin/kubejoin/tokens/storetest"
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
		"Past.Rejoin":              {Past: tokens.ReleasedClaim{Rejoin: tokens.RejoinDeny}},
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
		Past:     tokens.ReleasedClaim{Until: noon, CertificateDuration: time.Hour, Rejoin: tokens.RejoinDeny},
		Identity: tokens.Identity{NodeUID: "u", Credentials: []tokens.Credential{{Key: "a"}, {Key: "b", Fingerprint: "f"}}, NotAfter: noon, Rejoins: []time.Time{noon}, TokenID: id}}
	must.OK(t, full.Check())
	for name, change := range map[string]func(*tokens.Claim){
		"no node name":          func(c *tokens.Claim) { c.Node = "" },
		"name of an own object": func(c *tokens.Claim) { c.Node = "kubejoin-control-plane-turn" },
		"malformed token ID":    func(c *tokens.Claim) { c.TokenID = "ABC123" },
		"limits":                func(c *tokens.Claim) { c.Limits.MaxNodes = -1 },
		"too many keys":         func(c *tokens.Claim) { c.Keys = []string{"a", "b", "c", "d"} },
		"empty key":             func(c *tokens.Claim) { c.Keys = []string{""} },
		"key with comma":        func(c *tokens.Claim) { c.Keys = []string{"a,b"} },
		"empty request":         func(c *tokens.Claim) { c.Requests = []string{""} },
		"request with space":    func(c *tokens.Claim) { c.Requests = []string{"a b"} },
		"ready before, comma":   func(c *tokens.Claim) { c.ReadyBefore = "a,b" },
		"identity, long word":   func(c *tokens.Claim) { c.Identity.NodeUID = strings.Repeat("u", 129) },
		"identity, five keys": func(c *tokens.Claim) {
			c.Identity.Credentials = append(c.Identity.Credentials, tokens.Credential{Key: "c"}, tokens.Credential{Key: "d"}, tokens.Credential{Key: "e"})
		},
		"identity, nothing":        func(c *tokens.Claim) { c.Identity.Credentials[0] = tokens.Credential{} },
		"identity, slash":          func(c *tokens.Claim) { c.Identity.Bound.Key = "a/b" },
		"identity, fingerprint":    func(c *tokens.Claim) { c.Identity.Credentials[0].Fingerprint = "a/b" },
		"identity, bound by":       func(c *tokens.Claim) { c.Identity.Bound.Fingerprint = "a/b" },
		"identity, token":          func(c *tokens.Claim) { c.Identity.TokenID = "ABC123" },
		"identity, fraction":       func(c *tokens.Claim) { c.Identity.NotAfter = noon.Add(time.Millisecond) },
		"identity, year":           func(c *tokens.Claim) { c.Identity.NotAfter = noon.AddDate(9000, 0, 0) },
		"identity, early":          func(c *tokens.Claim) { c.Identity.Rejoins = []time.Time{noon.AddDate(-1000, 0, 0)} },
		"identity, many rejoins":   func(c *tokens.Claim) { c.Identity.Rejoins = make([]time.Time, tokens.MaxRejoins+1) },
		"past without end":         func(c *tokens.Claim) { c.Past.Until = time.Time{} },
		"past, rejoin":             func(c *tokens.Claim) { c.Past.Rejoin = "never" },
		"past, rejoin without end": func(c *tokens.Claim) { c.Past = tokens.ReleasedClaim{Rejoin: tokens.RejoinDeny} },
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

func TestClaimEditReturnsErrorOfChange(t *testing.T) {
	if _, err := (tokens.Claim{}).Edit(func(*tokens.Claim) error { return errReset }); !errors.Is(err, errReset) {
		t.Errorf("got %v, want %v", err, errReset)
	}
}

func TestDifferentIdentitiesAreNotEqual(t *testing.T) {
	zero := tokens.Identity{}
	for name, other := range map[string]tokens.Identity{
		"NodeUID":     {NodeUID: "u"},
		"Credentials": {Credentials: []tokens.Credential{{Key: "a"}}},
		"NotAfter":    {NotAfter: noon},
		"Bound":       {Bound: tokens.Credential{Key: "a"}},
		"Rejoins":     {Rejoins: []time.Time{noon}},
		"TokenID":     {TokenID: id},
	} {
		if zero.Equal(other) || other.Equal(zero) || !other.Equal(other) || other.IsZero() {
			t.Errorf("%s: got equal, want different", name)
		}
	}
}

// A limit that applies to a machine after it has joined must remain when its claim is released. Each new limit needs a line
// here.
func TestReleasedClaimKeepsWhatBindsMachine(t *testing.T) {
	binds := map[string]bool{
		"MaxNodes": false, "NodeNames": false, "Replaces": false, "Role": false, "Problem": false, // these limits only decide who may join
		"CertificateDuration": true, "Rejoin": true, "Rules": true, "Node": true,
	}
	all := tokens.Limits{
		MaxNodes: 1, NodeNames: []string{"worker-1"}, Replaces: tokens.NodeRef{Name: "worker-1", UID: "u"}, Role: tokens.RoleControlPlane,
		Problem: errors.New("p"), CertificateDuration: time.Hour, Rejoin: tokens.RejoinDeny,
		Rules: []tokens.Rule{{Name: "rule", Limits: tokens.Limits{CertificateDuration: time.Hour}}},
		Node:  tokens.NodeProperties{Labels: "a=b", Taints: "c:NoSchedule"},
	}
	full := reflect.ValueOf(all)
	for i := range full.NumField() {
		name := full.Type().Field(i).Name
		if _, known := binds[name]; !known || full.Field(i).IsZero() {
			t.Errorf("limit %s is not in this test", name)
			continue
		}
		var one tokens.Limits
		reflect.ValueOf(&one).Elem().Field(i).Set(full.Field(i))
		claim := tokens.Claim{Node: "worker-1", TokenID: id, Limits: one}
		past := claim.PastAfterRelease(noon, 0)
		if binds[name] != (past != tokens.ReleasedClaim{}) {
			t.Errorf("%s: the released claim has %+v", name, past)
		}
		if !binds[name] {
			continue
		}
		if name == "Rules" { // the released claim has their effect
			name = "CertificateDuration"
		}
		kept := reflect.ValueOf(past).FieldByName(name)
		if !kept.Equal(full.FieldByName(name)) || !past.Active(noon.Add(24*time.Hour)) {
			t.Errorf("%s: the released claim has %+v, want the same limit for more than a day", name, past)
		}
		again := tokens.Claim{Node: "worker-1", Past: past}.PastAfterRelease(noon.Add(time.Hour), 0)
		if !reflect.ValueOf(again).FieldByName(name).Equal(kept) {
			t.Errorf("%s: released again, the claim has %+v", name, again)
		}
	}
	for _, limits := range []tokens.Limits{{Rejoin: tokens.RejoinDeny}, {Node: tokens.NodeProperties{Labels: "a=b"}}} {
		claim := tokens.Claim{Node: "worker-1", TokenID: id, Limits: limits, Identity: tokens.Identity{NotAfter: noon.AddDate(1, 0, 0)}}
		released := tokens.Claim{Node: "worker-1", Past: claim.PastAfterRelease(noon, 0), Identity: tokens.Identity{NotAfter: noon.AddDate(2, 0, 0)}}
		if past := released.Past; !past.Active(noon.AddDate(1, 0, 0)) {
			t.Errorf("got %+v, want it to last as long as the certificate", past)
		}
		if past := released.PastAfterRelease(noon, 0); !past.Active(noon.AddDate(2, 0, 0)) {
			t.Errorf("after a renewal: got %+v, want it to last as long as the certificate", past)
		}
	}
}

// A request that has proven no key or fingerprint has an empty one, which must not match.
func TestFindMatchesNothingEmpty(t *testing.T) {
	i := tokens.Identity{Credentials: []tokens.Credential{{Fingerprint: "f"}, {Key: "k"}}}
	for _, test := range []struct {
		key, fingerprint string
		want             bool
	}{{"k", "", true}, {"", "f", true}, {"other", "f", true}, {"k", "other", true}, {"", "", false}, {"f", "k", false}} {
		if _, found := i.Find(test.key, test.fingerprint); found != test.want {
			t.Errorf("%+v: found %t", test, found)
		}
	}
}

func TestReleasedClaimHasOnlyPast(t *testing.T) {
	for name, claim := range map[string]tokens.Claim{
		"token UID":    {TokenUID: "u"},
		"limits":       {Limits: tokens.Limits{MaxNodes: 1}},
		"keys":         {Keys: []string{"sha256:00"}},
		"requests":     {Requests: []string{"u"}},
		"node UID":     {NodeUID: "u"},
		"ready before": {ReadyBefore: "r"},
		"ready again":  {ReadyAgain: true},
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
	c, err := storetest.CreateClaim(t.Context(), claims, tokens.Claim{Node: "worker-1", TokenID: id})
	if err != nil {
		t.Fatal(err)
	}
	err = tokens.Release(t.Context(), claims, c, tokens.ReleasedClaim{})
	if _, getErr := claims.Get(t.Context(), "worker-1", tokens.Live); err != nil || !errors.Is(getErr, tokens.ErrNotFound) {
		t.Errorf("Release = %v, then Get = %v, want ErrNotFound", err, getErr)
	}
}

// Renewals must extend the Past of a released claim, but only few renewals may cost a write. The Past must last a day
// longer than the last certificate, because clocks may differ.
func TestRenewedPastOutlivesCertificates(t *testing.T) {
	const duration = 2 * time.Hour
	now, writes := time.Now(), 0
	p := tokens.Claim{TokenID: id, Limits: tokens.Limits{CertificateDuration: duration}}.PastAfterRelease(now, 0)
	for i := range 100 { // renewals of a kubelet for a week
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
