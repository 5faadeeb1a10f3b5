package admission_test

import (
	"context"
	"crypto/elliptic"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// Everything that grants a name is read live: caches that are frozen at an earlier state change no decision.
func TestStaleCachesGrantNoName(t *testing.T) {
	const node = "worker-1"
	for name, test := range map[string]struct {
		limits tokens.Limits
		happen func(t *testing.T, c *cluster, id string) // after the caches were frozen
		node   string                                    // of the request
		reason string                                    // empty: admitted
	}{
		"spent on a Node that was deleted": {limits: tokens.Limits{MaxNodes: 1}, node: node, reason: "TokenSpent",
			happen: func(_ *testing.T, c *cluster, _ string) { c.registerNode(node); c.deleteNode(node) }},
		"spent on another": {limits: tokens.Limits{MaxNodes: 1}, node: "worker-2", reason: "TokenSpent"},
		"count erased": {limits: tokens.Limits{MaxNodes: 1}, node: "worker-2", reason: "TokenSpent",
			happen: func(_ *testing.T, c *cluster, id string) { c.editToken(id, func(r *tokens.Record) { r.Nodes = nil }) }},
		"limits erased": {limits: tokens.Limits{MaxNodes: 1}, node: "worker-2", reason: "TokenSpent",
			happen: func(_ *testing.T, c *cluster, id string) {
				c.editToken(id, func(r *tokens.Record) { r.Limits = tokens.Limits{} })
			}},
		"limits and count erased": {limits: tokens.Limits{MaxNodes: 1}, node: "worker-2", reason: "TokenSpent",
			happen: func(_ *testing.T, c *cluster, id string) {
				c.editToken(id, func(r *tokens.Record) { r.Limits, r.Nodes = tokens.Limits{}, nil })
			}},
		"names erased": {limits: tokens.Limits{NodeNames: []string{node}}, node: "worker-2", reason: "NodeNameNotAllowed",
			happen: func(_ *testing.T, c *cluster, id string) {
				c.editToken(id, func(r *tokens.Record) { r.Limits = tokens.Limits{} })
			}},
		"replaced": {limits: tokens.Limits{MaxNodes: 1}, node: "worker-2", reason: "TokenSpent",
			happen: func(_ *testing.T, c *cluster, id string) {
				c.editToken(id, func(r *tokens.Record) { r.UID, r.Limits, r.Nodes = "another", tokens.Limits{}, nil })
			}},
		"deleted": {limits: tokens.Limits{MaxNodes: 2}, node: "worker-2", reason: "TokenRevoked",
			happen: func(_ *testing.T, c *cluster, id string) { delete(c.records, id) }},
		"released by a person": {limits: tokens.Limits{MaxNodes: 1}, node: "worker-2",
			happen: func(_ *testing.T, c *cluster, id string) {
				c.editToken(id, func(r *tokens.Record) { r.Nodes = nil })
				delete(c.claims, node)
			}},
	} {
		for _, stuck := range []string{"before the first machine", "after it"} {
			t.Run(name+", stuck "+stuck, func(t *testing.T) {
				c := newCluster()
				token := c.createToken(test.limits)
				n := c.admission()
				if stuck == "before the first machine" {
					c.freezeCaches()
				}
				must.Value(admit(t.Context(), n, firstRequest(t, bootstrapUser(token), node, nil)))(t)
				if stuck == "after it" {
					c.freezeCaches()
				}
				if test.happen != nil {
					test.happen(t, c, token.ID())
				}
				_, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(token), test.node, nil))
				if test.reason == "" {
					if err != nil {
						t.Error(err)
					}
					return
				}
				wantRefused(t, name, err, test.reason)
			})
		}
	}
}

// With a stale cache of claims, neither a token without limits nor another user may get a claimed name.
func TestStaleCacheKeepsClaimedName(t *testing.T) {
	c := newCluster()
	limited, unlimited := c.createToken(tokens.Limits{MaxNodes: 1}), c.createToken(tokens.Limits{})
	c.freezeCaches()
	n := c.admission()
	must.Value(admit(t.Context(), n, firstRequest(t, bootstrapUser(limited), "worker-1", nil)))(t)
	for _, user := range []string{bootstrapUser(unlimited), "jane"} {
		_, err := admit(t.Context(), n, firstRequest(t, user, "worker-1", nil))
		wantRefused(t, user, err, "NodeNameClaimed")
	}
}

// If an operator removes the permission to replace a Node from a token, stale caches must not restore it.
func TestRemovedReplacementIsReadLive(t *testing.T) {
	for name, limits := range map[string]tokens.Limits{"for one node": {MaxNodes: 1}, "without limits": {}, "by name": {NodeNames: []string{"worker-1"}}} {
		c := newCluster()
		token := c.createToken(tokens.Limits{Replaces: tokens.NodeRef{Name: "worker-1", UID: c.node("worker-1")}})
		c.freezeCaches()
		c.editToken(token.ID(), func(r *tokens.Record) { r.Limits = limits })
		_, err := admit(t.Context(), c.admission(), firstRequest(t, bootstrapUser(token), "worker-1", nil))
		wantRefused(t, name, err, "NodeExists")
		if len(c.claims) > 0 {
			t.Errorf("%s: got claims %v, want none", name, c.claims)
		}
	}
}

// The claim of a machine that has not registered yet counts, even if the claim is new and somebody has replaced the
// Secret.
func TestReplacedSecretCountsJoiningMachine(t *testing.T) {
	for name, edit := range map[string]func(*tokens.Record){
		"annotations erased":     func(r *tokens.Record) { r.Limits, r.Nodes = tokens.Limits{}, nil },
		"count erased":           func(r *tokens.Record) { r.Nodes = nil },
		"replaced":               func(r *tokens.Record) { r.UID, r.Limits, r.Nodes = "another", tokens.Limits{}, nil },
		"replaced, with a limit": func(r *tokens.Record) { r.UID, r.Nodes = "another", nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster()
				token := c.createToken(tokens.Limits{MaxNodes: 1})
				first := firstRequest(t, bootstrapUser(token), "worker-1", csrtest.ECDSA(elliptic.P256()))
				n := c.admission()
				must.Value(admit(t.Context(), n, first))(t)
				c.editToken(token.ID(), edit)
				c.refreshCaches()
				c.runClaimCleaner(t, c.Node)
				c.runClaimCleaner(t, func(context.Context, string) (string, error) { return "", tokens.ErrNotFound })
				_, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(token), "worker-2", nil))
				wantRefused(t, "a second machine", err, "TokenSpent", "worker-1 has joined with it")
				if a, err := admit(t.Context(), n, first); err != nil || a.Keys != 1 {
					t.Errorf("first machine again: got %+v, %v, want an admission", a, err)
				}
				if r := c.records[token.ID()]; !slices.Equal(r.Nodes, []string{"worker-1"}) || r.Limits.MaxNodes != 1 {
					t.Errorf("got counted names %q and a limit of %d, want worker-1 and 1", r.Nodes, r.Limits.MaxNodes)
				}
			})
		})
	}
}

// Once the replaced Node is Ready again, the token admits no more keys, whether a request or the claim cleaner
// noticed it. A Node that has been Ready since before does not count.
func TestTokenIsSpentOnceReplacedNodeIsReadyAgain(t *testing.T) {
	const node = "worker-1"
	for name, sees := range map[string]func(t *testing.T, c *cluster, token tokens.Token){
		"seen by the next request": func(t *testing.T, c *cluster, token tokens.Token) {
			_, err := admit(t.Context(), c.admission(), firstRequest(t, bootstrapUser(token), node, nil))
			wantRefused(t, "while Ready again", err, "NodeExists", "--replace-node worker-1")
		},
		"seen by the claim cleaner": func(t *testing.T, c *cluster, _ tokens.Token) { c.runClaimCleaner(t, c.Node) },
	} {
		for _, before := range []string{"", "old"} { // the Ready period at the first request
			t.Run(name+", was "+before, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := newCluster()
					token := c.createToken(tokens.Limits{Replaces: tokens.NodeRef{Name: node, UID: c.node(node)}})
					c.ready[node] = before
					first := firstRequest(t, bootstrapUser(token), node, csrtest.ECDSA(elliptic.P256()))
					admitted := func(what string, r int) {
						t.Helper()
						request := first
						if r > 1 {
							request = firstRequest(t, bootstrapUser(token), node, nil)
						}
						if a, err := admit(t.Context(), c.admission(), request); err != nil || a.Keys != r {
							t.Fatalf("%s: %+v %v, want key %d", what, a, err, r)
						}
						c.refreshCaches()
						c.runClaimCleaner(t, c.Node)
					}
					admitted("first", 1)
					admitted("a kubelet that starts over", 2)
					c.ready[node] = ""
					admitted("one more, since the Node is not Ready", 3)
					if c.claims[node].ReadyAgain {
						t.Fatal("got ReadyAgain for a Node that was never Ready again")
					}
					c.ready[node] = "new"
					sees(t, c, token)
					for _, period := range []string{"", "new", "", before, "newer"} {
						c.ready[node] = period
						claim := c.claims[node]
						claim.Keys = claim.Keys[:1] // so that the number of keys is not the reason
						c.claims[node] = claim
						for what, r := range map[string]int{"another key": 2, "the first key": 1} {
							request := first
							if r > 1 {
								request = firstRequest(t, bootstrapUser(token), node, nil)
							}
							_, err := admit(t.Context(), c.admission(), request)
							wantRefused(t, what+" in period "+period, err, "NodeExists", "another machine has already replaced Node worker-1")
							if keys := len(c.claims[node].Keys); keys != 1 {
								t.Errorf("%s in period %s: got %d keys on the claim, want 1", what, period, keys)
							}
						}
					}
				})
			})
		}
	}
}

// A token that replaces a Node and has counted its name gets no second claim if the first one is lost.
func TestReplacingTokenClaimsOnlyOnce(t *testing.T) {
	const node = "worker-1"
	for name, loses := range map[string]func(t *testing.T, c *cluster, uid string){
		"Lease deleted": func(_ *testing.T, c *cluster, _ string) { delete(c.claims, node) },
		"released, by hand": func(_ *testing.T, c *cluster, _ string) {
			c.claims[node] = tokens.Claim{Node: node, Past: tokens.ReleasedClaim{Until: time.Now().Add(time.Hour).Truncate(time.Second)}, UID: "u", Version: c.next()}
		},
		"another token took it over": func(t *testing.T, c *cluster, uid string) {
			other := c.createToken(tokens.Limits{Replaces: tokens.NodeRef{Name: node, UID: uid}})
			must.Value(admit(t.Context(), c.admission(), firstRequest(t, bootstrapUser(other), node, nil)))(t)
		},
	} {
		for _, period := range []string{"", "new"} {
			c := newCluster()
			uid := c.node(node)
			token := c.createToken(tokens.Limits{Replaces: tokens.NodeRef{Name: node, UID: uid}})
			must.Value(admit(t.Context(), c.admission(), firstRequest(t, bootstrapUser(token), node, nil)))(t)
			loses(t, c, uid)
			c.refreshCaches()
			c.ready[node] = period
			_, err := admit(t.Context(), c.admission(), firstRequest(t, bootstrapUser(token), node, nil))
			wantRefused(t, name, err, "TokenSpent", "kubejoin token create --replace-node worker-1")
		}
	}
}

// The token is replaced by another one with the same ID while a request of the first one is handled. The request must not
// be admitted with the second.
func TestRefusesTokenReplacedMeanwhile(t *testing.T) {
	for name, test := range map[string]struct {
		database bool
		claimed  bool // the claim was written
		when     func(n *admission.Nodes, c *cluster, replace func())
	}{
		"during the count": {when: func(n *admission.Nodes, c *cluster, replace func()) { c.hookBeforeCount(n, replace) }},
		"after the claim":  {claimed: true, when: func(n *admission.Nodes, c *cluster, replace func()) { n.Claims = c.stalled(nothing, replace).Claims }},
		"before the transaction": {database: true, when: func(n *admission.Nodes, _ *cluster, replace func()) {
			n.Claims = storetest.Before(func() error { replace(); return nil }, "Claims.Commit").Claims(n.Claims)
		}},
	} {
		c := newCluster()
		c.oneDatabase = test.database
		token := c.createToken(tokens.Limits{MaxNodes: 1})
		n := c.admission()
		test.when(n, c, sync.OnceFunc(func() { c.editToken(token.ID(), func(r *tokens.Record) { r.UID = "another" }) }))
		a, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(token), "worker-1", nil))
		if a != nil || err == nil || !strings.Contains(err.Error(), "was replaced while") {
			t.Errorf("%s: got %+v, %v, want an error about a replaced token", name, a, err)
		}
		if got := c.records[token.ID()].Nodes; !test.claimed && len(got)+len(c.claims) > 0 {
			t.Errorf("%s: the other token counts %q, and there are claims %+v, want nothing", name, got, c.claims)
		}
	}
}

// What a cache shows may have ended. Catches a refusal by a cache, and an error that hides a refusal.
func TestStaleCachesRefuseNothing(t *testing.T) {
	c := newCluster()
	past := tokens.ReleasedClaim{Until: time.Now().Add(time.Hour).Truncate(time.Second)}
	c.claims["worker-1"] = tokens.Claim{Node: "worker-1", UID: "1", Version: "1", Created: time.Now(), Past: past}
	deleted := c.createToken(tokens.Limits{})
	c.freezeCaches()
	delete(c.records, deleted.ID())
	token, holder := c.createToken(tokens.Limits{MaxNodes: 1}), c.createToken(tokens.Limits{MaxNodes: 1})
	c.change("worker-1", func(claim *tokens.Claim) { claim.TokenID, claim.Past = holder.ID(), tokens.ReleasedClaim{} })
	if _, err := admit(t.Context(), c.admission(), firstRequest(t, bootstrapUser(token), "worker-2", nil)); err != nil {
		t.Errorf("a new token: %v", err)
	}
	n := c.admission()
	n.Node = nil
	if _, err := admit(t.Context(), n, renewal(t, "worker-1")); err != nil {
		t.Errorf("a name that was released and claimed again: %v", err)
	}
	_, err := admit(t.Context(), c.admission(), firstRequest(t, bootstrapUser(deleted), "worker-3", nil))
	wantRefused(t, "a deleted token", err, "TokenRevoked")
}
