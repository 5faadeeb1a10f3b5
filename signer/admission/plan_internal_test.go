package admission

import (
	"context"
	"crypto/x509"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/tokens"
)

func TestPlanChoosesChangeOfClaim(t *testing.T) {
	now := time.Now()
	token := must.Value(tokens.New("abc123", "s3cr3ts3cr3ts3cr"))(t)
	r := approval.Request{UID: "csr-1", CSR: &x509.CertificateRequest{RawSubjectPublicKeyInfo: []byte("key")}}
	key := pkcs10.KeyID(r.CSR)
	three := []string{"1", "2", "3"}
	own := func(change func(*tokens.Claim)) tokens.Claim {
		c := tokens.Claim{Node: "w", TokenID: "abc123", TokenUID: "before", Created: now, UID: "c", Identity: tokens.Identity{NodeUID: "n"}}
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
	missing := tokens.Claim{Node: "w"}
	machine := func(c tokens.Claim, tokenUID string) tokens.Claim {
		c.Machine = tokens.Machine{Key: "lusab-babad-gutih-tugad", TokenID: "abc123", TokenUID: tokenUID}
		return c
	}
	revoked := func(c tokens.Claim) tokens.Claim { c.Machine.Revoked = true; return c }
	replaced := tokens.Limits{Replaces: tokens.NodeRef{Name: "w", UID: "n"}}
	for name, test := range map[string]struct {
		claim    tokens.Claim
		seen     facts         // what look has found; the test sets rules and claim
		limits   tokens.Limits // of the token; one node if zero
		existing bool          // Nodes.AllowExisting
		alone    bool          // standalone: there are no Nodes
		want     string        // the change; empty keeps the claim
		refused  string        // reason of the refusal
		ends     bool          // the claim is released
	}{
		"no claim":                          {claim: missing, want: made},
		"no claim, and had before":          {claim: missing, seen: facts{ended: true}, refused: ReasonTokenSpent},
		"another object":                    {claim: missing, seen: facts{foreign: true}, refused: ReasonNodeNameNotAllowed},
		"Node exists":                       {claim: missing, seen: facts{nodeUID: "n"}, refused: ReasonNodeExists},
		"Node exists, existing Nodes":       {claim: missing, seen: facts{nodeUID: "n"}, existing: true, want: made},
		"replaces another Node":             {claim: missing, seen: facts{nodeUID: "m"}, limits: replaced, refused: ReasonNodeReplaced},
		"replaces, no claim":                {claim: missing, seen: facts{nodeUID: "n"}, limits: replaced, want: made},
		"released":                          {claim: own(nil).AfterRelease(held), want: made},
		"released, and had before":          {claim: own(nil).AfterRelease(held), seen: facts{ended: true}, refused: ReasonTokenSpent},
		"its own, left":                     {claim: own(func(c *tokens.Claim) { c.Keys = []string{key} }), seen: facts{ended: true}, refused: ReasonTokenSpent},
		"its own, first key":                {claim: own(nil), want: anotherKey},
		"its own, same key":                 {claim: own(func(c *tokens.Claim) { c.Keys = []string{key} }), want: ""},
		"its own, another key":              {claim: own(func(c *tokens.Claim) { c.Keys = []string{"1"} }), want: anotherKey},
		"its own, too many keys":            {claim: own(func(c *tokens.Claim) { c.Keys = three }), refused: ReasonTooManyKeys},
		"its own, registered":               {claim: own(func(c *tokens.Claim) { c.NodeUID, c.Keys = "n", []string{key} }), seen: facts{nodeUID: "n"}, refused: ReasonNodeExists},
		"its own, Node deleted":             {claim: own(func(c *tokens.Claim) { c.NodeUID, c.Keys = "n", []string{key} }), refused: ReasonTokenSpent, ends: true},
		"its own, registered, no Nodes":     {claim: own(func(c *tokens.Claim) { c.NodeUID = tokens.ByCertificate }), alone: true, refused: ReasonNodeExists},
		"registered, existing Nodes":        {claim: own(func(c *tokens.Claim) { c.NodeUID, c.Keys = "n", []string{key} }), seen: facts{nodeUID: "n"}, existing: true, want: ""},
		"deleted, existing Nodes":           {claim: own(func(c *tokens.Claim) { c.NodeUID, c.Keys = "n", []string{key} }), existing: true, want: ""},
		"another key, existing Nodes":       {claim: own(func(c *tokens.Claim) { c.NodeUID, c.Keys = "n", []string{"1"} }), seen: facts{nodeUID: "n"}, existing: true, refused: ReasonNodeNameClaimed},
		"another key, deleted":              {claim: own(func(c *tokens.Claim) { c.NodeUID, c.Keys = "n", []string{"1"} }), existing: true, refused: ReasonTokenSpent, ends: true},
		"another token's":                   {claim: others(nil), refused: ReasonNodeNameClaimed},
		"another token's, registered":       {claim: others(func(c *tokens.Claim) { c.NodeUID = "n" }), seen: facts{nodeUID: "n"}, refused: ReasonNodeExists},
		"another token's, existing Nodes":   {claim: others(func(c *tokens.Claim) { c.NodeUID = "n" }), seen: facts{nodeUID: "n"}, existing: true, refused: ReasonNodeNameClaimed},
		"another token's, no Nodes":         {claim: others(func(c *tokens.Claim) { c.NodeUID = tokens.ByCertificate }), alone: true, refused: ReasonNodeNameClaimed},
		"another token's, Node deleted":     {claim: others(func(c *tokens.Claim) { c.NodeUID = "n" }), want: made},
		"another's, deleted, and had":       {claim: others(func(c *tokens.Claim) { c.NodeUID = "n" }), seen: facts{ended: true}, refused: ReasonTokenSpent, ends: true},
		"another's, and had before":         {claim: others(nil), seen: facts{ended: true}, refused: ReasonNodeNameClaimed},
		"another token's, replaced":         {claim: others(func(c *tokens.Claim) { c.NodeUID = "n" }), seen: facts{nodeUID: "n"}, limits: replaced, want: takenOver},
		"another's, replaced, had":          {claim: others(func(c *tokens.Claim) { c.NodeUID = "n" }), seen: facts{nodeUID: "n", ended: true}, limits: replaced, refused: ReasonTokenSpent},
		"its own, replaced":                 {claim: own(func(c *tokens.Claim) { c.NodeUID = "n" }), seen: facts{nodeUID: "n"}, limits: replaced, want: anotherKey},
		"its own, replaced, Ready as then":  {claim: own(func(c *tokens.Claim) { c.ReadyBefore = "r1" }), seen: facts{nodeUID: "n", ready: "r1"}, limits: replaced, want: anotherKey},
		"its own, replaced, Ready again":    {claim: own(func(c *tokens.Claim) { c.ReadyBefore = "r1" }), seen: facts{nodeUID: "n", ready: "r2"}, limits: replaced, refused: ReasonNodeExists},
		"its own, replaced, Ready once":     {claim: own(func(c *tokens.Claim) { c.ReadyAgain, c.Keys = true, []string{key} }), seen: facts{nodeUID: "n"}, limits: replaced, refused: ReasonNodeExists},
		"its own, replaced, Ready at first": {claim: own(nil), seen: facts{nodeUID: "n", ready: "r1"}, limits: replaced, refused: ReasonNodeExists},
		"a machine's":                       {claim: machine(missing, ""), refused: ReasonNodeNameClaimed},
		"a machine's, and its token":        {claim: machine(missing, "u"), want: made},
		"a revoked machine's":               {claim: revoked(machine(missing, "u")), refused: ReasonNodeNameClaimed},
		"a machine's, same ID":              {claim: machine(missing, "before"), refused: ReasonNodeNameClaimed},
		"a machine's, earlier token":        {claim: machine(others(nil), "u"), want: takenOver},
		"a machine's, own, later token":     {claim: machine(own(nil), "later"), refused: ReasonNodeNameClaimed},
		"a machine's, Node exists":          {claim: machine(missing, ""), seen: facts{nodeUID: "n"}, limits: replaced, refused: ReasonNodeNameClaimed},
		"a machine's, Node replaced":        {claim: machine(others(func(c *tokens.Claim) { c.NodeUID = "n" }), "u"), seen: facts{nodeUID: "n"}, limits: replaced, want: takenOver},
		"a machine's, Node deleted":         {claim: machine(others(func(c *tokens.Claim) { c.NodeUID = "n" }), "u"), want: made},
		"a machine's, deleted, other token": {claim: machine(others(func(c *tokens.Claim) { c.NodeUID = "n" }), "x"), refused: ReasonNodeNameClaimed},
		"a machine's, joined, no Nodes":     {claim: machine(others(func(c *tokens.Claim) { c.NodeUID = tokens.ByCertificate }), "u"), alone: true, refused: ReasonNodeExists},
	} {
		f := test.seen
		f.rules, f.claim = rules{nodes: !test.alone, existing: test.existing, now: now}, test.claim.Clone()
		record := tokens.Record{Token: token, UID: "u", Limits: test.limits}
		if record.Limits.IsZero() {
			record.Limits = tokens.Limits{MaxNodes: 1}
		}
		record.Limits.Node.Labels = "a=b"
		d := planClaim(f, record, r)
		after := d.next
		var refused *approval.Error
		if !f.claim.Equal(test.claim) || after.UID != test.claim.UID || after.Version != test.claim.Version {
			t.Errorf("%s: plan changed the claim to %+v, and plans %+v", name, f.claim, after)
		}
		if test.refused != "" {
			again := test.seen.nodeUID != "" && test.refused == ReasonNodeExists && test.limits.Replaces.Name != ""
			if !errors.As(d.err, &refused) || refused.Verdict != approval.Deny || refused.Reason != test.refused || after.ReadyAgain != again {
				t.Errorf("%s: got %v and claim %+v, want %s", name, d.err, after, test.refused)
			}
			if after.Released() != (test.ends || test.claim.Released()) || !test.ends && !again && !after.Equal(test.claim) {
				t.Errorf("%s: got claim %+v, want it released: %t", name, after, test.ends)
			}
			continue
		}
		if d.err != nil || d.change != test.want || !after.Machine.Same(test.claim.Machine) || !after.HasKey(key) || after.TokenID != "abc123" || after.TokenUID != "u" || len(after.Keys) > tokens.MaxKeys || !slices.Contains(after.Requests, "csr-1") {
			t.Errorf("%s: got change %q, %v, claim %+v; want %q", name, d.change, d.err, after, test.want)
		}
		if identity := test.claim.Identity; d.vacates && !after.Identity.IsZero() || !d.vacates && !after.Identity.Equal(identity) {
			t.Errorf("%s: got identity %+v after %+v, want it to end with its Node", name, after.Identity, identity)
		}
		if node := after.Limits.Node.Labels; (node == "a=b") != (after.NodeUID == "") {
			t.Errorf("%s: got labels %q of NodeUID %q, want those of the token until its Node has registered", name, node, after.NodeUID)
		}
		if begins := d.change == made || d.change == takenOver; begins && (after.NodeUID != "" || len(after.Keys) != 1) {
			t.Errorf("%s: got claim %+v", name, after)
		}
		if over := test.claim.TokenID == "def456"; over && after.Past.CertificateDuration != time.Hour || d.vacates != (over && d.change == made) {
			t.Errorf("%s: got %+v, vacates %t, want the certificate duration of the other token", name, after.Past, d.vacates)
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
	past := limited(nil).AfterRelease
	labeled := tokens.ReleasedClaim{Until: noon.Add(time.Hour), Node: tokens.NodeProperties{Labels: "a=b"}}
	labeledOver := tokens.ReleasedClaim{Until: noon, Node: labeled.Node}
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
		"released, with labels":         {claim: past(labeled), want: past(labeled.Renewed(noon))},
		"released, over, with labels":   {claim: past(labeledOver), want: past(labeledOver)},
		"released, over":                {claim: past(over), want: past(over)},
		"released, over, no Nodes":      {claim: past(over), alone: true, want: past(over)},
	} {
		p := planRenewal(facts{rules: rules{nodes: !test.alone, now: noon}, claim: test.claim}, approval.Request{})
		got, lifetime, err := p.next, p.admitted.Duration, p.err
		if refused := (*approval.Error)(nil); test.refused {
			if !errors.As(err, &refused) || refused.Verdict != approval.Deny || refused.Reason != ReasonNodeNameReleased {
				t.Errorf("%s: got %v, want %s", name, err, ReasonNodeNameReleased)
			}
		} else if err != nil || !got.Equal(test.want) || lifetime != test.lifetime {
			t.Errorf("%s: %+v for %s, %v; want %+v for %s", name, got, lifetime, err, test.want, test.lifetime)
		}
	}
}

// A name that another token holds, or another object, gives its slot back, but not to another request of the same plan.
func TestPlanCountsNamesUpToTheLimit(t *testing.T) {
	token := tokens.Generate()
	at := rules{retention: DefaultRetention, now: noon}
	soon := noon.Add(DefaultRetention)
	foreign := facts{claim: tokens.Claim{Node: "a", TokenID: "others", UID: "c"}}
	none := tokens.Claim{Node: "a"}
	for name, test := range map[string]struct {
		most    int
		nodes   []string
		expires time.Time
		ask     []string
		also    []facts
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
		"lost":                  {most: 2, nodes: []string{"a", "b"}, also: []facts{foreign}, want: []string{"b"}, spent: 1},
		"lost, and one more":    {most: 1, nodes: []string{"a"}, also: []facts{foreign}, ask: []string{"b"}, want: nil, spent: 2},
		"lost, never counted":   {most: 2, nodes: []string{"b"}, also: []facts{foreign}, want: []string{"b"}, spent: 1},
		"lost, but had before":  {most: 2, nodes: []string{"a"}, also: []facts{{ended: true, claim: foreign.claim}}, want: []string{"a"}, spent: 1},
		"lost to an object":     {most: 2, nodes: []string{"a"}, also: []facts{{foreign: true, claim: none}}, want: nil, spent: 1},
		"joined meanwhile":      {most: 2, nodes: []string{"a"}, also: []facts{{foreign: true, nodeUID: "n", claim: none}}, want: []string{"a"}, spent: 1},
		"its Node exists":       {most: 2, nodes: []string{"a"}, also: []facts{{nodeUID: "n", claim: none}}, want: []string{"a"}, spent: 1},
	} {
		record := tokens.Record{Token: token, Authentication: true, Limits: tokens.Limits{MaxNodes: test.most}, Nodes: slices.Clone(test.nodes), Expires: test.expires}
		seen := append([]facts{{err: errors.New("failed")}}, test.also...)
		for _, node := range test.ask {
			seen = append(seen, facts{claim: tokens.Claim{Node: node}})
		}
		var all []*bid
		for i := range seen {
			seen[i].rules = at
			seen[i].now = noon.Add(-time.Second) // the reads took a second
			all = append(all, &bid{request: approval.Request{CSR: &x509.CertificateRequest{RawSubjectPublicKeyInfo: []byte("key")}}})
		}
		after, plans := planAll(at, record, all, seen)
		spent := 0
		for _, p := range plans[1:] {
			if p.err != nil {
				spent++
			}
		}
		if !slices.Equal(record.Nodes, test.nodes) || !record.Expires.Equal(test.expires) {
			t.Errorf("%s: planAll has changed the record that it was given", name)
		}
		if !slices.Equal(after.Nodes, test.want) || !after.Expires.Equal(test.ends) || spent != test.spent {
			t.Errorf("%s: got count %q until %s, %d refused; want %q until %s, %d refused", name, after.Nodes, after.Expires, spent, test.want, test.ends, test.spent)
		}
	}
}

// halfDone commits claims and frees no slot.
type halfDone struct{ tokens.Claims }

func (halfDone) Commit(_ context.Context, _, _ tokens.Record, changes []tokens.ClaimChange) ([]tokens.Outcome, error) {
	return make([]tokens.Outcome, len(changes)), errors.New("connection reset")
}

// A refusal is final, so commit refuses nobody before the slot is free. It admits another machine of the same commit.
func TestCommitDoesNotRefuseBeforeSlotIsFree(t *testing.T) {
	n := &Nodes{Claims: halfDone{}}
	n.once.Do(n.start)
	before := tokens.Record{Token: tokens.Generate(), Limits: tokens.Limits{MaxNodes: 2}, Nodes: []string{"lost"}}
	after := before
	after.Nodes = []string{"new"}
	seen := []facts{{claim: tokens.Claim{Node: "new"}}, {claim: tokens.Claim{Node: "lost"}}}
	plans := []plan{{next: tokens.Claim{Node: "new", TokenID: "abc123"}}, {next: seen[1].claim, lost: true, err: refuseClaimed(seen[1].claim)}}
	outcomes, err := n.commit(t.Context(), token{before, before}, after, seen, plans)
	if err != nil || outcomes[0].Err != nil || outcomes[1].Err == nil || changed(outcomes[1].Err) {
		t.Errorf("got %+v, %v; want a temporary error for the loser only", outcomes, err)
	}
}
