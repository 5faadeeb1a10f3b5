package admission

import (
	"context"
	"crypto/x509"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/tokens"
)

func TestPlanChoosesStepForClaim(t *testing.T) {
	now := time.Now()
	token, err := tokens.New("abc123", "s3cr3ts3cr3ts3cr")
	if err != nil {
		t.Fatal(err)
	}
	r := approval.Request{UID: "csr-1", CSR: &x509.CertificateRequest{RawSubjectPublicKeyInfo: []byte("key")}}
	key := pkcs10.KeyID(r.CSR)
	three := []string{"1", "2", "3"}
	own := func(change func(*tokens.Claim)) tokens.Claim {
		c := tokens.Claim{Node: "w", TokenID: "abc123", TokenUID: "before", Created: now, UID: "c"}
		if change != nil {
			change(&c)
		}
		return c
	}
	others := func(change func(*tokens.Claim)) tokens.Claim {
		return own(func(c *tokens.Claim) {
			c.TokenID, c.Limits.CertificateDuration = "def456", time.Hour
			if change != nil {
				change(c)
			}
		})
	}
	for name, test := range map[string]struct {
		claim    tokens.Claim
		place    slotRequest // the test sets record and request
		left     []string    // names that have left the token
		existing bool        // Nodes.AllowExisting
		alone    bool        // standalone: there are no Nodes
		want     step
		refused  string // reason of the refusal
		err      error  // another error
	}{
		"released":                          {claim: tokens.Claim{Node: "w"}, want: newClaim},
		"released, and had before":          {claim: tokens.Claim{Node: "w"}, place: slotRequest{had: true}, refused: ReasonTokenSpent},
		"its own, left":                     {claim: own(func(c *tokens.Claim) { c.Keys = []string{key} }), left: []string{"w"}, refused: ReasonTokenSpent},
		"its own, first key":                {claim: own(nil), want: anotherKey},
		"its own, same key":                 {claim: own(func(c *tokens.Claim) { c.Keys = []string{key} }), want: keep},
		"its own, another key":              {claim: own(func(c *tokens.Claim) { c.Keys = []string{"1"} }), want: anotherKey},
		"its own, too many keys":            {claim: own(func(c *tokens.Claim) { c.Keys = three }), refused: ReasonTooManyKeys},
		"its own, registered":               {claim: own(func(c *tokens.Claim) { c.NodeUID, c.Keys = "n", []string{key} }), err: errVacate},
		"its own, registered, no Nodes":     {claim: own(func(c *tokens.Claim) { c.NodeUID = tokens.ByCertificate }), alone: true, refused: ReasonNodeExists},
		"registered, existing Nodes":        {claim: own(func(c *tokens.Claim) { c.NodeUID, c.Keys = "n", []string{key} }), existing: true, want: keep},
		"another key, existing Nodes":       {claim: own(func(c *tokens.Claim) { c.NodeUID, c.Keys = "n", []string{"1"} }), existing: true, err: errVacate},
		"another token's":                   {claim: others(nil), err: errVacate},
		"another token's, registered":       {claim: others(func(c *tokens.Claim) { c.NodeUID = "n" }), err: errVacate},
		"another token's, replaced":         {claim: others(func(c *tokens.Claim) { c.NodeUID = "n" }), place: slotRequest{replaces: true}, want: takeOver},
		"another's, replaced, had":          {claim: others(func(c *tokens.Claim) { c.NodeUID = "n" }), place: slotRequest{replaces: true, had: true}, refused: ReasonTokenSpent},
		"its own, replaced":                 {claim: own(func(c *tokens.Claim) { c.NodeUID = "n" }), place: slotRequest{replaces: true, had: true}, want: anotherKey},
		"its own, replaced, Ready as then":  {claim: own(func(c *tokens.Claim) { c.ReadyBefore = "r1" }), place: slotRequest{replaces: true, ready: "r1"}, want: anotherKey},
		"its own, replaced, Ready again":    {claim: own(func(c *tokens.Claim) { c.ReadyBefore = "r1" }), place: slotRequest{replaces: true, ready: "r2"}, want: refuseReplacedAgain},
		"its own, replaced, Ready once":     {claim: own(func(c *tokens.Claim) { c.ReadyAgain, c.Keys = true, []string{key} }), place: slotRequest{replaces: true}, want: refuseReplacedAgain},
		"its own, replaced, Ready at first": {claim: own(nil), place: slotRequest{replaces: true, ready: "r1"}, want: refuseReplacedAgain},
	} {
		n := &Nodes{AllowExisting: test.existing, Now: func() time.Time { return now }}
		if !test.alone {
			n.Node = func(context.Context, string) (string, error) { panic("plan reads nothing") }
		}
		p := test.place
		p.request, p.node, p.record = r, "w", tokens.Record{Token: token, UID: "u", Limits: tokens.Limits{MaxNodes: 1}, Left: test.left}
		before := test.claim.Clone()
		do, err := n.plan(test.claim, &p)
		var refused *approval.Error
		switch {
		case !test.claim.Equal(before):
			t.Errorf("%s: plan changed the claim", name)
		case test.refused != "":
			if !errors.As(err, &refused) || refused.Verdict != approval.Deny || refused.Reason != test.refused {
				t.Errorf("%s: got %v, want %s", name, err, test.refused)
			}
			continue
		case !errors.Is(err, test.err) || test.err == nil && do != test.want:
			t.Errorf("%s: got step %q, %v; want %q, %v", name, do, err, test.want, test.err)
		}
		if err != nil {
			continue
		}
		after := p.apply(do, test.claim.Clone(), now)
		holds := after.HasKey(key) && after.TokenID == "abc123" && after.TokenUID == "u" && len(after.Keys) <= tokens.MaxKeys && slices.Contains(after.Requests, "csr-1")
		if holds != (do != refuseReplacedAgain) || do == refuseReplacedAgain && !after.ReadyAgain {
			t.Errorf("%s: got claim %+v", name, after)
		}
		if fresh := do == newClaim || do == takeOver; fresh && (after.NodeUID != "" || len(after.Keys) != 1) || after.UID != before.UID {
			t.Errorf("%s: got claim %+v", name, after)
		}
		if do == takeOver && after.Past.CertificateDuration != time.Hour {
			t.Errorf("%s: got %+v, want the certificate duration of the other token", name, after.Past)
		}
	}
}

// limited returns a claim of token abc123 for the name w.
func limited(change func(*tokens.Claim)) tokens.Claim {
	c := tokens.Claim{Node: "w", TokenID: "abc123", TokenUID: "u", UID: "c", Version: "7", Created: noon, Limits: tokens.Limits{CertificateDuration: time.Hour}}
	if change != nil {
		change(&c)
	}
	return c
}

var (
	noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	held = tokens.ReleasedClaim{Until: noon.Add(time.Hour), CertificateDuration: 2 * time.Hour}
	over = tokens.ReleasedClaim{Until: noon, CertificateDuration: 2 * time.Hour}
)

func TestRenewalTakesDurationOfClaim(t *testing.T) {
	past := func(p tokens.ReleasedClaim) tokens.Claim { return released(limited(nil), p) }
	unbound := tokens.ReleasedClaim{Until: noon.Add(time.Hour)}
	joined := limited(func(c *tokens.Claim) { c.NodeUID = tokens.ByCertificate })
	for name, test := range map[string]struct {
		claim    tokens.Claim
		alone    bool // standalone: there are no Nodes
		want     tokens.Claim
		lifetime time.Duration
		refused  bool
	}{
		"claimed":                       {claim: limited(nil), want: limited(nil), lifetime: time.Hour},
		"claimed, no Nodes":             {claim: limited(nil), alone: true, want: joined, lifetime: time.Hour},
		"joined, no Nodes":              {claim: joined, alone: true, want: joined, lifetime: time.Hour},
		"registered, no Nodes any more": {claim: limited(func(c *tokens.Claim) { c.NodeUID = "n" }), alone: true, want: limited(func(c *tokens.Claim) { c.NodeUID = "n" }), lifetime: time.Hour},
		"released":                      {claim: past(held), want: past(held.Renewed(noon)), lifetime: 2 * time.Hour},
		"released, no Nodes":            {claim: past(held), alone: true, refused: true},
		"released, not bound":           {claim: past(unbound), want: past(unbound)},
		"released, over":                {claim: past(over), want: past(over)},
		"released, over, no Nodes":      {claim: past(over), alone: true, want: past(over)},
	} {
		got, lifetime, err := renewed(test.claim, !test.alone, noon)
		if refused := (*approval.Error)(nil); test.refused {
			if !errors.As(err, &refused) || refused.Verdict != approval.Deny || refused.Reason != ReasonNodeNameReleased {
				t.Errorf("%s: got %v, want %s", name, err, ReasonNodeNameReleased)
			}
		} else if err != nil || !got.Equal(test.want) || lifetime != test.lifetime {
			t.Errorf("%s: %+v for %s, %v; want %+v for %s", name, got, lifetime, err, test.want, test.lifetime)
		}
	}
}

func TestFillCountsNamesUpToTheLimit(t *testing.T) {
	token := tokens.Generate()
	n := &Nodes{Now: func() time.Time { return noon }}
	soon := noon.Add(DefaultRetention)
	for name, test := range map[string]struct {
		most    int
		nodes   []string
		expires time.Time
		ask     []string
		want    []string
		ends    time.Time
		spent   int // how many are refused
	}{
		"a slot":                {most: 2, ask: []string{"a"}, want: []string{"a"}},
		"the last slot":         {most: 2, nodes: []string{"a"}, ask: []string{"b"}, want: []string{"a", "b"}, ends: soon},
		"one too many":          {most: 1, ask: []string{"a", "b"}, want: []string{"a"}, ends: soon, spent: 1},
		"counted before":        {most: 1, nodes: []string{"a"}, ask: []string{"a"}, want: []string{"a"}},
		"ends later by itself":  {most: 1, expires: noon.Add(24 * time.Hour), ask: []string{"a"}, want: []string{"a"}, ends: soon},
		"expired meanwhile":     {most: 2, expires: noon, ask: []string{"a"}, ends: noon, spent: 1},
		"ends sooner by itself": {most: 1, expires: noon.Add(time.Minute), ask: []string{"a"}, want: []string{"a"}, ends: noon.Add(time.Minute)},
	} {
		record := tokens.Record{Token: token, Authentication: true, Limits: tokens.Limits{MaxNodes: test.most}, Nodes: slices.Clone(test.nodes), Expires: test.expires}
		all := []*slotRequest{{node: "failed", err: errUnchanged}}
		for _, node := range test.ask {
			all = append(all, &slotRequest{node: node})
		}
		changed := n.fill(&record, all)
		spent := 0
		for _, p := range all[1:] {
			if p.err != nil {
				spent++
			}
		}
		if !slices.Equal(record.Nodes, test.want) || !record.Expires.Equal(test.ends) || spent != test.spent || changed == slices.Equal(test.nodes, test.want) {
			t.Errorf("%s: got count %q until %s, %d refused, changed %t; want %q until %s, %d refused", name, record.Nodes, record.Expires, spent, changed, test.want, test.ends, test.spent)
		}
	}
}
