package admission_test

import (
	"bytes"
	"context"
	"crypto/elliptic"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
)

// hooks is a cluster's claims and tokens in which something happens, or fails, at one step of an admission.
type hooks struct {
	updates int                        // of claims, so far
	update  func(n int, node string)   // called before the nth update of a claim
	create  error                      // of Create of a claim
	find    error                      // of Find of a claim
	ofToken error                      // of OfToken
	get     func(*tokens.Record) error // of Get of a token
	node    func(calls int) (string, error)
	asked   int // how often for a Node
}

type hookedClaims struct {
	claims
	b *hooks
}

func (s hookedClaims) Update(ctx context.Context, node string, change func(*tokens.Claim) error) (tokens.Claim, error) {
	if s.b.updates++; s.b.update != nil {
		s.b.update(s.b.updates, node)
	}
	return s.claims.Update(ctx, node, change)
}

func (s hookedClaims) Create(ctx context.Context, c tokens.Claim) (tokens.Claim, error) {
	if s.b.create != nil {
		return c, s.b.create
	}
	return s.claims.Create(ctx, c)
}

func (s hookedClaims) Find(ctx context.Context, node string) (tokens.Claim, error) {
	if s.b.find != nil {
		return tokens.Claim{}, s.b.find
	}
	return s.claims.Find(ctx, node)
}

func (s hookedClaims) OfToken(ctx context.Context, id string) ([]tokens.Claim, error) {
	if s.b.ofToken != nil {
		return nil, s.b.ofToken
	}
	return s.claims.OfToken(ctx, id)
}

type hookedTokens struct {
	store
	b *hooks
}

func (s hookedTokens) Get(ctx context.Context, id string) (tokens.Record, error) {
	r, err := s.store.Get(ctx, id)
	if err == nil && s.b.get != nil {
		err = s.b.get(&r)
	}
	return r, err
}

func (b *hooks) admission(c *cluster) *admission.Nodes {
	n := c.admission()
	n.Claims, n.Tokens = hookedClaims{claims{cluster: c}, b}, hookedTokens{store{cluster: c}, b}
	if b.node != nil {
		n.Node = func(context.Context, string) (string, error) { b.asked++; return b.node(b.asked) }
	}
	return n
}

// change changes the claim of a node behind the admission's back.
func (c *cluster) change(node string, change func(*tokens.Claim)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	claim := c.claims[node].Clone()
	change(&claim)
	c.claims[node] = claim
}

// A claim is another one after it was deleted and made again, whatever its version: the request whose name was counted
// for the first one does not confirm it.
func TestConfirmsOnlyTheCountedClaim(t *testing.T) {
	c := newCluster()
	token := c.createToken(tokens.Limits{MaxNodes: 2})
	b := &hooks{}
	b.update = func(n int, node string) {
		if n == 1 { // the name is counted, and not confirmed
			c.change(node, func(claim *tokens.Claim) { claim.UID, claim.Keys = "another", []string{"sha256:1"} })
		}
	}
	r := firstRequest(t, bootstrapUser(token), "worker-1", nil)
	if _, err := b.admission(c).Admit(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if claim := c.claims["worker-1"]; b.updates < 3 || !claim.HasKey(keyOf(r)) || claim.UID != "another" {
		t.Errorf("after %d updates the claim is %+v, want the key added to the other claim", b.updates, claim)
	}
}

// What was confirmed between the reading of a claim and its undoing is not undone.
func TestUndoLeavesConfirmedClaim(t *testing.T) {
	c := newCluster()
	token := c.createToken(tokens.Limits{MaxNodes: 1})
	r := firstRequest(t, bootstrapUser(token), "worker-1", nil)
	claim := abandoned(token)
	claim.Keys, claim.Requests = []string{keyOf(r), "sha256:2"}, []string{r.UID}
	c.claims["worker-1"] = claim
	b := &hooks{update: func(n int, node string) {
		if n == 1 {
			c.change(node, func(claim *tokens.Claim) { claim.Pending, claim.Version = false, "7" })
		}
	}}
	if err := b.admission(c).Withdraw(t.Context(), r); err != nil || b.updates != 1 {
		t.Fatalf("%v after %d updates, want one", err, b.updates)
	}
	if claim := c.claims["worker-1"]; !claim.HasKey(keyOf(r)) {
		t.Errorf("the claim that was confirmed lost its key: %+v", claim)
	}
}

// A pending claim that was deleted and made again, with the same version, keeps its key.
func TestEvictsOnlyThePendingClaimItHasRead(t *testing.T) {
	c := newCluster()
	token := c.createToken(tokens.Limits{MaxNodes: 2})
	pending := abandoned(token)
	pending.Node, pending.Created = "worker-2", time.Now()
	c.claims["worker-2"] = pending
	b := &hooks{update: func(_ int, node string) {
		if node == "worker-2" {
			c.change(node, func(claim *tokens.Claim) { claim.UID, claim.Keys = "another", []string{"sha256:2"} })
		}
	}}
	_, err := b.admission(c).Admit(t.Context(), firstRequest(t, bootstrapUser(token), "worker-1", nil))
	if err == nil || errors.As(err, new(*approval.Refused)) {
		t.Errorf("%v, want an error that may pass", err)
	}
	if claim := c.claims["worker-2"]; !claim.HasKey("sha256:2") {
		t.Errorf("the other claim lost its key: %+v", claim)
	}
}

// The Node of a claim registers while another machine asks for its name: the claim is not released.
func TestKeepsClaimWhoseNodeHasJustRegistered(t *testing.T) {
	for _, existing := range []bool{false, true} {
		c := newCluster()
		c.mustAdmit(t, firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{MaxNodes: 1})), "worker-1", nil))
		c.change("worker-1", func(claim *tokens.Claim) { claim.NodeUID = "node-1" })
		before := c.claims["worker-1"]
		b := &hooks{node: func(calls int) (string, error) {
			if calls == 1 && !existing {
				return "", tokens.ErrNotFound
			}
			return "node-1", nil
		}}
		want := "NodeExists"
		n := b.admission(c)
		if n.AllowExisting = existing; existing {
			want = "NodeNameClaimed"
		}
		_, err := n.Admit(t.Context(), firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{MaxNodes: 1})), "worker-1", nil))
		wantRefused(t, fmt.Sprintf("existing %t", existing), err, want)
		if !c.claims["worker-1"].Equal(before) {
			t.Errorf("the claim is %+v, was %+v", c.claims["worker-1"], before)
		}
	}
}

// What a stale cache says of a token is not what it is admitted by.
func TestAdmissionReadsTokenLive(t *testing.T) {
	for name, test := range map[string]struct {
		now  func(c *cluster, id string)
		want string // the reason of the refusal; empty is admitted
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
		_, err := c.admission().Admit(t.Context(), firstRequest(t, bootstrapUser(token), "worker-1", nil))
		if test.want != "" {
			wantRefused(t, name, err, test.want)
		} else if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if r := c.records[token.ID()]; len(r.Nodes) > 0 {
			t.Errorf("%s: the token counts %q, and is not limited to a number of nodes", name, r.Nodes)
		}
	}
}

// A token whose limits are malformed is refused, also when its claims know its limits.
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
		_, err := c.admission().Admit(t.Context(), firstRequest(t, bootstrapUser(token), "worker-2", nil))
		wantRefused(t, name, err, test.want)
		if _, found := c.claims["worker-2"]; found {
			t.Errorf("%s: a claim was made", name)
		}
		if lists := c.writes["list"]; lists > 1 { // of the first machine
			t.Errorf("%s: the claims were read %d times", name, lists)
		}
	}
}

// A store that fails where the cache of a cluster does not, neither admits nor refuses.
func TestFailedCacheNeitherAdmitsNorRefuses(t *testing.T) {
	failed := errors.New("not synced")
	c := newCluster()
	token := c.createToken(tokens.Limits{MaxNodes: 2})
	c.mustAdmit(t, firstRequest(t, bootstrapUser(token), "worker-1", nil))
	c.refreshCaches()
	standalone := func(b *hooks) *admission.Nodes { n := b.admission(c); n.Node, n.Ready = nil, nil; return n }
	for name, err := range map[string]error{
		"OfToken": func() error {
			_, err := (&hooks{ofToken: failed}).admission(c).Admit(t.Context(), firstRequest(t, bootstrapUser(token), "worker-2", nil))
			return err
		}(),
		"Find, for a serving certificate": func() error {
			_, err := standalone(&hooks{find: failed}).Admit(t.Context(), serves(t, "worker-1"))
			return err
		}(),
	} {
		if !errors.Is(err, failed) || errors.As(err, new(*approval.Refused)) {
			t.Errorf("%s fails: %v, want its error", name, err)
		}
	}
}

// A Secret that is no token, and a Lease that is no claim, end in a refusal and not in a loop.
func TestRefusesForeignSecretOrLease(t *testing.T) {
	c := newCluster()
	token := c.createToken(tokens.Limits{NodeNames: []string{"worker-1"}})
	_, err := (&hooks{get: func(*tokens.Record) error { return fmt.Errorf("secret: %w", tokens.ErrMalformed) }}).admission(c).
		Admit(t.Context(), firstRequest(t, bootstrapUser(token), "worker-1", nil))
	wantRefused(t, "malformed Secret", err, "TokenRevoked")
	_, err = (&hooks{create: fmt.Errorf("lease: %w", tokens.ErrExists)}).admission(c).Admit(t.Context(), firstRequest(t, bootstrapUser(token), "worker-1", nil))
	wantRefused(t, "foreign Lease", err, "NodeNameNotAllowed", "is taken by something that is no claim")
}

// Without a way to see whether a Node is Ready a token that replaces one admits as many keys as another.
func TestReplacementWithoutReadyAdmitsUsualKeys(t *testing.T) {
	c := newCluster()
	uid := c.node("worker-1")
	token := c.createToken(tokens.Limits{Replaces: tokens.NodeRef{Name: "worker-1", UID: uid}})
	n := c.admission()
	n.Ready = nil
	for key := range tokens.MaxKeys {
		if a, err := n.Admit(t.Context(), firstRequest(t, bootstrapUser(token), "worker-1", csrtest.ECDSA(elliptic.P256()))); err != nil || a.Keys != key+1 {
			t.Errorf("key %d: %+v, %v", key+1, a, err)
		}
	}
	_, err := n.Admit(t.Context(), firstRequest(t, bootstrapUser(token), "worker-1", csrtest.ECDSA(elliptic.P256())))
	wantRefused(t, "one more", err, "TooManyKeys")
}

// A serving certificate lasts as its signer says, not as the claim of the node, and does not wait for the Node.
func TestServingCertificateIgnoresTheClaim(t *testing.T) {
	c := newCluster()
	c.mustAdmit(t, firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{MaxNodes: 1, CertificateDuration: time.Hour})), "worker-1", nil))
	a, err := c.admission().Admit(t.Context(), serves(t, "worker-1"))
	if err != nil || a.Duration != 0 || a.TokenID != "" {
		t.Errorf("%+v, %v; want an admission without bounds", a, err)
	}
}

// What is left of a released claim binds nobody after its time, even if no cleaner has deleted it.
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
		if a, err := n.Admit(t.Context(), renewal(t, "worker-1")); err != nil || a.Duration != 0 {
			t.Errorf("standalone %t: %+v, %v; want a renewal without bounds", standalone, a, err)
		}
	}
}

// A request that cannot be signed leaves no claim, whoever asks the admission.
func TestUnsignableRequestLeavesNoClaim(t *testing.T) {
	c := newCluster()
	token := c.createToken(tokens.Limits{MaxNodes: 1})
	r := firstRequest(t, bootstrapUser(token), "worker-1", csrtest.Ed25519())
	csr := *r.CSR
	csr.PublicKey, csr.PublicKeyAlgorithm = nil, x509.UnknownPublicKeyAlgorithm
	r.CSR = &csr
	if _, err := c.admission().Admit(t.Context(), r); !errors.As(err, new(*approval.Refused)) || !strings.Contains(err.Error(), "want RSA, ECDSA or Ed25519") {
		t.Errorf("%v, want a refusal of the key", err)
	}
	if len(c.claims) > 0 {
		t.Errorf("a claim was made: %v", c.claims)
	}
}

// The log says that a name was claimed, also where a released claim was there.
func TestLogsNewClaimOfReleasedName(t *testing.T) {
	c := newCluster()
	c.claims["worker-1"] = tokens.Claim{Node: "worker-1", UID: "1", Version: "1", Created: time.Now(), Past: tokens.ReleasedClaim{Until: time.Now().Add(time.Hour).Truncate(time.Second)}}
	var log bytes.Buffer
	n := c.admission()
	n.Logger = slog.New(slog.NewTextHandler(&log, nil))
	if _, err := n.Admit(t.Context(), firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{MaxNodes: 1})), "worker-1", nil)); err != nil {
		t.Fatal(err)
	}
	if got := log.String(); !strings.Contains(got, "level=INFO") || !strings.Contains(got, `msg="node name claimed"`) || strings.Contains(got, "level=WARN") {
		t.Errorf("logged is %q", got)
	}
}

// A claim that is confirmed is not confirmed again: the same request costs no write, and one read of the claim.
func TestRepeatedAdmissionWritesNothing(t *testing.T) {
	c := newCluster()
	token := c.createToken(tokens.Limits{MaxNodes: 1})
	r := firstRequest(t, bootstrapUser(token), "worker-1", nil)
	c.mustAdmit(t, r)
	c.refreshCaches()
	b := &hooks{}
	c.writes = map[string]int{}
	if _, err := b.admission(c).Admit(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if b.updates != 1 || c.writes["claim"] != 0 || c.writes["token"] != 0 {
		t.Errorf("%d looks at the claim, writes %v; want one look and no write", b.updates, c.writes)
	}
}
