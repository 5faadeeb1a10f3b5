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
		existing bool        // Nodes.AllowExisting
		alone    bool        // standalone: there are no Nodes
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
		"its own, too many pending keys":    {claim: own(func(c *tokens.Claim) { c.Keys, c.Pending = three, true }), want: anotherKey},
		"its own, registered":               {claim: own(func(c *tokens.Claim) { c.NodeUID, c.Keys = "n", []string{key} }), err: errVacate},
		"its own, registered, no Nodes":     {claim: own(func(c *tokens.Claim) { c.NodeUID = tokens.ByCertificate }), alone: true, refused: ReasonNodeExists},
		"registered, existing Nodes":        {claim: own(func(c *tokens.Claim) { c.NodeUID, c.Pending, c.Keys = "n", true, []string{key} }), existing: true, want: keep},
		"confirmed, existing Nodes":         {claim: own(func(c *tokens.Claim) { c.NodeUID, c.Keys = "n", []string{key} }), existing: true, err: errVacate},
		"another key, existing Nodes":       {claim: own(func(c *tokens.Claim) { c.NodeUID, c.Pending = "n", true }), existing: true, err: errVacate},
		"another token's":                   {claim: others(nil), err: errVacate},
		"another token's, abandoned":        {claim: others(func(c *tokens.Claim) { c.Pending, c.Created = true, now.Add(-pendingFor-1) }), err: errVacate},
		"its own, abandoned":                {claim: own(func(c *tokens.Claim) { c.Pending, c.Created = true, now.Add(-pendingFor-1) }), want: anotherKey},
		"another token's, registered":       {claim: others(func(c *tokens.Claim) { c.NodeUID = "n" }), err: errVacate},
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
			t.Errorf("%s: plan changed the claim", name)
		case test.refused != "":
			if !errors.As(err, &refused) || refused.Reason != test.refused {
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
		if fresh := do == newClaim || do == takeOver; fresh && (!after.Pending || after.NodeUID != "" || len(after.Keys) != 1) || after.UID != before.UID {
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
	noon    = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	held    = tokens.ReleasedClaim{Until: noon.Add(time.Hour), CertificateDuration: 2 * time.Hour}
	over    = tokens.ReleasedClaim{Until: noon, CertificateDuration: 2 * time.Hour}
	pending = func(c *tokens.Claim) { c.Pending, c.Keys, c.Requests = true, []string{"k"}, []string{"csr-2"} }
)

func TestVacateKeepsNameInUse(t *testing.T) {
	left := func(past tokens.ReleasedClaim) *tokens.Claim {
		return &tokens.Claim{Node: "w", UID: "c", Version: "7", Created: noon, Past: past}
	}
	late := func(c *tokens.Claim) { pending(c); c.Created = noon.Add(-pendingFor - 1) }
	for name, test := range map[string]struct {
		claim         tokens.Claim
		gone, counted bool
		want          *tokens.Claim // nil: the claim keeps the name
	}{
		"confirmed":                     {claim: limited(nil), gone: true},
		"its Node is there":             {claim: limited(func(c *tokens.Claim) { c.NodeUID = "n" })},
		"its Node is gone":              {claim: limited(func(c *tokens.Claim) { c.NodeUID = "n" }), gone: true, want: left(limited(nil).PastAfterRelease(noon, 0))},
		"its Node is gone, and counted": {claim: limited(func(c *tokens.Claim) { c.NodeUID = "n" }), gone: true, counted: true, want: left(limited(nil).PastAfterRelease(noon, 0))},
		"pending":                       {claim: limited(pending), gone: true},
		"abandoned":                     {claim: limited(late), want: left(tokens.ReleasedClaim{})},
		"abandoned, and counted":        {claim: limited(late), counted: true},
		"abandoned, after another one":  {claim: limited(func(c *tokens.Claim) { late(c); c.Past = held }), want: left(held)},
		"abandoned, long after one":     {claim: limited(func(c *tokens.Claim) { late(c); c.Past = over }), want: left(tokens.ReleasedClaim{})},
	} {
		got, err := vacated(test.claim, test.gone, test.counted, noon)
		if refused := (*approval.Refused)(nil); test.want == nil && (!errors.As(err, &refused) || refused.Reason != ReasonNodeNameClaimed) {
			t.Errorf("%s: got %v, want %s", name, err, ReasonNodeNameClaimed)
		}
		if got.Created = noon; test.want != nil && (err != nil || !got.Equal(*test.want)) {
			t.Errorf("%s: got %+v, %v; want %+v", name, got, err, *test.want)
		}
	}
}

func TestUndoRemovesUncountedKeys(t *testing.T) {
	r := approval.Request{UID: "csr-1", CSR: &x509.CertificateRequest{RawSubjectPublicKeyInfo: []byte("key")}}
	key := pkcs10.KeyID(r.CSR)
	one := limited(func(c *tokens.Claim) { c.Pending, c.Keys, c.Requests = true, []string{key}, []string{"csr-1"} })
	two := limited(func(c *tokens.Claim) {
		c.Pending, c.Keys, c.Requests = true, []string{"k", key}, []string{"csr-1", "csr-2"}
	})
	record := func(most int, nodes ...string) tokens.Record {
		return tokens.Record{Limits: tokens.Limits{MaxNodes: most}, Nodes: nodes}
	}
	gone := released(one, tokens.ReleasedClaim{})
	for name, test := range map[string]struct {
		claim  tokens.Claim
		record tokens.Record
		want   tokens.Claim
	}{
		"its only key":        {one, record(1), gone},
		"counted":             {one, record(2, "w"), one},
		"without keys":        {limited(func(c *tokens.Claim) { c.Pending = true }), record(1), gone},
		"one of two keys":     {two, record(2, "v"), limited(pending)},
		"of a spent token":    {two, record(1, "v"), gone},
		"after another claim": {limited(func(c *tokens.Claim) { c.Pending, c.Past = true, held }), record(1), released(one, held)},
	} {
		before := test.claim.Clone()
		if got := undone(test.claim, test.record, r, noon); !got.Equal(test.want) || !test.claim.Equal(before) {
			t.Errorf("%s: got claim %+v, want %+v", name, got, test.want)
		}
	}
	for name, test := range map[string]struct {
		claim tokens.Claim
		want  bool
	}{
		"pending":         {limited(pending), true},
		"confirmed":       {limited(nil), false},
		"registered":      {limited(func(c *tokens.Claim) { c.Pending, c.NodeUID = true, "n" }), false},
		"another token's": {limited(func(c *tokens.Claim) { c.Pending, c.TokenID = true, "def456" }), false},
	} {
		if got := undoable(test.claim, "abc123"); got != test.want {
			t.Errorf("%s: got %t, want %t", name, got, test.want)
		}
	}
	for uid, want := range map[string]bool{"csr-1": false, "csr-2": true, "": false} {
		if got := mayStemFrom(limited(pending), uid); got != want || mayStemFrom(limited(nil), uid) != (uid != "") {
			t.Errorf("left by %q: got %t", uid, got)
		}
	}
}

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
		"pending, no Nodes":             {claim: limited(pending), alone: true, want: limited(pending), lifetime: time.Hour},
		"registered, no Nodes any more": {claim: limited(func(c *tokens.Claim) { c.NodeUID = "n" }), alone: true, want: limited(func(c *tokens.Claim) { c.NodeUID = "n" }), lifetime: time.Hour},
		"released":                      {claim: past(held), want: past(held.Renewed(noon)), lifetime: 2 * time.Hour},
		"released, no Nodes":            {claim: past(held), alone: true, refused: true},
		"released, not bound":           {claim: past(unbound), want: past(unbound)},
		"released, over":                {claim: past(over), want: past(over)},
		"released, over, no Nodes":      {claim: past(over), alone: true, want: past(over)},
	} {
		got, lifetime, err := renewed(test.claim, !test.alone, noon)
		if refused := (*approval.Refused)(nil); test.refused {
			if !errors.As(err, &refused) || refused.Reason != ReasonNodeNameReleased {
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
