package admission_test

import (
	"bytes"
	"context"
	"crypto/elliptic"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// hooks run a function, or return an error, at one step of an admission.
type hooks struct {
	updates int                        // number of claim updates so far
	update  func(n int, node string)   // called before the nth update of a claim
	create  error                      // of Create of a claim
	find    error                      // of Find of a claim
	ofToken error                      // of cached HeldBy
	get     func(*tokens.Record) error // of Get of a token
	node    func(calls int) (string, error)
	asked   int // number of Node reads
}

// faults run the hooks.
func (b *hooks) faults(c *storetest.Call, do func() error) error {
	switch c.Method {
	case "Claims.Update":
		if b.updates++; b.update != nil {
			b.update(b.updates, c.Key)
		}
	case "Claims.Create":
		if b.create != nil {
			return b.create
		}
	case "Claims.Find":
		if b.find != nil {
			return b.find
		}
	case "Claims.HeldBy.cached":
		if b.ofToken != nil {
			return b.ofToken
		}
	case "Store.Get":
		if err := do(); err != nil || b.get == nil {
			return err
		}
		return b.get(&c.Records[0])
	}
	return do()
}

func (b *hooks) admission(c *cluster) *admission.Nodes {
	n := c.admissionWith(b.faults)
	if b.node != nil {
		n.Node = func(context.Context, string) (string, error) { b.asked++; return b.node(b.asked) }
	}
	return n
}

// change changes the claim of a node while an admission runs.
func (c *cluster) change(node string, change func(*tokens.Claim)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	claim := c.claims[node].Clone()
	change(&claim)
	c.claims[node] = claim
}

// A claim that was deleted and created again has another UID, even with the same version. A request must not write over
// it what it has planned for the first one.
func TestWritesOverOnlyTheClaimItHasRead(t *testing.T) {
	c := newCluster()
	past := tokens.ReleasedClaim{Until: time.Now().Add(time.Hour).Truncate(time.Second)}
	c.claims["worker-1"] = tokens.Claim{Node: "worker-1", UID: "1", Version: "1", Created: time.Now(), Past: past}
	b := &hooks{}
	b.update = func(n int, node string) {
		if n == 1 {
			c.change(node, func(claim *tokens.Claim) { claim.UID = "another" })
		}
	}
	if _, err := admit(t.Context(), b.admission(c), firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{MaxNodes: 1})), "worker-1", nil)); err != nil {
		t.Fatal(err)
	}
	if claim := c.claims["worker-1"]; b.updates != 2 || claim.UID != "another" || claim.Past != past {
		t.Errorf("after %d updates the claim is %+v, want two and the claim of the other UID", b.updates, claim)
	}
}

// The Node of a claim registers while another machine requests its name. The claim must not be released.
func TestKeepsClaimWhoseNodeHasJustRegistered(t *testing.T) {
	for _, existing := range []bool{false, true} {
		c := newCluster()
		c.mustAdmit(t, firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{MaxNodes: 1})), "worker-1", nil))
		c.change("worker-1", func(claim *tokens.Claim) { claim.NodeUID = "node-1" })
		c.refreshCaches()
		before, read := c.claims["worker-1"], false
		n := c.admissionWith(storetest.Before(func() error { read = true; return nil }, "Claims.Get"))
		n.Node = func(context.Context, string) (string, error) {
			if !read {
				return "", tokens.ErrNotFound
			}
			return "node-1", nil
		}
		want := "NodeExists"
		if n.AllowExisting = existing; existing {
			want = "NodeNameClaimed"
		}
		_, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{MaxNodes: 1})), "worker-1", nil))
		wantRefused(t, fmt.Sprintf("existing %t", existing), err, want)
		if !c.claims["worker-1"].Equal(before) {
			t.Errorf("got claim %+v, want it unchanged: %+v", c.claims["worker-1"], before)
		}
	}
}

// Admission must not rely on a stale cache of the token.
func TestAdmissionReadsTokenLive(t *testing.T) {
	for name, test := range map[string]struct {
		now  func(c *cluster, id string)
		want string // reason of the refusal; empty: admitted
	}{
		"deleted":   {func(c *cluster, id string) { delete(c.records, id) }, "TokenRevoked"},
		"no limits": {func(c *cluster, id string) { c.editToken(id, func(r *tokens.Record) { r.Limits = tokens.Limits{} }) }, ""},
		"names only": {func(c *cluster, id string) {
			c.editToken(id, func(r *tokens.Record) { r.Limits = tokens.Limits{NodeNames: []string{"worker-1"}} })
		}, ""},
	} {
		c := newCluster()
		token := c.createToken(tokens.Limits{MaxNodes: 1})
		c.freezeCaches()
		test.now(c, token.ID())
		_, err := admit(t.Context(), c.admission(), firstRequest(t, bootstrapUser(token), "worker-1", nil))
		if test.want != "" {
			wantRefused(t, name, err, test.want)
		} else if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if r := c.records[token.ID()]; len(r.Nodes) > 0 {
			t.Errorf("%s: got counted names %q on a token without a node limit, want none", name, r.Nodes)
		}
	}
}

// Only tokens without limits may be cached for a second. A token for certain names is read live for each request.
func TestReadsTokenWithLimitsForEachRequest(t *testing.T) {
	c := newCluster()
	token := c.createToken(tokens.Limits{NodeNames: []string{"worker-*"}})
	n := c.admission()
	if _, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(token), "worker-1", nil)); err != nil {
		t.Fatal(err)
	}
	delete(c.records, token.ID())
	_, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(token), "worker-2", nil))
	wantRefused(t, "deleted", err, "TokenRevoked")
}

// A token with malformed limits is refused, even if its claims have the original limits.
func TestRefusesMalformedTokenWithClaims(t *testing.T) {
	problem := errors.New("max-nodes: x given")
	for name, test := range map[string]struct {
		edit func(*tokens.Record)
		want string
	}{
		"limits": {func(r *tokens.Record) { r.Limits = tokens.Limits{Problem: problem} }, "TokenLimitsMalformed"},
		"record": {func(r *tokens.Record) { r.Problem, r.Limits = problem, tokens.Limits{} }, "TokenRevoked"},
	} {
		c := newCluster()
		token := c.createToken(tokens.Limits{MaxNodes: 3})
		c.mustAdmit(t, firstRequest(t, bootstrapUser(token), "worker-1", nil))
		c.editToken(token.ID(), func(r *tokens.Record) { r.Nodes = nil; test.edit(r) })
		c.refreshCaches()
		c.calls = 0
		_, err := admit(t.Context(), c.admission(), firstRequest(t, bootstrapUser(token), "worker-2", nil))
		wantRefused(t, name, err, test.want)
		if _, found := c.claims["worker-2"]; found {
			t.Errorf("%s: got a claim, want none", name)
		}
		if lists := c.writes["list"]; lists > 1 { // one list is that of the first machine
			t.Errorf("%s: got %d lists of claims, want at most 1", name, lists)
		}
	}
}

// If the cache of a store fails, the request is neither admitted nor refused.
func TestFailedCacheNeitherAdmitsNorRefuses(t *testing.T) {
	failed := errors.New("not synced")
	c := newCluster()
	token := c.createToken(tokens.Limits{MaxNodes: 2})
	c.mustAdmit(t, firstRequest(t, bootstrapUser(token), "worker-1", nil))
	c.refreshCaches()
	standalone := func(b *hooks) *admission.Nodes { n := b.admission(c); n.Node, n.Ready = nil, nil; return n }
	for name, err := range map[string]error{
		"cached HeldBy": func() error {
			_, err := admit(t.Context(), (&hooks{ofToken: failed}).admission(c), firstRequest(t, bootstrapUser(token), "worker-2", nil))
			return err
		}(),
		"Find, for a serving certificate": func() error {
			_, err := admit(t.Context(), standalone(&hooks{find: failed}), servingRequest(t, "worker-1"))
			return err
		}(),
	} {
		if !errors.Is(err, failed) || approval.Refused(err) != nil {
			t.Errorf("%s fails: got %v, want its error", name, err)
		}
	}
}

// A Secret that is not a token, or a Lease that is not a claim, must lead to a refusal, not to endless retries. The
// refused request takes no slot.
func TestRefusesForeignSecretOrLease(t *testing.T) {
	c := newCluster()
	token := c.createToken(tokens.Limits{NodeNames: []string{"worker-1"}})
	_, err := admit(
		t.Context(), (&hooks{get: func(*tokens.Record) error { return fmt.Errorf("secret: %w", tokens.ErrMalformed) }}).admission(c),
		firstRequest(t, bootstrapUser(token), "worker-1", nil))

	wantRefused(t, "malformed Secret", err, "TokenRevoked")
	for _, token := range []tokens.Token{token, c.createToken(tokens.Limits{MaxNodes: 1})} {
		_, err = admit(t.Context(), (&hooks{create: fmt.Errorf("lease: %w", tokens.ErrExists)}).admission(c), firstRequest(t, bootstrapUser(token), "worker-1", nil))
		wantRefused(t, "foreign Lease", err, "NodeNameNotAllowed", "an object that is not a claim has this name")
		if r := c.records[token.ID()]; len(r.Nodes) > 0 {
			t.Errorf("the token counts %q, want none", r.Nodes)
		}
	}
}

// If kubejoin cannot read whether a Node is Ready, a token that replaces a Node admits as many keys as any other.
func TestReplacementWithoutReadyAdmitsUsualKeys(t *testing.T) {
	c := newCluster()
	uid := c.node("worker-1")
	token := c.createToken(tokens.Limits{Replaces: tokens.NodeRef{Name: "worker-1", UID: uid}})
	n := c.admission()
	n.Ready = nil
	for key := range tokens.MaxKeys {
		if a, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(token), "worker-1", csrtest.ECDSA(elliptic.P256()))); err != nil || a.Keys != key+1 {
			t.Errorf("key %d: got %+v, %v", key+1, a, err)
		}
	}
	_, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(token), "worker-1", csrtest.ECDSA(elliptic.P256())))
	wantRefused(t, "one more", err, "TooManyKeys")
}

// The signer alone sets the duration of serving certificates, and they do not wait for the Node.
func TestServingCertificateIgnoresTheClaim(t *testing.T) {
	c := newCluster()
	c.mustAdmit(t, firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{MaxNodes: 1, CertificateDuration: time.Hour})), "worker-1", nil))
	c.refreshCaches()
	standalone := c.admission()
	standalone.Node = nil
	for _, n := range []*admission.Nodes{c.admission(), standalone} {
		a, err := admit(t.Context(), n, servingRequest(t, "worker-1"))
		if err != nil || a.Duration != 0 || a.TokenID != "" {
			t.Errorf("got %+v, %v, want an admission without a duration", a, err)
		}
	}
}

// What remains of a released claim has no effect after its time, even if the cleaner has not deleted it yet.
func TestExpiredReleasedClaimSetsNoDuration(t *testing.T) {
	for _, standalone := range []bool{false, true} {
		c := newCluster()
		c.node("worker-1")
		past := tokens.ReleasedClaim{Until: time.Now().Add(-time.Minute).Truncate(time.Second), CertificateDuration: time.Hour}
		c.claims["worker-1"] = tokens.Claim{Node: "worker-1", UID: "1", Version: "1", Created: time.Now(), Past: past}
		n := c.admission()
		if standalone {
			n.Node = nil
		}
		if a, err := admit(t.Context(), n, renewal(t, "worker-1")); err != nil || a.Duration != 0 {
			t.Errorf("standalone %t: got %+v, %v, want a renewal without a duration", standalone, a, err)
		}
	}
}

// A request that no signer would sign must not leave a claim.
func TestUnsignableRequestLeavesNoClaim(t *testing.T) {
	c := newCluster()
	token := c.createToken(tokens.Limits{MaxNodes: 1})
	r := firstRequest(t, bootstrapUser(token), "worker-1", csrtest.Ed25519())
	csr := *r.CSR
	csr.PublicKey, csr.PublicKeyAlgorithm = nil, x509.UnknownPublicKeyAlgorithm
	r.CSR = &csr
	if _, err := admit(t.Context(), c.admission(), r); approval.Refused(err) == nil || !strings.Contains(err.Error(), "want RSA, ECDSA or Ed25519") {
		t.Errorf("got %v, want a refusal of the key", err)
	}
	if len(c.claims) > 0 {
		t.Errorf("got claims %v, want none", c.claims)
	}
}

// The log reports a new claim also if the name had a released claim.
func TestLogsNewClaimOfReleasedName(t *testing.T) {
	c := newCluster()
	c.claims["worker-1"] = tokens.Claim{Node: "worker-1", UID: "1", Version: "1", Created: time.Now(), Past: tokens.ReleasedClaim{Until: time.Now().Add(time.Hour).Truncate(time.Second)}}
	var log bytes.Buffer
	n := c.admission()
	n.Logger = slog.New(slog.NewTextHandler(&log, nil))
	if _, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{MaxNodes: 1})), "worker-1", nil)); err != nil {
		t.Fatal(err)
	}
	if got := log.String(); !strings.Contains(got, "level=INFO") || !strings.Contains(got, `msg="node name claimed"`) || strings.Contains(got, "level=WARN") {
		t.Errorf("got log %q, want a new claim", got)
	}
}

// Admitting the same request again reads the token and the claim, and the token again if it counts nodes. It writes
// nothing.
func TestRepeatedAdmissionWritesNothing(t *testing.T) {
	for name, test := range map[string]struct {
		limits tokens.Limits
		want   map[string]int
	}{
		"a token for one node": {tokens.Limits{MaxNodes: 1}, map[string]int{"read": 3}},
		"a token for a name":   {tokens.Limits{NodeNames: []string{"worker-1"}}, map[string]int{"read": 2, "list": 1}},
	} {
		c := newCluster()
		r := firstRequest(t, bootstrapUser(c.createToken(test.limits)), "worker-1", nil)
		c.mustAdmit(t, r)
		c.refreshCaches()
		clear(c.writes)
		c.mustAdmit(t, r)
		if !maps.Equal(c.writes, test.want) {
			t.Errorf("%s: got calls %v, want %v", name, c.writes, test.want)
		}
	}
}

// A renewal that does not change the claim reads it from the cache. A name that cannot have a claim costs no read
// at all.
func TestRenewalReadsClaimFromCache(t *testing.T) {
	c := newCluster()
	c.mustAdmit(t, firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{MaxNodes: 1})), "worker-1", nil))
	c.node("worker-1")
	c.refreshCaches()
	b := &hooks{}
	if _, err := admit(t.Context(), b.admission(c), renewal(t, "worker-1")); err != nil || b.updates != 0 {
		t.Errorf("got %v after %d updates of the claim, want none", err, b.updates)
	}
	c.node("Worker_1")
	if _, err := admit(t.Context(), (&hooks{find: errInjected}).admission(c), renewal(t, "Worker_1")); err != nil {
		t.Errorf("name that cannot have a claim: %v", err)
	}
}

// With --existing-nodes=allow the Node makes no difference, so admission must not read it.
func TestDoesNotReadNodeIfExistingNodesAreAllowed(t *testing.T) {
	c := newCluster()
	b := &hooks{node: func(int) (string, error) { return "", errInjected }}
	n := b.admission(c)
	n.AllowExisting = true
	if _, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{MaxNodes: 1})), "worker-1", nil)); err != nil || b.asked != 0 {
		t.Errorf("got %v after %d reads of the Node, want none", err, b.asked)
	}
}

// A refused kubelet retries all the time. With a spent token it must not create claims that have to be undone.
func TestSpentTokenWritesNothing(t *testing.T) {
	c := newCluster()
	token := c.createToken(tokens.Limits{MaxNodes: 1})
	c.mustAdmit(t, firstRequest(t, bootstrapUser(token), "worker-1", nil))
	c.refreshCaches()
	clear(c.writes)
	_, err := admit(t.Context(), c.admission(), firstRequest(t, bootstrapUser(token), "worker-2", nil))
	wantRefused(t, "spent", err, "TokenSpent")
	if c.writes["claim"] != 0 || c.writes["token"] != 0 {
		t.Errorf("got calls %v, want no write", c.writes)
	}
}

// If the claim of another request disappears between two calls, the name is free.
func TestAdmitsIfOtherClaimDisappears(t *testing.T) {
	c := newCluster()
	token := c.createToken(tokens.Limits{MaxNodes: 1})
	exists := tokens.ErrExists
	n := c.admissionWith(storetest.Before(func() (err error) { err, exists = exists, nil; return err }, "Claims.Create"))
	if _, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(token), "worker-1", nil)); err != nil {
		t.Error(err)
	}
}

// An operator may extend an expired token, so a refusal must not be cached.
func TestDoesNotCacheRefusals(t *testing.T) {
	c := newCluster()
	token := c.createToken(tokens.Limits{})
	c.editToken(token.ID(), func(r *tokens.Record) { r.Expires = time.Now().Add(-time.Minute) })
	n := c.admission()
	_, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(token), "worker-1", nil))
	wantRefused(t, "expired", err, "TokenExpired")
	c.editToken(token.ID(), func(r *tokens.Record) { r.Expires = time.Time{} })
	if _, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(token), "worker-1", nil)); err != nil {
		t.Error(err)
	}
}
