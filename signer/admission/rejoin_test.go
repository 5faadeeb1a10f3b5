package admission_test

import (
	"context"
	"crypto"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

// late returns the request of a node that has proven the key of an expired certificate. With a zero end it has proven a
// bound key.
func late(t testing.TB, node, proven string, end time.Time, key crypto.Signer) approval.Request {
	t.Helper()
	r := firstRequest(t, "system:node:"+node, node, key)
	r.Groups, r.Rejoin = []string{"system:nodes", "system:authenticated"}, &approval.Rejoin{Key: proven, NotAfter: end}
	return r
}

// returning returns a cluster with the node worker-1, its last key, and when its certificate has ended.
func returning(t testing.TB, limits tokens.Limits) (c *cluster, n *admission.Nodes, key string, end time.Time) {
	t.Helper()
	c = newCluster()
	n = c.admission()
	n.RejoinWindow, n.Now = rejoinWindow, func() time.Time { return time.Now().Add(25 * time.Hour) }
	token := c.createToken(limits)
	c.editToken(token.ID(), func(r *tokens.Record) { r.Expires = time.Now().Add(100 * time.Hour) })
	r := firstRequest(t, bootstrapUser(token), "worker-1", nil)
	checked := must.Value(admission.Check(r))(t)
	a := must.Value(n.Admit(t.Context(), checked))(t)
	cert := certificateOf(r)
	must.OK(t, n.StoreIdentity(t.Context(), checked, a, cert))
	uid := c.node("worker-1")
	c.change("worker-1", func(claim *tokens.Claim) {
		claim.Identity.NodeUID = uid
		if !claim.Released() {
			claim.NodeUID = uid
		}
	})
	c.history = nil
	return c, n, pkcs10.KeyID(r.CSR), cert.NotAfter
}

// A node that rejoins must keep the limits, the token and the bound key of its identity, and be able to do so again.
func TestRejoinKeepsIdentity(t *testing.T) {
	for name, limits := range map[string]tokens.Limits{"without limits": {}, "limited": {MaxNodes: 1, CertificateDuration: 2 * time.Hour}} {
		t.Run(name, func(t *testing.T) {
			c, n, key, end := returning(t, limits)
			before := c.claims["worker-1"]
			keys := []string{key}
			for i := range admission.DefaultRejoinBudget {
				r := late(t, "worker-1", key, end, nil)
				a, err := admit(t.Context(), n, r)
				if err != nil || a.Duration != limits.CertificateDuration || a.TokenID != "" {
					t.Fatalf("rejoin %d: got %+v, %v", i, a, err)
				}
				key = mustIssue(t, n, r)
				keys = append(keys, key)
				got := c.claims["worker-1"]
				if i := got.Identity; !slices.Equal(keysOf(i), keys[len(keys)-2:]) || i.TokenID != before.Identity.TokenID || i.TokenID == "" || i.NodeUID != before.NodeUID && before.NodeUID != "" || got.TokenID != before.TokenID {
					t.Errorf("got claim %+v, want the machine of %+v", got, before)
				}
			}
			wantRefused(t, "more than the budget", issue(t, n, late(t, "worker-1", key, end, nil)), "RejoinBudgetSpent")
			wantRefused(t, "key from before", issue(t, n, late(t, "worker-1", keys[0], end, nil)), "KeyNotCurrent")
		})
	}
}

// A Past that has ended limits the certificate of a rejoin, too: a node may rejoin for longer than it lasts.
func TestRejoinKeepsDurationOfReleasedClaim(t *testing.T) {
	c, n, key, end := returning(t, tokens.Limits{})
	c.change("worker-1", func(claim *tokens.Claim) {
		claim.Past = tokens.ReleasedClaim{Until: time.Now().Truncate(time.Second), CertificateDuration: 2 * time.Hour}
	})
	if a, err := admit(t.Context(), n, late(t, "worker-1", key, end, nil)); err != nil || a.Duration != 2*time.Hour {
		t.Errorf("got %+v, %v, want a duration of 2h", a, err)
	}
}

// Such a node must get nothing but its own client certificate.
func TestRejoinIsForOwnClientCertificateOnly(t *testing.T) {
	_, n, key, end := returning(t, tokens.Limits{})
	for name, change := range map[string]func(*approval.Request){
		"serving certificate": func(r *approval.Request) {
			r.SignerName = certificates.KubeletServingSignerName
			r.Usages = []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageServerAuth}
		},
		"server usage":   func(r *approval.Request) { r.Usages = []certificates.KeyUsage{certificates.UsageServerAuth} },
		"another node":   func(r *approval.Request) { r.CSR = late(t, "worker-2", key, end, nil).CSR },
		"another user":   func(r *approval.Request) { r.User = "jane" },
		"another group":  func(r *approval.Request) { r.Groups = []string{"system:authenticated"} },
		"bootstrap user": func(r *approval.Request) { r.User = "system:bootstrap:abcdef" },
	} {
		r := late(t, "worker-1", key, end, nil)
		change(&r)
		_, err := admit(t.Context(), n, r)
		wantRefused(t, name, err, "NotForRejoin")
	}
}

// What ends an identity between the admission and the certificate must refuse the write, so that no certificate leaves.
func TestRejoinIsDecidedAgainInTheWrite(t *testing.T) {
	for name, test := range map[string]struct {
		change func(t *testing.T, c *cluster, n *admission.Nodes, key string, end time.Time)
		reason string // empty: another error
	}{
		"released": {func(_ *testing.T, c *cluster, _ *admission.Nodes, _ string, _ time.Time) {
			c.change("worker-1", func(claim *tokens.Claim) {
				*claim = tokens.Claim{Node: "worker-1", UID: claim.UID, Version: claim.Version + "1"}
			})
		}, "KeyNotCurrent"},
		"deleted": {func(_ *testing.T, c *cluster, _ *admission.Nodes, _ string, _ time.Time) {
			c.mu.Lock()
			defer c.mu.Unlock()
			delete(c.claims, "worker-1")
		}, ""},
		"two other rejoins": {func(t *testing.T, _ *cluster, n *admission.Nodes, key string, end time.Time) {
			mustIssue(t, n, late(t, "worker-1", mustIssue(t, n, late(t, "worker-1", key, end, nil)), end, nil))
		}, "KeyNotCurrent"},
		"another machine": {func(t *testing.T, c *cluster, n *admission.Nodes, _ string, _ time.Time) {
			token := c.createToken(tokens.Limits{Replaces: tokens.NodeRef{Name: "worker-1", UID: c.nodes["worker-1"]}})
			c.editToken(token.ID(), func(r *tokens.Record) { r.Expires = time.Now().Add(100 * time.Hour) })
			mustIssue(t, n, firstRequest(t, bootstrapUser(token), "worker-1", nil))
		}, "KeyNotCurrent"},
		"Node of another machine": {func(_ *testing.T, c *cluster, _ *admission.Nodes, _ string, _ time.Time) {
			c.change("worker-1", func(claim *tokens.Claim) { claim.Identity.NodeUID = "other"; claim.Version += "1" })
		}, "NodeReplaced"},
		"token denies": {func(_ *testing.T, c *cluster, _ *admission.Nodes, _ string, _ time.Time) {
			c.change("worker-1", func(claim *tokens.Claim) { claim.Limits.Rejoin = tokens.RejoinDeny; claim.Version += "1" })
		}, "RejoinOff"},
	} {
		t.Run(name, func(t *testing.T) {
			c, n, key, end := returning(t, tokens.Limits{MaxNodes: 1})
			r := late(t, "worker-1", key, end, nil)
			checked, err := admission.Check(r)
			if err != nil {
				t.Fatal(err)
			}
			a := must.Value(n.Admit(t.Context(), checked))(t)
			test.change(t, c, n, key, end)
			before := c.claims["worker-1"]
			err = n.StoreIdentity(t.Context(), checked, a, certificateOf(r))
			if test.reason == "" && err == nil {
				t.Error("got no error")
			} else if test.reason != "" {
				wantRefused(t, "StoreIdentity", err, test.reason)
			}
			if after := c.claims["worker-1"]; !after.Equal(before) {
				t.Errorf("got claim %+v, want it as before: %+v", after, before)
			}
		})
	}
}

// Many requests of one machine at once, over a store that fails: each key that got a certificate counts once, and never
// more keys than the budget get one.
func TestConcurrentRejoinsStayWithinBudget(t *testing.T) {
	c, n, key, end := returning(t, tokens.Limits{MaxNodes: 1})
	var mu sync.Mutex
	got := map[string]bool{}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			r := late(t, "worker-1", key, end, csrtest.NewKey())
			for range 3 { // a lost response: the same key again
				if err := issue(t, n, r); err == nil {
					mu.Lock()
					got[pkcs10.KeyID(r.CSR)] = true
					mu.Unlock()
				} else if approval.Refused(err) == nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if i := c.claims["worker-1"].Identity; len(got) == 0 || len(got) > admission.DefaultRejoinBudget || len(i.Rejoins) > admission.DefaultRejoinBudget || i.Credentials[0].Key != key || !got[i.Last().Key] {
		t.Errorf("got %d keys with a certificate, rejoins %v and keys %q", len(got), i.Rejoins, keysOf(i))
	}
}

// A key may be bound once, by a node with a current key.
func TestBindsOneKey(t *testing.T) {
	const bound = "sha256:bound"
	c, n, key, end := returning(t, tokens.Limits{})
	valid := func() time.Time { return end.Add(-time.Hour) }
	n.Now = valid
	bind := func(current, key string) error {
		return n.BindKey(t.Context(), "worker-1", tokens.Credential{Key: current, Fingerprint: "by-" + current}, key)
	}
	wantRefused(t, "by another key", bind("sha256:other", bound), "KeyNotCurrent")
	wantRefused(t, "its own key", bind(key, key), "KeyReused")
	for range 2 {
		must.OK(t, bind(key, bound))
	}
	if got, want := c.claims["worker-1"].Identity.Bound, (tokens.Credential{Key: bound, Fingerprint: "by-" + key}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	wantRefused(t, "a second key", bind(key, "sha256:second"), "KeyNotCurrent", "kubejoin claim release worker-1")
	wantRefused(t, "by the bound key", bind(bound, bound), "KeyNotCurrent")
	c.history = nil
	for _, test := range []struct {
		node, key string
		want      bool
	}{{"worker-1", bound, true}, {"worker-1", key, false}, {"worker-1", "", false}, {"worker-2", bound, false}} {
		if err := n.Bound(t.Context(), test.node, test.key); (err == nil) != test.want {
			t.Errorf("%s %s: got %v, want bound %t", test.node, test.key, err, test.want)
		}
	}
	c.deleteNode("worker-1")
	wantRefused(t, "deleted Node", bind(key, bound), "NodeNotFound")
	wantRefused(t, "no claim", n.BindKey(t.Context(), "worker-2", tokens.Credential{Key: key}, bound), "KeyNotCurrent")
	n.RejoinWindow = 0
	wantRefused(t, "no window", bind(key, bound), "RejoinOff")
	if err := n.Bound(t.Context(), "worker-1", bound); !errors.Is(err, tokens.ErrNotFound) {
		t.Errorf("no window: got %v, want the key not bound", err)
	}
	for what, n := range map[string]*admission.Nodes{"no Nodes": nil, "no claims": {RejoinWindow: rejoinWindow}} {
		wantRefused(t, what, n.BindKey(t.Context(), "worker-1", tokens.Credential{Key: key}, bound), "RejoinOff")
		if err := n.Bound(t.Context(), "worker-1", bound); !errors.Is(err, tokens.ErrNotFound) {
			t.Errorf("%s: got %v, want the key not bound", what, err)
		}
		if by, err := n.BoundBy(t.Context(), "worker-1"); by != "" || err != nil {
			t.Errorf("%s: bound by %q, %v, want by none", what, by, err)
		}
	}
}

// An error of the cluster or of the store must not refuse a rejoin, nor allow it.
func TestFailedCallsRefuseNoRejoin(t *testing.T) {
	c, n, key, end := returning(t, tokens.Limits{})
	r := late(t, "worker-1", key, end, nil)
	n.Node = func(context.Context, string) (string, error) { return "", errInjected }
	if err := issue(t, n, r); !errors.Is(err, errInjected) {
		t.Errorf("Node: got %v", err)
	}
	if err := n.BindKey(t.Context(), "worker-1", tokens.Credential{Key: key}, "sha256:bound"); !errors.Is(err, errInjected) {
		t.Errorf("BindKey: got %v", err)
	}
	n.Node = c.Node
	for at := 1; ; at++ {
		c.calls, c.failAt = 0, at
		err := issue(t, n, r)
		if err == nil {
			break
		}
		if !errors.Is(err, errInjected) {
			t.Errorf("call %d: got %v, want its error", at, err)
		}
	}
	if i := c.claims["worker-1"].Identity; len(i.Rejoins) != 1 {
		t.Errorf("got rejoins %v, want one", i.Rejoins)
	}
	// Without claims, kubejoin knows no key.
	n = &admission.Nodes{RejoinWindow: rejoinWindow}
	_, err := admit(t.Context(), n, r)
	wantRefused(t, "no claims", err, "KeyNotCurrent", "knows no key of node worker-1")
}
