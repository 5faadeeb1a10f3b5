package admission_test

import (
	"context"
	"crypto/elliptic"
	"crypto/x509"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/cleaner"
	certificates "k8s.io/api/certificates/v1"
)

// renewal returns a request of a node that already has its certificate.
func renewal(t testing.TB, node string) approval.Request {
	t.Helper()
	r := firstRequest(t, "system:node:"+node, node, csrtest.ECDSA(elliptic.P256()))
	r.Groups = []string{"system:nodes", "system:authenticated"}
	return r
}

// servingRequest returns a request of a node for its serving certificate.
func servingRequest(t testing.TB, node string) approval.Request {
	t.Helper()
	r := renewal(t, node)
	r.SignerName = certificates.KubeletServingSignerName
	r.Usages = []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageServerAuth}
	return r
}

// runClaimCleaner runs the claim cleaner until it has nothing left to do.
func (c *cluster) runClaimCleaner(t *testing.T, node func(context.Context, string) (string, error)) {
	t.Helper()
	c.history = nil
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- cleaner.Claims{Store: c.admission().Claims, Tokens: store{cluster: c}, Node: node, Ready: c.Ready}.Run(ctx)
	}()
	synctest.Wait()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// After its claim was released in any way, a machine that comes back with its certificate renews with the duration
// of its token. Renewals must not cost a write each.
func TestRenewalKeepsDurationAfterRelease(t *testing.T) {
	const node = "worker-1"
	const short = 2 * time.Hour
	for name, release := range map[string]func(t *testing.T, c *cluster, id string){
		"Node deleted": func(t *testing.T, c *cluster, _ string) {
			c.node(node)
			c.runClaimCleaner(t, c.Node)
			c.deleteNode(node)
			c.runClaimCleaner(t, c.Node)
		},
		"Node deleted, as the next request found": func(t *testing.T, c *cluster, id string) {
			c.node(node)
			c.runClaimCleaner(t, c.Node)
			c.deleteNode(node)
			_, err := admit(t.Context(), c.admission(), firstRequest(t, "system:bootstrap:"+id, node, nil))
			wantRefused(t, "the spent token", err, "TokenSpent")
		},
		"token gone before the Node came": func(t *testing.T, c *cluster, id string) {
			delete(c.records, id)
			c.runClaimCleaner(t, c.Node)
		},
		"by a person": func(t *testing.T, c *cluster, _ string) {
			claim := c.claims[node]
			if err := tokens.Release(t.Context(), c.admission().Claims, claim, claim.PastAfterRelease(time.Now(), 0)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster()
				token := c.createToken(tokens.Limits{MaxNodes: 1, CertificateDuration: short})
				n := c.admission()
				if a, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(token), node, nil)); err != nil || a.Duration != short {
					t.Fatal(a, err)
				}
				release(t, c, token.ID())
				if claim := c.claims[node]; !claim.Released() || claim.Past.CertificateDuration != short {
					t.Fatalf("got claim %+v, want it released with the duration", claim)
				}
				c.node(node)
				lasts := func(when string, want time.Duration) {
					t.Helper()
					c.runClaimCleaner(t, c.Node)
					if a, err := admit(t.Context(), n, renewal(t, node)); err != nil || a.Duration != want {
						t.Errorf("%s: %+v %v, want %s", when, a, err, want)
					}
				}
				writes := c.writes["claim"]
				for range 100 { // as a kubelet renews for a week
					lasts("in time", short)
					time.Sleep(short * 8 / 10)
				}
				if writes = c.writes["claim"] - writes; writes == 0 || writes > 10 {
					t.Errorf("got %d writes for 100 renewals, want 1 to 10", writes)
				}
				// A day after its certificate expired, the released claim still exists: clocks may differ.
				time.Sleep(24 * time.Hour)
				c.runClaimCleaner(t, c.Node)
				if _, found := c.claims[node]; !found {
					t.Error("released claim was deleted within a day after the last certificate expired")
				}
				time.Sleep(48 * time.Hour)
				lasts("after all certificates expired", 0)
				if claim, found := c.claims[node]; found {
					t.Errorf("got claim %+v, want it deleted", claim)
				}
			})
		})
	}
}

// A released name is free, and its next token sets the duration of renewals. A failed attempt must not delete what
// remains of the released claim.
func TestNewClaimReplacesReleasedOne(t *testing.T) {
	const node = "worker-1"
	past := tokens.ReleasedClaim{Until: time.Now().Add(time.Hour).UTC().Truncate(time.Second), CertificateDuration: 2 * time.Hour}
	for _, test := range []struct {
		name    string
		request func(t *testing.T, c *cluster) approval.Request
		change  func(c *cluster, n *admission.Nodes)
		reason  string        // empty: admitted
		lasts   time.Duration // of the next renewal
	}{
		{name: "limited", lasts: 4 * time.Hour, request: func(t *testing.T, c *cluster) approval.Request {
			return firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{MaxNodes: 1, CertificateDuration: 4 * time.Hour})), node, nil)
		}},
		{name: "limited, without a duration", request: func(t *testing.T, c *cluster) approval.Request {
			return firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{NodeNames: []string{node}})), node, nil)
		}},
		{name: "without limits", request: func(t *testing.T, c *cluster) approval.Request {
			return firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{})), node, nil)
		}},
		{name: "no token", request: func(t *testing.T, _ *cluster) approval.Request {
			return firstRequest(t, "kubelet-bootstrap", node, nil)
		}},
		{name: "spent", reason: "TokenSpent", lasts: 2 * time.Hour, request: func(t *testing.T, c *cluster) approval.Request {
			token := c.createToken(tokens.Limits{MaxNodes: 1})
			r := c.records[token.ID()]
			r.Nodes, r.Version = []string{"worker-2"}, c.next()
			c.keep(r)
			return firstRequest(t, bootstrapUser(token), node, nil)
		}},
		{name: "spent at the last moment", reason: "TokenSpent", lasts: 2 * time.Hour, request: func(t *testing.T, c *cluster) approval.Request {
			return firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{MaxNodes: 1})), node, nil)
		}, change: func(c *cluster, n *admission.Nodes) {
			c.hookBeforeCount(n, sync.OnceFunc(c.spendAllTokens))
		}},
		{name: "joined before", reason: "TokenSpent", lasts: 2 * time.Hour, request: func(t *testing.T, c *cluster) approval.Request {
			token := c.createToken(tokens.Limits{MaxNodes: 2})
			r := c.records[token.ID()]
			r.Nodes, r.Marks = []string{node}, map[string]string{node: left}
			c.keep(r)
			c.older[token.ID()] = []tokens.Record{r}
			return firstRequest(t, bootstrapUser(token), node, nil)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newCluster()
			c.claims[node] = tokens.Claim{Node: node, Past: past, UID: "u", Version: c.next(), Created: time.Now().Add(-time.Hour)}
			n := c.admission()
			if test.change != nil {
				test.change(c, n)
			}
			r := test.request(t, c)
			if _, err := admit(t.Context(), c.admission().DryRun(), r); test.change == nil && (err == nil) != (test.reason == "") {
				t.Errorf("dry run: %v", err)
			}
			if claim := c.claims[node]; claim.Past != past || !claim.Released() {
				t.Errorf("dry run changed the claim: %+v", claim)
			}
			_, err := admit(t.Context(), n, r)
			if test.reason != "" {
				wantRefused(t, test.name, err, test.reason)
				if claim := c.claims[node]; claim.Past != past || !claim.Released() {
					t.Errorf("got claim %+v, want it unchanged", claim)
				}
			} else if err != nil {
				t.Fatal(err)
			}
			if claim, found := c.claims[node]; found && !claim.Released() && time.Since(claim.Created) > time.Minute {
				t.Errorf("got creation time %s, want now", claim.Created)
			}
			c.node(node)
			c.history = nil // the cache is current
			if a, err := admit(t.Context(), c.admission(), renewal(t, node)); err != nil || a.Duration != test.lasts {
				t.Errorf("renewal: got %+v, %v, want %s", a, err, test.lasts)
			}
		})
	}
}

// spendAllTokens lets another node use the slots of all tokens.
func (c *cluster) spendAllTokens() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.records {
		r.Nodes, r.Version = []string{"worker-2"}, c.next()
		c.keep(r)
	}
}

// Without Nodes (standalone), a released name cannot renew. A node that comes back with its certificate has joined,
// so its token admits no other key.
func TestStandaloneRenewalConfirmsClaim(t *testing.T) {
	const node = "worker-1"
	for name, request := range map[string]func(testing.TB, string) approval.Request{"renewal": renewal, "serving certificate": servingRequest} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			n := c.admission()
			n.Node = nil
			key := csrtest.ECDSA(elliptic.P256())
			token := c.createToken(tokens.Limits{MaxNodes: 1})
			for i := range 2 {
				if _, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(token), node, csrtest.ECDSA(elliptic.P256()))); err != nil {
					t.Fatalf("key %d: %v", i, err)
				}
				c.history = nil
			}
			if _, err := admit(t.Context(), n.DryRun(), request(t, node)); err != nil || c.claims[node].NodeUID != "" {
				t.Errorf("dry run: got %v and claim %+v, want no NodeUID", err, c.claims[node])
			}
			writes := c.writes["claim"]
			for range 3 {
				if _, err := admit(t.Context(), n, request(t, node)); err != nil {
					t.Fatal(err)
				}
				c.history = nil
			}
			if writes = c.writes["claim"] - writes; writes != 1 {
				t.Errorf("got %d writes, want 1", writes)
			}
			_, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(token), node, key))
			wantRefused(t, "another key", err, "NodeExists", "kubejoin claim release worker-1")
			_, err = admit(t.Context(), n, firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{MaxNodes: 1})), node, key))
			wantRefused(t, "another token", err, "NodeNameClaimed")
			_, err = admit(t.Context(), n, firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{})), node, key))
			wantRefused(t, "a token without limits", err, "NodeNameClaimed")

			claim := c.claims[node]
			if err := tokens.Release(t.Context(), c.admission().Claims, claim, claim.PastAfterRelease(time.Now(), 365*24*time.Hour)); err != nil {
				t.Fatal(err)
			}
			c.history = nil
			_, err = admit(t.Context(), n, request(t, node))
			wantRefused(t, "released", err, "NodeNameReleased", "kubejoin token create --max-nodes 1 --node-name worker-1")
			if err != nil && approval.Refused(err) != nil {
				if reporters, err := (signer.Standalone{Claims: claims{cluster: c}}).Reporters(t.Context(), "other", []string{node}); err != nil || len(reporters) > 0 {
					t.Errorf("got reporters %v, %v, want none", reporters, err)
				}
			}
			if _, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{MaxNodes: 1})), node, key)); err != nil {
				t.Fatal(err)
			}
			c.history = nil
			if _, err := admit(t.Context(), n, request(t, node)); err != nil {
				t.Errorf("after a new claim: %v", err)
			}
		})
	}
}

// Only the node itself confirms its claim with a serving request, not another user or another name.
func TestServingRequestOfOthersDoesNotConfirmClaim(t *testing.T) {
	c := newCluster()
	n := c.admission()
	n.Node = nil
	if _, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{MaxNodes: 1})), "worker-1", nil)); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*approval.Request){
		"an admin":         func(r *approval.Request) { r.User, r.Groups = "ada", []string{"kubejoin:admins"} },
		"not of the nodes": func(r *approval.Request) { r.Groups = nil },
		"another node":     func(r *approval.Request) { r.User = "system:node:worker-2" },
		"for another subject": func(r *approval.Request) {
			r.CSR = csrtest.New(t, &x509.CertificateRequest{Subject: csrtest.Node("worker-2")}, nil)
		},
		"name that cannot be claimed": func(r *approval.Request) { *r = servingRequest(t, "Worker_1") },
	} {
		r := servingRequest(t, "worker-1")
		change(&r)
		if _, err := admit(t.Context(), n, r); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if uid := c.claims["worker-1"].NodeUID; uid != "" {
			t.Fatalf("%s: got NodeUID %s, want none", name, uid)
		}
	}
}

// The Node of the claim was deleted and the claim cleaner has not run yet. The claim must not set the duration of
// the next machine, and a dry run changes nothing.
func TestClaimOfDeletedNodeSetsNoDuration(t *testing.T) {
	const node = "worker-1"
	for name, limits := range map[string]tokens.Limits{"limited": {MaxNodes: 1}, "without limits": {}} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			before := tokens.Claim{Node: node, TokenID: "others", NodeUID: "gone", Limits: tokens.Limits{CertificateDuration: 2 * time.Hour}, UID: "u", Version: c.next(), Created: time.Now()}
			c.claims[node] = before
			r := firstRequest(t, bootstrapUser(c.createToken(limits)), node, nil)
			if _, err := admit(t.Context(), c.admission().DryRun(), r); err != nil {
				t.Errorf("dry run: %v", err)
			}
			if claim := c.claims[node]; !claim.Equal(before) {
				t.Errorf("dry run changed the claim: %+v", claim)
			}
			if _, err := admit(t.Context(), c.admission(), r); err != nil {
				t.Fatal(err)
			}
			c.node(node)
			c.history = nil
			if a, err := admit(t.Context(), c.admission(), renewal(t, node)); err != nil || a.Duration != 0 {
				t.Errorf("renewal: got %+v, %v, want no duration of a claim", a, err)
			}
		})
	}
}
