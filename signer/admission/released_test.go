package admission_test

import (
	"context"
	"crypto/elliptic"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
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

// A released name is free, and its next token sets the duration of renewals. A failed attempt must not delete what
// remains of the released claim.
func TestNewClaimReplacesReleasedOne(t *testing.T) {
	const node = "worker-1"
	past := tokens.ReleasedClaim{Until: time.Now().Add(time.Hour).UTC().Truncate(time.Second), CertificateDuration: 2 * time.Hour, Node: tokens.NodeProperties{Labels: "a=b"}}
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
			if got := c.claims[node].Remaining().Node; test.reason == "" && got != (tokens.NodeProperties{}) {
				t.Errorf("the Node would get %+v of the machine before", got)
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
				must.Value(admit(t.Context(), n, request(t, node)))(t)
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
			must.OK(t, tokens.Release(t.Context(), c.admission().Claims, claim, claim.PastAfterRelease(time.Now(), 365*24*time.Hour)))
			c.history = nil
			_, err = admit(t.Context(), n, request(t, node))
			wantRefused(t, "released", err, "NodeNameReleased", "kubejoin token create --max-nodes 1 --node-name worker-1")
			if err != nil && approval.Refused(err) != nil {
				if reporters, err := (signer.Standalone{Claims: claims{cluster: c}}).Reporters(t.Context(), "other", []string{node}); err != nil || len(reporters) > 0 {
					t.Errorf("got reporters %v, %v, want none", reporters, err)
				}
			}
			must.Value(admit(t.Context(), n, firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{MaxNodes: 1})), node, key)))(t)
			c.history = nil
			if _, err := admit(t.Context(), n, request(t, node)); err != nil {
				t.Errorf("after a new claim: %v", err)
			}
		})
	}
}
