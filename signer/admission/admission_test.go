package admission_test

import (
	"context"
	"crypto"
	"crypto/elliptic"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	certificates "k8s.io/api/certificates/v1"
)

// firstRequest returns a request for the first client certificate of a node. A nil key means a new one.
func firstRequest(t testing.TB, user, node string, key crypto.Signer) approval.Request {
	t.Helper()
	return approval.Request{
		UID: "csr-" + node, SignerName: certificates.KubeAPIServerClientKubeletSignerName, User: user, Created: time.Now(),
		Groups: []string{"system:bootstrappers"},
		Usages: []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
		CSR:    csrtest.New(t, &x509.CertificateRequest{Subject: csrtest.Node(node)}, key),
	}
}

// admit checks a request and admits it.
func admit(ctx context.Context, n *admission.Nodes, r approval.Request) (*admission.Admitted, error) {
	checked, err := admission.Check(r)
	if err != nil {
		return nil, err
	}
	return n.Admit(ctx, checked)
}

// bootstrapUser returns the user name of a bootstrap token.
func bootstrapUser(token tokens.Token) string { return "system:bootstrap:" + token.ID() }

func (c *cluster) admission() *admission.Nodes {
	return c.admissionWith(func(_ *storetest.Call, do func() error) error { return do() })
}

// admissionWith returns an admission with faults.
func (c *cluster) admissionWith(f storetest.Faulty) *admission.Nodes {
	n := &admission.Nodes{Tokens: f.Store(store{cluster: c}), Claims: f.Claims(claims{cluster: c}), Node: c.Node, Ready: c.Ready, Reserved: []string{"cp-*"}}
	if !c.oneDatabase {
		n.Claims = secretstore.Steps{Claims: n.Claims, Tokens: n.Tokens}
	}
	return n
}

func wantRefused(t testing.TB, what string, err error, reason string, parts ...string) {
	t.Helper()
	var refused *approval.Error
	if !errors.As(err, &refused) || refused.Verdict != approval.Deny || refused.Reason != reason {
		t.Errorf("%s: got %v, want a refusal with reason %s", what, err, reason)
		return
	}
	for _, part := range parts {
		if !strings.Contains(refused.Message, part) {
			t.Errorf("%s: got message %q, want %q in it", what, refused.Message, part)
		}
	}
}

// byRule returns limits with a rule.
func byRule(own, rule tokens.Limits) tokens.Limits {
	own.Rules = []tokens.Rule{{Name: "scaler", Limits: rule}}
	return own
}

// The claim keeps what a rule means for renewals, when the rule and the token are gone. It keeps no limit of a rule as one of
// the token: kubejoin would restore it on the Secret.
func TestClaimKeepsRuleForRenewals(t *testing.T) {
	c := newCluster()
	token := c.createToken(byRule(tokens.Limits{}, tokens.Limits{MaxNodes: 2, NodeNames: []string{"worker-*"}, CertificateDuration: time.Hour, Rejoin: tokens.RejoinDeny}))
	a := must.Value(admit(t.Context(), c.admission(), firstRequest(t, bootstrapUser(token), "worker-1", nil)))(t)
	if a.Duration != time.Hour {
		t.Errorf("got a certificate for %s, want 1h", a.Duration)
	}
	claim := c.claims["worker-1"]
	if own := claim.Limits; own.MaxNodes != 0 || own.NodeNames != nil || own.CertificateDuration != 0 || own.Rejoin != "" || own.NodeLimit() != 0 {
		t.Errorf("got claim %+v, want no limit of the token", own)
	}
	if r := claim.Remaining(); r.CertificateDuration != time.Hour || r.Rejoin != tokens.RejoinDeny {
		t.Errorf("got %+v, want the limits of the rule", r)
	}
	c.registerNode("worker-1")
	c.editToken(token.ID(), func(r *tokens.Record) { r.Limits = tokens.Limits{} })
	renewal := firstRequest(t, "system:node:worker-1", "worker-1", nil)
	renewal.Groups = []string{"system:nodes"}
	if a := must.Value(admit(t.Context(), c.admission(), renewal))(t); a.Duration != time.Hour {
		t.Errorf("got a renewal for %s, want 1h", a.Duration)
	}
	// Without the rule, the token is unlimited again.
	must.Value(admit(t.Context(), c.admission(), firstRequest(t, bootstrapUser(token), "another", nil)))(t)
	if _, claimed := c.claims["another"]; claimed || c.records[token.ID()].Limits.MaxNodes != 0 {
		t.Errorf("got a claim: %t, limits %+v; want an unlimited token", claimed, c.records[token.ID()].Limits)
	}
}

// Catches a node that joins after a rule began to match, and whose renewals have no limit because its claim is older.
func TestRuleLimitsRenewalsOfEarlierClaim(t *testing.T) {
	c := newCluster()
	token := c.createToken(tokens.Limits{MaxNodes: 1})
	must.Value(admit(t.Context(), c.admission(), firstRequest(t, bootstrapUser(token), "worker-1", nil)))(t)
	c.editToken(token.ID(), func(r *tokens.Record) {
		r.Limits = byRule(r.Limits, tokens.Limits{CertificateDuration: time.Hour, Rejoin: tokens.RejoinDeny})
	})
	if a := must.Value(admit(t.Context(), c.admission(), firstRequest(t, bootstrapUser(token), "worker-1", csrtest.ECDSA(elliptic.P256()))))(t); a.Duration != time.Hour {
		t.Errorf("got a certificate for %s, want 1h", a.Duration)
	}
	if r := c.claims["worker-1"].Remaining(); r.CertificateDuration != time.Hour || r.Rejoin != tokens.RejoinDeny {
		t.Errorf("got %+v for renewals, want the limits of the rule", r)
	}
}

func TestAdmitAppliesLimitsOfToken(t *testing.T) {
	const node = "worker-7"
	for _, test := range []struct {
		name   string
		node   string // worker-7 if empty
		limits tokens.Limits
		change func(*cluster, *tokens.Record)
		reason string // empty: admitted
		says   string
	}{
		{name: "no limits"},
		{name: "rule for one node", limits: byRule(tokens.Limits{}, tokens.Limits{MaxNodes: 1})},
		{name: "rule for names", limits: byRule(tokens.Limits{}, tokens.Limits{NodeNames: []string{"worker-*"}})},
		{name: "rule that loosens nothing", limits: byRule(tokens.Limits{MaxNodes: 1}, tokens.Limits{MaxNodes: 10}), change: func(_ *cluster, r *tokens.Record) { r.Nodes = []string{"worker-3"} },
			reason: "TokenSpent", says: "is spent: it allows 1 node, and worker-3"},
		{name: "spent by a rule", limits: byRule(tokens.Limits{MaxNodes: 9}, tokens.Limits{MaxNodes: 1}), change: func(_ *cluster, r *tokens.Record) { r.Nodes = []string{"worker-3"} },
			reason: "TokenSpent", says: "it allows 1 node (by rule scaler of --token-limits), and worker-3 has joined with it"},
		{name: "more nodes than a rule allows", limits: byRule(tokens.Limits{}, tokens.Limits{MaxNodes: 1}), change: func(_ *cluster, r *tokens.Record) { r.Nodes = []string{"a", "b"} },
			reason: "TokenSpent", says: "allows 1 nodes (by rule scaler of --token-limits) and counts 2"},
		{name: "another name, by a rule", limits: byRule(tokens.Limits{NodeNames: []string{"*"}}, tokens.Limits{NodeNames: []string{"auto-*", "db-*"}}),
			reason: "NodeNameNotAllowed", says: "rule scaler of --token-limits does not allow node name worker-7"},
		{name: "reserved, role taken by a rule", node: "cp-1", reason: "NodeNameReserved", says: "rule scaler of --token-limits makes token",
			limits: tokens.Limits{Role: "control-plane", Rules: []tokens.Rule{{Name: "scaler", Worker: true}}}},
		{name: "one node", limits: tokens.Limits{MaxNodes: 1}},
		{name: "labels of Nodes", limits: tokens.Limits{Node: tokens.NodeProperties{Labels: "a=b", ReadyAfter: tokens.ReadyAfterLabels}}},
		{name: "by name", limits: tokens.Limits{NodeNames: []string{"worker-7"}}},
		{name: "by pattern", limits: tokens.Limits{NodeNames: []string{"db-*", "worker-*"}, MaxNodes: 5}},
		{name: "another name", limits: tokens.Limits{NodeNames: []string{"worker-8", "db-*"}}, reason: "NodeNameNotAllowed", says: "kubejoin token create --max-nodes 1 --node-name worker-7"},
		{name: "spent", limits: tokens.Limits{MaxNodes: 1}, change: func(_ *cluster, r *tokens.Record) { r.Nodes = []string{"worker-3"} },
			reason: "TokenSpent", says: "is spent: it allows 1 node, and worker-3 has joined with it; create another one: kubejoin token create --max-nodes 1 --node-name worker-7"},
		{name: "spent by two", limits: tokens.Limits{MaxNodes: 2}, change: func(_ *cluster, r *tokens.Record) { r.Nodes = []string{"a", "b"} },
			reason: "TokenSpent", says: "is spent: it allows 2 nodes, and 2 have joined with it"},
		{name: "free slot", limits: tokens.Limits{MaxNodes: 2}, change: func(_ *cluster, r *tokens.Record) { r.Nodes = []string{"a"} }},
		{name: "expired", change: func(_ *cluster, r *tokens.Record) { r.Expires = time.Now().Add(-time.Second) }, reason: "TokenExpired", says: "expired at"},
		{name: "no such token", change: func(_ *cluster, r *tokens.Record) { r.Token = tokens.Generate() }, reason: "TokenRevoked", says: "kubejoin token create"},
		{name: "no authentication", change: func(_ *cluster, r *tokens.Record) { r.Authentication = false }, reason: "TokenRevoked", says: "authentication"},
		{name: "malformed", change: func(_ *cluster, r *tokens.Record) { r.Problem = errors.New("bad group") }, reason: "TokenRevoked", says: "bad group"},
		{name: "younger than the request", change: func(_ *cluster, r *tokens.Record) { r.Created = time.Now().Add(time.Minute) }, reason: "TokenReplaced"},
		{name: "malformed limits", limits: tokens.Limits{Problem: errors.New(`max-nodes: "many"`)}, reason: "TokenLimitsMalformed", says: `max-nodes: "many"`},
		{name: "reserved", node: "cp-1", reason: "NodeNameReserved", says: "--role control-plane --max-nodes 1 --node-name cp-1"},
		{name: "reserved, for one node", node: "cp-1", limits: tokens.Limits{MaxNodes: 1}, reason: "NodeNameReserved"},
		{name: "reserved, control plane", node: "cp-1", limits: tokens.Limits{Role: "control-plane"}},
		{name: "not a node name", node: "Worker_7", reason: "NodeNameNotAllowed", says: "Worker_7"},
		{name: "Node exists", change: func(c *cluster, _ *tokens.Record) { c.node(node) }, reason: "NodeExists", says: "--replace-node worker-7"},
		{name: "Node exists, for one node", limits: tokens.Limits{MaxNodes: 1}, change: func(c *cluster, _ *tokens.Record) { c.node(node) }, reason: "NodeExists"},
		{name: "replaces", change: func(c *cluster, r *tokens.Record) { r.Limits.Replaces = tokens.NodeRef{Name: node, UID: c.node(node)} }},
		{name: "replaces, another name by a rule", limits: byRule(tokens.Limits{Replaces: tokens.NodeRef{Name: node, UID: "u"}}, tokens.Limits{NodeNames: []string{"auto-*"}}),
			reason: "NodeNameNotAllowed", says: "rule scaler of --token-limits does not allow node name worker-7"},
		{name: "replaces what is gone", limits: tokens.Limits{Replaces: tokens.NodeRef{Name: node, UID: "gone"}}},
		{name: "replaces another", change: func(c *cluster, r *tokens.Record) {
			c.node(node)
			r.Limits.Replaces = tokens.NodeRef{Name: node, UID: "another"}
		}, reason: "NodeReplaced", says: "--replace-node worker-7"},
		{name: "replaces another name", limits: tokens.Limits{Replaces: tokens.NodeRef{Name: "worker-8", UID: "u"}}, reason: "NodeNameNotAllowed", says: "worker-8"},
		{name: "claimed", change: func(c *cluster, _ *tokens.Record) {
			c.claims[node] = tokens.Claim{Node: node, TokenID: "others", UID: "u", Version: "1", Created: time.Now()}
		}, reason: "NodeNameClaimed", says: "kubejoin claim release worker-7"},
		{name: "claimed, for one node", limits: tokens.Limits{MaxNodes: 1}, change: func(c *cluster, _ *tokens.Record) {
			c.claims[node] = tokens.Claim{Node: node, TokenID: "others", UID: "u", Version: "1", Created: time.Now()}
		}, reason: "NodeNameClaimed", says: "token others"},
		{name: "claimed by a Node that was deleted", change: func(c *cluster, _ *tokens.Record) {
			c.claims[node] = tokens.Claim{Node: node, TokenID: "others", UID: "u", Version: "1", NodeUID: "gone"}
		}},
		{name: "claimed by a Node that was deleted, for one node", limits: tokens.Limits{MaxNodes: 1}, change: func(c *cluster, _ *tokens.Record) {
			c.claims[node] = tokens.Claim{Node: node, TokenID: "others", UID: "u", Version: "1", NodeUID: "gone"}
		}},
		{name: "joined before and deleted", limits: tokens.Limits{MaxNodes: 2}, change: func(c *cluster, r *tokens.Record) { r.Nodes, r.Marks = []string{node}, map[string]string{node: left} },
			reason: "TokenSpent", says: "its Node or claim was deleted"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newCluster()
			token := tokens.Generate()
			record := tokens.NewRecord(token, 24*time.Hour, time.Now())
			record.Limits, record.Created = test.limits, time.Now().Add(-time.Minute)
			if test.change != nil {
				test.change(c, &record)
			}
			c.put(record)
			name := test.node
			if name == "" {
				name = node
			}
			admission, err := admit(t.Context(), c.admission(), firstRequest(t, bootstrapUser(token), name, nil))
			claim, claimed := c.claims[name]
			claimed = claimed && claim.TokenID == token.ID()
			if test.reason != "" {
				wantRefused(t, name, err, test.reason, test.says)
				if admission != nil || claimed {
					t.Errorf("refused, but got admission %v and claim %v", admission, claimed)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			limited := !record.Limits.IsZero()
			if claimed != limited || limited != (admission.TokenID == token.ID()) {
				t.Errorf("got claim: %v, admission %+v; want a claim exactly if the token has limits: %+v", claimed, admission, record.Limits)
			}
			if claimed && !claim.Limits.Equal(record.Limits.Kept()) {
				t.Errorf("got limits %+v of the claim, want %+v", claim.Limits, record.Limits.Kept())
			}
			now := c.records[token.ID()]
			if counts := slices.Contains(now.Nodes, name); counts != (record.Limits.NodeLimit() > 0) {
				t.Errorf("got counted names %q, want the name only for a token with a node limit", now.Nodes)
			}
			if left := time.Until(now.Expires); now.Spent() != (left <= time.Hour) || left < 59*time.Minute {
				t.Errorf("got spent %v, expires in %s; want a spent token to expire in an hour", now.Spent(), left)
			}
		})
	}
}

// Users without a bootstrap token get no node name that exists, is reserved, claimed or invalid.
func TestAdmitProtectsNodeNamesFromOtherUsers(t *testing.T) {
	c := newCluster()
	c.node("exists")
	c.claims["claimed"] = tokens.Claim{Node: "claimed", TokenID: "others", UID: "u", Version: "1"}
	for _, test := range []struct {
		node, reason string
		allow        bool
	}{
		{node: "free"},
		{node: "exists", reason: "NodeExists"},
		{node: "exists", allow: true},
		{node: "cp-1", reason: "NodeNameReserved"},
		{node: "claimed", reason: "NodeNameClaimed"},
		{node: "-", reason: "NodeNameNotAllowed"},
	} {
		n := c.admission()
		n.AllowExisting = test.allow
		_, err := admit(t.Context(), n, firstRequest(t, "kubelet-bootstrap", test.node, nil))
		if test.reason == "" {
			if err != nil {
				t.Errorf("%s: %v", test.node, err)
			}
			continue
		}
		wantRefused(t, test.node, err, test.reason)
	}
	// A bootstrap token may only request the client certificate of a node.
	token := c.createToken(tokens.Limits{})
	r := firstRequest(t, bootstrapUser(token), "free", nil)
	r.CSR = csrtest.New(t, &x509.CertificateRequest{DNSNames: []string{"free"}}, nil)
	_, err := admit(t.Context(), c.admission(), r)
	wantRefused(t, "another subject", err, "NotForBootstrapToken")
	var none *admission.Nodes
	_, err = admit(t.Context(), none, firstRequest(t, bootstrapUser(token), "free", nil))
	wantRefused(t, "no admission", err, "TokenRevoked")
	// Admission does not check certificates that are not client certificates of nodes.
	r.User = "jane"
	if _, err := admit(t.Context(), c.admission(), r); err != nil {
		t.Error(err)
	}
	// It checks the identity of a node for every signer.
	r = firstRequest(t, "jane", "exists", nil)
	r.SignerName = certificates.KubeAPIServerClientSignerName
	_, err = admit(t.Context(), c.admission(), r)
	wantRefused(t, "another signer", err, "NodeExists")
	// Other groups in the subject make no difference, in any order.
	for _, groups := range [][]string{{"system:nodes", "ops"}, {"ops", "system:nodes"}} {
		r = firstRequest(t, "jane", "exists", nil)
		r.CSR = csrtest.New(t, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:exists", Organization: groups}}, nil)
		_, err = admit(t.Context(), c.admission(), r)
		wantRefused(t, strings.Join(groups, ", "), err, "NodeExists")
	}
}

// A node renews only while its Node exists. The renewed certificate keeps the duration of the claim.
func TestRenewalNeedsNodeAndKeepsDuration(t *testing.T) {
	c := newCluster()
	token := c.createToken(tokens.Limits{CertificateDuration: 2 * time.Hour})
	n := c.admission()
	first, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(token), "worker-1", nil))
	if err != nil || first.Duration != 2*time.Hour {
		t.Fatal(first, err)
	}
	r := firstRequest(t, "system:node:worker-1", "worker-1", nil)
	r.Groups = []string{"system:nodes"}
	if _, err = admit(t.Context(), n, r); err == nil || approval.Refused(err) != nil {
		t.Errorf("renewal without a Node: %v, want to wait", err)
	}
	signers := must.Get(signer.KubernetesSigners(func() (*signer.CA, error) { return nil, errors.New("no CA") }, 0))
	s := signers[r.SignerName]
	s.Rules = []approval.Rule{approveAll{}}
	signers[r.SignerName] = s
	authority := signer.Authority{Nodes: n, Signers: signer.FixedSigners(signers)}
	_, err = authority.Decide(t.Context(), r)
	if no := (*approval.Error)(nil); !errors.As(err, &no) || no.Err != nil || no.Verdict != approval.Wait || no.Reason != "NodeNotFound" {
		t.Errorf("got %v, want to wait for the Node", err)
	}
	c.node("worker-1")
	c.history = []map[string]tokens.Claim{{}} // the cache does not have the claim yet
	if a, err := admit(t.Context(), n, r); err != nil || a.Duration != 2*time.Hour {
		t.Errorf("got %+v, %v, want a duration of 2h", a, err)
	}
	r.Groups = nil // another user with that name
	_, err = admit(t.Context(), n, r)
	wantRefused(t, "not of the nodes", err, "NodeExists")
}

type approveAll struct{}

func (approveAll) Name() string { return "yes" }
func (approveAll) Decide(context.Context, approval.Request, approval.Facts) (approval.Decision, error) {
	return approval.Decision{Verdict: approval.Approve}, nil
}

// A machine that starts over has a new key. One claim admits three keys, and none after its Node has registered.
func TestAdmitsThreeKeysUntilNodeRegisters(t *testing.T) {
	c := newCluster()
	token := c.createToken(tokens.Limits{MaxNodes: 1})
	n := c.admission()
	key := csrtest.ECDSA(elliptic.P256())
	for i, test := range []struct {
		key  crypto.Signer
		keys int
	}{{key, 1}, {key, 1}, {csrtest.ECDSA(elliptic.P256()), 2}, {key, 2}, {csrtest.ECDSA(elliptic.P256()), 3}} {
		a, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(token), "worker-1", test.key))
		if err != nil || a.Keys != test.keys {
			t.Errorf("request %d: got %+v, %v, want %d keys", i, a, err, test.keys)
		}
	}
	_, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(token), "worker-1", nil))
	wantRefused(t, "a fourth key", err, "TooManyKeys", "kubejoin claim release worker-1")
	if _, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(token), "worker-1", key)); err != nil {
		t.Errorf("first key again: got %v, want an admission", err)
	}
	c.node("worker-1")
	_, err = admit(t.Context(), n, firstRequest(t, bootstrapUser(token), "worker-1", key))
	wantRefused(t, "registered", err, "NodeExists")
	c.deleteNode("worker-1")
	claim := c.claims["worker-1"]
	claim.NodeUID = "gone"
	c.claims["worker-1"] = claim
	_, err = admit(t.Context(), n, firstRequest(t, bootstrapUser(token), "worker-1", key))
	wantRefused(t, "deleted", err, "TokenSpent")
	if _, found := c.claims["worker-1"]; found {
		t.Error("the claim of the deleted Node still exists")
	}
	if _, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{MaxNodes: 1})), "worker-1", nil)); err != nil {
		t.Errorf("with a new token: %v", err)
	}
}
