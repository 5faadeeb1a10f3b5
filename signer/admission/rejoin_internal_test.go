package admission

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
)

var (
	oldKey   = pkcs10.IDOfKey([]byte("old"))
	firstKey = pkcs10.IDOfKey([]byte("first"))
	lastKey  = pkcs10.IDOfKey([]byte("last"))
	boundKey = pkcs10.IDOfKey([]byte("bound"))
	newKey   = pkcs10.IDOfKey([]byte("new"))
)

func credentials(keys ...string) (all []tokens.Credential) {
	for _, key := range keys {
		all = append(all, tokens.Credential{Key: key})
	}
	return all
}

func keysOf(i tokens.Identity) (keys []string) {
	for _, c := range i.Credentials {
		keys = append(keys, c.Key)
	}
	return keys
}

// rejoining are the facts of a rejoin without the claim, and its request.
type rejoining struct {
	facts
	proof approval.Rejoin
	spki  string // of the request
}

// plan is planRejoin for the claim of the node.
func (f rejoining) plan(c tokens.Claim) (plan, approval.Request) {
	f.claim = c
	r := approval.Request{User: "system:node:worker-1", Groups: []string{"system:nodes"}, Rejoin: &f.proof, CSR: &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:worker-1"}, RawSubjectPublicKeyInfo: []byte(f.spki),
	}}
	return planRejoin(f.facts, r), r
}

// usual returns the claim of a node that was off for a day, and its rejoin.
func usual() (tokens.Claim, rejoining) {
	now := time.Date(2030, 1, 31, 12, 0, 0, 500, time.UTC)
	end := now.Add(-24 * time.Hour).Truncate(time.Second)
	claim := tokens.Claim{Node: "worker-1", TokenID: "abc123", Limits: tokens.Limits{MaxNodes: 1, CertificateDuration: time.Hour}, NodeUID: "uid", Identity: tokens.Identity{
		NodeUID: "uid", Credentials: credentials(firstKey, lastKey), NotAfter: end, Bound: tokens.Credential{Key: boundKey}, TokenID: "abc123",
	}}
	return claim, rejoining{
		facts: facts{rules: rules{nodes: true, window: 30 * 24 * time.Hour, budget: 3, now: now}, nodeUID: "uid"},
		proof: approval.Rejoin{Key: lastKey, NotAfter: end}, spki: "new",
	}
}

// ago returns whole seconds, as claims have them.
func (f *rejoining) ago(d time.Duration) time.Time { return f.now.Add(-d).Truncate(time.Second) }

func (f *rejoining) bound() { f.proof = approval.Rejoin{Key: boundKey} }

func TestRejoinNeedsCurrentKeyWindowAndBudget(t *testing.T) {
	const window, day = 30 * 24 * time.Hour, 24 * time.Hour
	type claim = tokens.Claim
	for name, test := range map[string]struct {
		change  func(*claim, *rejoining)
		reason  string   // empty: the node may rejoin
		text    string   // in the message
		keys    []string // with the certificate, before the new key
		rejoins int      // counted after it; zero means 1
	}{
		"last key":             {keys: []string{lastKey}},
		"key before it":        {change: func(_ *claim, f *rejoining) { f.proof.Key = firstKey }, keys: []string{firstKey, lastKey}},
		"bound key":            {change: func(_ *claim, f *rejoining) { f.bound() }, keys: []string{lastKey}},
		"released claim":       {change: func(c *claim, _ *rejoining) { c.TokenID, c.Limits, c.NodeUID = "", tokens.Limits{}, "" }, keys: []string{lastKey}},
		"allowed by its token": {change: func(c *claim, _ *rejoining) { c.Limits.Rejoin = tokens.RejoinAllow }, keys: []string{lastKey}},
		"no Nodes": {change: func(c *claim, f *rejoining) {
			f.nodes, f.nodeUID, c.Identity.NodeUID, c.NodeUID = false, "", "", ""
		}, keys: []string{lastKey}},

		"no window":                         {change: func(_ *claim, f *rejoining) { f.window = 0 }, reason: ReasonRejoinOff, text: "--rejoin-window"},
		"no window, bound key":              {change: func(_ *claim, f *rejoining) { f.window = 0; f.bound() }, reason: ReasonRejoinOff, text: "--rejoin-window"},
		"token denies":                      {change: func(c *claim, _ *rejoining) { c.Limits.Rejoin = tokens.RejoinDeny }, reason: ReasonRejoinOff, text: "the token with which"},
		"token denied, released since":      {change: func(c *claim, _ *rejoining) { *c = c.AfterRelease(tokens.ReleasedClaim{Rejoin: tokens.RejoinDeny}) }, reason: ReasonRejoinOff, text: "the token with which"},
		"restored disk":                     {change: func(_ *claim, f *rejoining) { f.proof.Key = oldKey }, reason: ReasonKeyNotCurrent, text: "old copy of the disk"},
		"no claim":                          {change: func(c *claim, _ *rejoining) { *c = claim{Node: "worker-1"} }, reason: ReasonKeyNotCurrent, text: "knows no key"},
		"no claim, no key":                  {change: func(c *claim, f *rejoining) { *c, f.proof.Key = claim{Node: "worker-1"}, "" }, reason: ReasonKeyNotCurrent, text: "knows no key"},
		"only a bound key":                  {change: func(c *claim, f *rejoining) { c.Identity.Credentials = nil; f.bound() }, reason: ReasonKeyNotCurrent, text: "knows no key"},
		"another bound key":                 {change: func(c *claim, f *rejoining) { f.bound(); c.Identity.Bound.Key = oldKey }, reason: ReasonKeyNotCurrent, text: "not bound"},
		"unbound by now":                    {change: func(c *claim, f *rejoining) { f.bound(); c.Identity.Bound.Key = "" }, reason: ReasonKeyNotCurrent, text: "not bound"},
		"unbound by now, no key":            {change: func(c *claim, f *rejoining) { f.proof, c.Identity.Bound.Key = approval.Rejoin{}, "" }, reason: ReasonKeyNotCurrent, text: "not bound"},
		"key of a certificate, self-signed": {change: func(_ *claim, f *rejoining) { f.proof.NotAfter = time.Time{} }, reason: ReasonKeyNotCurrent, text: "not bound"},
		"bound key in a certificate":        {change: func(_ *claim, f *rejoining) { f.proof.Key = boundKey }, reason: ReasonKeyNotCurrent, text: "not a current one"},

		"window passed": {change: func(c *claim, f *rejoining) {
			f.proof.NotAfter = f.ago(window)
		}, reason: ReasonRejoinTooLate, text: "--replace-node worker-1"},
		"older certificate of a current key": {change: func(c *claim, f *rejoining) {
			f.proof.Key, f.proof.NotAfter = firstKey, f.ago(window+day)
		}, reason: ReasonRejoinTooLate, text: "the certificate of node worker-1"},
		"window passed, bound key": {change: func(c *claim, f *rejoining) { f.bound(); c.Identity.NotAfter = f.ago(window) }, reason: ReasonRejoinTooLate, text: "the last certificate"},
		"last second of the window": {change: func(c *claim, f *rejoining) {
			f.proof.NotAfter, c.Identity.NotAfter = f.ago(window-time.Second), f.ago(window-time.Second)
		}, keys: []string{lastKey}},

		"Node deleted":       {change: func(_ *claim, f *rejoining) { f.nodeUID = "" }, reason: ReasonNodeNotFound, text: "--max-nodes 1 --node-name worker-1"},
		"Node created again": {change: func(_ *claim, f *rejoining) { f.nodeUID = "other" }, reason: ReasonNodeReplaced, text: "UID uid before, other now"},
		"Node not seen":      {change: func(c *claim, _ *rejoining) { c.Identity.NodeUID = "" }, reason: ReasonNodeReplaced, text: "retry in a minute"},

		"request for the proven key":           {change: func(_ *claim, f *rejoining) { f.spki = "last" }, reason: ReasonKeyReused, text: "make a new key"},
		"request for the bound key":            {change: func(_ *claim, f *rejoining) { f.spki = "bound" }, reason: ReasonKeyReused, text: "make a new key"},
		"bound key, request for the bound key": {change: func(_ *claim, f *rejoining) { f.bound(); f.spki = "bound" }, reason: ReasonKeyReused},

		"budget spent": {change: func(c *claim, f *rejoining) {
			c.Identity.Rejoins = []time.Time{f.ago(29 * day), f.ago(2 * day), f.ago(day)}
		}, reason: ReasonRejoinBudgetSpent, text: "3 times"},
		"budget of the window before": {change: func(c *claim, f *rejoining) {
			c.Identity.Rejoins = []time.Time{f.ago(window), f.ago(2 * day), f.ago(day)}
		}, keys: []string{lastKey}, rejoins: 3},
		"lost response": {change: func(c *claim, f *rejoining) {
			c.Identity.Rejoins, c.Identity.Credentials, c.Identity.NotAfter = []time.Time{f.ago(3 * day), f.ago(2 * day), f.ago(time.Minute)}, credentials(lastKey, newKey), f.ago(-time.Hour)
		}, keys: []string{lastKey, newKey}, rejoins: 3},
		"lost response, bound key": {change: func(c *claim, f *rejoining) {
			f.bound()
			c.Identity.Rejoins, c.Identity.Credentials, c.Identity.NotAfter = []time.Time{f.ago(3 * day), f.ago(2 * day), f.ago(time.Minute)}, credentials(lastKey, newKey), f.ago(-time.Hour)
		}, keys: []string{lastKey}, rejoins: 3},
		"same key, but its certificate has expired": {change: func(c *claim, f *rejoining) {
			f.bound()
			c.Identity.Rejoins, c.Identity.Credentials = []time.Time{f.ago(3 * day), f.ago(2 * day), f.ago(day)}, credentials(lastKey, newKey)
		}, reason: ReasonRejoinBudgetSpent},
		"key of a renewal, never rejoined": {change: func(c *claim, f *rejoining) {
			f.bound()
			c.Identity.Credentials, c.Identity.NotAfter = credentials(lastKey, newKey), f.ago(-time.Hour)
		}, keys: []string{lastKey}},
	} {
		t.Run(name, func(t *testing.T) {
			c, f := usual()
			if test.change != nil {
				test.change(&c, &f)
			}
			before := c.Clone()
			p, request := f.plan(c)
			got, err := p.next, p.err
			if !c.Equal(before) {
				t.Error("planRejoin has changed the claim that it was given")
			}
			var refused *approval.Error
			if test.reason != "" {
				if !errors.As(err, &refused) || refused.Verdict != approval.Deny || refused.Reason != test.reason || !strings.Contains(refused.Message, test.text) {
					t.Errorf("got %v, want a refusal with reason %s and %q", err, test.reason, test.text)
				}
				if !got.Equal(before) {
					t.Errorf("the refusal changes the claim to %+v", got)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got = withCertificate(got, tokens.Identity{NodeUID: f.nodeUID, Credentials: credentials(newKey)}, request)
			if keys, want := keysOf(got.Identity), append(test.keys, newKey); !slices.Equal(keys, want) || len(got.Identity.Rejoins) != max(1, test.rejoins) {
				t.Errorf("got keys %q and %d rejoins, want %q and %d", keys, len(got.Identity.Rejoins), want, max(1, test.rejoins))
			}
			if i := got.Identity; i.Bound.Key != boundKey || i.TokenID != "abc123" || i.NodeUID != before.Identity.NodeUID || !got.Limits.Equal(before.Limits) {
				t.Errorf("got %+v, want all else as before", got)
			}
			if err := got.Check(); err != nil {
				t.Error(err)
			}
			if !f.nodes && got.NodeUID != tokens.ByCertificate {
				t.Errorf("got NodeUID %q, want the claim to say that the machine has joined", got.NodeUID)
			}
		})
	}
}

// After a rejoin the released claim of a node must still limit the lifetime of its renewals.
func TestRejoinKeepsPastAlive(t *testing.T) {
	c, f := usual()
	c.TokenID, c.Limits, c.NodeUID = "", tokens.Limits{}, ""
	c.Past = tokens.ReleasedClaim{Until: f.ago(time.Hour), CertificateDuration: 2 * time.Hour}
	p, r := f.plan(c)
	must.OK(t, p.err)
	f.claim, f.now = p.next, f.now.Add(time.Hour)
	if p := planRenewal(f.facts, r); p.err != nil || p.admitted.Duration != 2*time.Hour {
		t.Errorf("renewal after the rejoin: got lifetime %s, %v, want 2h", p.admitted.Duration, p.err)
	}
}

// The Node of a machine may register again as long as its certificate is valid. It must then get the same labels.
func TestCertificateKeepsPastAlive(t *testing.T) {
	labels := tokens.ReleasedClaim{Node: tokens.NodeProperties{Labels: "a=b"}}
	for name, test := range map[string]struct {
		past tokens.ReleasedClaim
		user string // empty if it rejoins
		want bool
	}{
		"renewal":                {past: labels, user: "system:node:worker-1", want: true},
		"renewal, cannot rejoin": {past: tokens.ReleasedClaim{Rejoin: tokens.RejoinDeny}, user: "system:node:worker-1", want: true},
		"rejoin":                 {past: labels, want: true},
		"new machine":            {past: labels, user: "system:bootstrap:abc123"},
	} {
		c, f := usual()
		_, r := f.plan(c)
		if test.user != "" {
			r.Rejoin, r.User = nil, test.user
		}
		end := f.ago(-365 * 24 * time.Hour)
		test.past.Until = f.ago(-time.Hour)
		f.claim = tokens.Claim{Node: c.Node, Identity: c.Identity, Past: test.past}
		p := planCertificate(f.facts, r, Admitted{}, tokens.Identity{Credentials: credentials(newKey), NotAfter: end})
		if got := p.next.Past; p.err != nil || got.Active(end) != test.want {
			t.Errorf("%s: got %+v, %v, want it to last until %s: %t", name, got, p.err, end, test.want)
		}
	}
}

func TestStrangerHasAnotherCertificate(t *testing.T) {
	own, other := revocation.FingerprintOf(&x509.Certificate{Raw: []byte("own")}), revocation.FingerprintOf(&x509.Certificate{Raw: []byte("other")})
	known := tokens.Identity{Credentials: []tokens.Credential{{Fingerprint: string(own)}}}
	for name, test := range map[string]struct {
		identity tokens.Identity
		by       []string // credential IDs
		want     bool
	}{
		"own certificate":     {known, []string{own.CredentialID()}, false},
		"another certificate": {known, []string{other.CredentialID()}, true},
		"unknown certificate": {known, nil, false},
		"unknown node":        {tokens.Identity{}, []string{other.CredentialID()}, false},
	} {
		r := approval.Request{User: "system:node:worker-1", Groups: []string{"system:nodes"}, Extra: map[string][]string{revocation.CredentialIDKey: test.by}}
		if got := isStranger(test.identity, r); got != test.want {
			t.Errorf("%s: got %t, want %t", name, got, test.want)
		}
	}
}
