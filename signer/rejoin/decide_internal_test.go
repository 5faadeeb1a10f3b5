package rejoin

import (
	"crypto/x509"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
)

const (
	oldKey   = "sha256:old"
	lastKey  = "sha256:last"
	newKey   = "sha256:new"
	boundKey = "sha256:bound"
)

// usual returns the facts of a node that may rejoin: it was off for a day.
func usual() facts {
	now := time.Date(2030, 1, 31, 12, 0, 0, 500, time.UTC)
	return facts{
		request: verified{node: "worker-1", key: newKey, cert: &x509.Certificate{NotAfter: now.Add(-24 * time.Hour)}, made: now.Add(-time.Second)},
		claim: tokens.Claim{Node: "worker-1", TokenID: "abc123", Limits: tokens.Limits{MaxNodes: 1, CertificateDuration: time.Hour}, Identity: tokens.Identity{
			NodeUID: "uid", Keys: []string{lastKey, newKey}, NotAfter: now.Add(-24 * time.Hour).Truncate(time.Second), BoundKey: boundKey, Challenge: now.Add(-time.Hour),
		}},
		nodes: true, nodeUID: "uid", window: 30 * 24 * time.Hour, budget: 3, now: now, freshID: "new000",
	}
}

func TestDecide(t *testing.T) {
	ago := func(f *facts, d time.Duration) time.Time { return f.now.Add(-d).Truncate(time.Second) }
	for name, test := range map[string]struct {
		change func(*facts)
		reason string // empty: granted
		again  bool
		text   string // in the message
	}{
		"newest key":           {},
		"key before it":        {change: func(f *facts) { f.request.key = lastKey }},
		"valid certificate":    {change: func(f *facts) { f.request.cert.NotAfter = f.now.Add(time.Hour) }},
		"released claim":       {change: func(f *facts) { f.claim.TokenID, f.claim.Limits = "", tokens.Limits{} }},
		"bound key":            {change: func(f *facts) { f.request.key, f.request.cert = boundKey, nil }},
		"allowed by its token": {change: func(f *facts) { f.claim.Limits.Rejoin = tokens.RejoinAllow }},
		"no Nodes": {change: func(f *facts) {
			f.nodes, f.nodeUID, f.claim.Identity.NodeUID = false, "", oldKey
		}},

		"token denies":         {change: func(f *facts) { f.claim.Limits.Rejoin = tokens.RejoinDeny }, reason: "RejoinOff", text: "token abc123"},
		"restored disk":        {change: func(f *facts) { f.request.key = oldKey }, reason: "KeyNotCurrent", text: "old copy of its disk"},
		"no claim":             {change: func(f *facts) { f.claim = tokens.Claim{} }, reason: "KeyNotCurrent", text: "knows no key"},
		"no identity":          {change: func(f *facts) { f.claim.Identity = tokens.Identity{} }, reason: "KeyNotCurrent", text: "knows no key"},
		"only a bound key":     {change: func(f *facts) { f.claim.Identity.Keys = nil }, reason: "KeyNotCurrent"},
		"another bound key":    {change: func(f *facts) { f.request.key, f.request.cert = "sha256:x", nil }, reason: "KeyNotCurrent"},
		"key of a certificate": {change: func(f *facts) { f.request.cert = nil }, reason: "KeyNotCurrent", text: "present the node's certificate"},
		"window passed": {change: func(f *facts) { f.claim.Identity.NotAfter = ago(f, 30*24*time.Hour) }, reason: "RejoinTooLate",
			text: "--replace-node worker-1"},
		"last second of the window": {change: func(f *facts) { f.claim.Identity.NotAfter = ago(f, 30*24*time.Hour-time.Second) }},
		"Node deleted":              {change: func(f *facts) { f.nodeUID = "" }, reason: "NodeNotFound", text: "--max-nodes 1 --node-name worker-1"},
		"Node created again":        {change: func(f *facts) { f.nodeUID = "other" }, reason: "NodeReplaced", text: "UID uid before, other now"},
		"Node not seen":             {change: func(f *facts) { f.claim.Identity.NodeUID = "" }, reason: "NodeReplaced", text: "has not seen"},
		"challenge replayed":        {change: func(f *facts) { f.claim.Identity.Challenge = f.request.made }, reason: "ChallengeUsed"},
		"older challenge":           {change: func(f *facts) { f.claim.Identity.Challenge = f.request.made.Add(time.Microsecond) }, reason: "ChallengeUsed"},

		"budget spent": {change: func(f *facts) {
			f.claim.Identity.Rejoins = []time.Time{ago(f, 29*24*time.Hour), ago(f, time.Hour), ago(f, time.Minute)}
		}, reason: "RejoinBudgetSpent", text: "3 times"},
		"budget of the window before": {change: func(f *facts) {
			f.claim.Identity.Rejoins = []time.Time{ago(f, 31*24*time.Hour), ago(f, time.Hour), ago(f, time.Minute)}
		}},
		"no budget": {change: func(f *facts) { f.budget = 0 }, reason: "RejoinBudgetSpent"},

		"token granted and not used": {change: func(f *facts) {
			f.claim.Identity.TokenID, f.claim.Identity.TokenExpires = "old000", f.now.Add(2*time.Minute).Truncate(time.Second)
			f.claim.Identity.Rejoins = []time.Time{ago(f, 3*time.Minute), ago(f, 2*time.Minute), ago(f, time.Minute)} // costs no budget
		}, again: true},
		"token about to expire": {change: func(f *facts) {
			f.claim.Identity.TokenID, f.claim.Identity.TokenExpires = "old000", f.now.Add(time.Minute).Truncate(time.Second)
		}},
		"token used": {change: func(f *facts) { f.claim.Identity.TokenID = "old000" }},
	} {
		t.Run(name, func(t *testing.T) {
			f := usual()
			if test.change != nil {
				test.change(&f)
			}
			before := f.claim.Clone()
			g, err := decide(f)
			if !f.claim.Equal(before) {
				t.Error("decide has changed the facts")
			}
			var refused *approval.Refused
			if test.reason != "" {
				if !errors.As(err, &refused) || refused.Reason != test.reason || !strings.Contains(refused.Message, test.text) {
					t.Errorf("got %v, want a refusal with reason %s and %q", err, test.reason, test.text)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			i := g.claim.Identity
			want := f.freshID
			if test.again {
				want = "old000"
			}
			if g.again != test.again || g.token.id != want || i.TokenID != want || !i.TokenExpires.Equal(g.token.expires) || !i.Challenge.Equal(f.request.made) {
				t.Errorf("got %+v, want token %s", g, want)
			}
			if left := g.token.expires.Sub(f.now); left > 10*time.Minute || left < time.Minute {
				t.Errorf("the token lasts %s", left)
			}
			if !test.again && !i.Rejoins[len(i.Rejoins)-1].Equal(f.now.Truncate(time.Second)) || len(i.Rejoins) > 3 {
				t.Errorf("got rejoins %v, want this one counted", i.Rejoins)
			}
			if to := (tokens.NodeRef{Name: "worker-1", UID: f.claim.Identity.NodeUID}); g.token.replaces != to {
				t.Errorf("the token is for %v, want %v", g.token.replaces, to)
			}
			if err := g.claim.Check(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A rejoin must not lift a limit of the node, and must work for a node whose name is reserved.
func TestGrantKeepsLimits(t *testing.T) {
	for name, test := range map[string]struct {
		change   func(*facts)
		duration time.Duration
		role     string
	}{
		"held":     {func(*facts) {}, time.Hour, ""},
		"reserved": {func(f *facts) { f.reserved = true }, time.Hour, "control-plane"},
		"released": {func(f *facts) {
			f.claim.TokenID, f.claim.Limits = "", tokens.Limits{}
			f.claim.Past = tokens.ReleasedClaim{Until: f.now.Add(time.Hour), CertificateDuration: 2 * time.Hour}
		}, 2 * time.Hour, ""},
		"released, over": {func(f *facts) {
			f.claim.TokenID, f.claim.Limits = "", tokens.Limits{}
			f.claim.Past = tokens.ReleasedClaim{Until: f.now, CertificateDuration: 2 * time.Hour}
		}, 2 * time.Hour, ""},
	} {
		f := usual()
		test.change(&f)
		if g, err := decide(f); err != nil || g.token.duration != test.duration || g.token.role != test.role {
			t.Errorf("%s: got %+v, %v, want duration %s and role %q", name, g.token, err, test.duration, test.role)
		}
	}
}

func TestBound(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*facts)
		reason string
	}{
		"first key":           {change: func(f *facts) { f.claim.Identity.BoundKey = "" }},
		"same key":            {},
		"another key":         {func(f *facts) { f.claim.Identity.BoundKey = "sha256:x" }, "KeyNotCurrent"},
		"expired certificate": {func(f *facts) { f.request.cert.NotAfter = f.now }, "RejoinTooLate"},
		"by a bound key":      {func(f *facts) { f.request.key, f.request.cert = boundKey, nil }, "RejoinTooLate"},
		"old key":             {func(f *facts) { f.request.key = oldKey }, "KeyNotCurrent"},
		"replayed":            {func(f *facts) { f.claim.Identity.Challenge = f.request.made }, "ChallengeUsed"},
	} {
		f := usual()
		f.request.bind, f.request.cert.NotAfter = boundKey, f.now.Add(time.Hour)
		if test.change != nil {
			test.change(&f)
		}
		c, err := bound(f)
		var refused *approval.Refused
		switch {
		case test.reason == "" && (err != nil || c.Identity.BoundKey != boundKey || !c.Identity.Challenge.Equal(f.request.made) || len(c.Identity.Rejoins) > 0):
			t.Errorf("%s: got %+v, %v, want the key bound", name, c.Identity, err)
		case test.reason != "" && (!errors.As(err, &refused) || refused.Reason != test.reason):
			t.Errorf("%s: got %v, want a refusal with reason %s", name, err, test.reason)
		}
	}
}
