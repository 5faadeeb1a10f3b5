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
		place    slotRequest // record and request are filled in
		existing bool        // Nodes.AllowExisting
		alone    bool        // there are no Nodes
		want     step
		refused  string // reason of the refusal
		err      error  // another error
	}{
		"released":                          {claim: tokens.Claim{Node: "w"}, want: newClaim},
		"released, and counted before":      {claim: tokens.Claim{Node: "w"}, place: slotRequest{counted: true}, refused: ReasonTokenSpent},
		"its own, first key":                {claim: own(nil), want: anotherKey},
		"its own, same key":                 {claim: own(func(c *tokens.Claim) { c.Keys = []string{key} }), want: keep},
		"its own, another key":              {claim: own(func(c *tokens.Claim) { c.Keys = []string{"1"} }), want: anotherKey},
		"its own, too many keys":            {claim: own(func(c *tokens.Claim) { c.Keys = three }), refused: ReasonTooManyKeys},
		"its own, too many keys of no use":  {claim: own(func(c *tokens.Claim) { c.Keys, c.Pending = three, true }), want: anotherKey},
		"its own, registered":               {claim: own(func(c *tokens.Claim) { c.NodeUID, c.Keys = "n", []string{key} }), err: errRegistered},
		"its own, registered, no Nodes":     {claim: own(func(c *tokens.Claim) { c.NodeUID = tokens.ByCertificate }), alone: true, refused: ReasonNodeExists},
		"registered, existing Nodes":        {claim: own(func(c *tokens.Claim) { c.NodeUID, c.Pending, c.Keys = "n", true, []string{key} }), existing: true, want: keep},
		"confirmed, existing Nodes":         {claim: own(func(c *tokens.Claim) { c.NodeUID, c.Keys = "n", []string{key} }), existing: true, err: errRegistered},
		"another key, existing Nodes":       {claim: own(func(c *tokens.Claim) { c.NodeUID, c.Pending = "n", true }), existing: true, err: errRegistered},
		"another token's":                   {claim: others(nil), refused: ReasonNodeNameClaimed},
		"another token's, abandoned":        {claim: others(func(c *tokens.Claim) { c.Pending, c.Created = true, now.Add(-pendingFor-1) }), err: errAbandoned},
		"its own, abandoned":                {claim: own(func(c *tokens.Claim) { c.Pending, c.Created = true, now.Add(-pendingFor-1) }), want: anotherKey},
		"another token's, registered":       {claim: others(func(c *tokens.Claim) { c.NodeUID = "n" }), err: errRegistered},
		"another token's, replaced":         {claim: others(func(c *tokens.Claim) { c.NodeUID = "n" }), place: slotRequest{replaces: true}, want: takeOver},
		"another's, replaced, counted":      {claim: others(func(c *tokens.Claim) { c.NodeUID = "n" }), place: slotRequest{replaces: true, counted: true}, refused: ReasonTokenSpent},
		"its own, replaced":                 {claim: own(func(c *tokens.Claim) { c.NodeUID = "n" }), place: slotRequest{replaces: true, counted: true}, want: anotherKey},
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
		p.request, p.node, p.record = r, "w", tokens.Record{Token: token, UID: "u", Limits: tokens.Limits{MaxNodes: 1}}
		before := test.claim.Clone()
		do, err := n.plan(test.claim, &p)
		var refused *approval.Refused
		switch {
		case !test.claim.Equal(before):
			t.Errorf("%s: plan changes the claim", name)
		case test.refused != "":
			if !errors.As(err, &refused) || refused.Reason != test.refused {
				t.Errorf("%s: %v, want %s", name, err, test.refused)
			}
			continue
		case !errors.Is(err, test.err) || test.err == nil && do != test.want:
			t.Errorf("%s: step %q, %v; want %q, %v", name, do, err, test.want, test.err)
		}
		if err != nil {
			continue
		}
		after := p.apply(do, test.claim.Clone(), now)
		holds := after.HasKey(key) && after.TokenID == "abc123" && after.TokenUID == "u" && len(after.Keys) <= tokens.MaxKeys && slices.Contains(after.Requests, "csr-1")
		if holds != (do != refuseReplacedAgain) || do == refuseReplacedAgain && !after.ReadyAgain {
			t.Errorf("%s: the claim becomes %+v", name, after)
		}
		if fresh := do == newClaim || do == takeOver; fresh && (!after.Pending || after.NodeUID != "" || len(after.Keys) != 1) || after.UID != before.UID {
			t.Errorf("%s: the claim becomes %+v", name, after)
		}
		if do == takeOver && after.Past.CertificateDuration != time.Hour {
			t.Errorf("%s: the claim forgets that certificates of the other token were to be short: %+v", name, after.Past)
		}
	}
}
