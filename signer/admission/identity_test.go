package admission_test

import (
	"crypto/x509"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/tokens"
)

const rejoinWindow = 30 * 24 * time.Hour

// issue admits a request and stores its key, as the Authority does when it has made the certificate.
func issue(t *testing.T, n *admission.Nodes, r approval.Request) error {
	t.Helper()
	checked := must.Value(admission.Check(r))(t)
	a, err := n.Admit(t.Context(), checked)
	if err != nil {
		return err
	}
	return n.StoreIdentity(t.Context(), checked, a, certificateOf(r))
}

func certificateOf(r approval.Request) *x509.Certificate {
	return &x509.Certificate{RawSubjectPublicKeyInfo: r.CSR.RawSubjectPublicKeyInfo, NotAfter: time.Now().Add(24 * time.Hour)}
}

// mustIssue is issue that must succeed. It returns the key.
func mustIssue(t *testing.T, n *admission.Nodes, r approval.Request) string {
	t.Helper()
	must.OK(t, issue(t, n, r))
	return pkcs10.KeyID(r.CSR)
}

func wantIdentity(t *testing.T, c *cluster, when, nodeUID string, keys ...string) {
	t.Helper()
	i := c.claims["worker-1"].Identity
	if !slices.Equal(i.Keys, keys) || i.NodeUID != nodeUID {
		t.Errorf("%s: got Node %q and keys %q, want %q and %q", when, i.NodeUID, i.Keys, nodeUID, keys)
	}
}

// A node must be able to prove itself with its last two keys, whichever token it has used. With a restored disk of the
// time before, it must not.
func TestStoresLastTwoKeys(t *testing.T) {
	for name, limits := range map[string]tokens.Limits{
		"without limits": {},
		"limited":        {MaxNodes: 1},
		"allowed":        {Rejoin: tokens.RejoinAllow},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster()
				n := c.admission()
				n.RejoinWindow = rejoinWindow
				first := mustIssue(t, n, firstRequest(t, bootstrapUser(c.createToken(limits)), "worker-1", nil))
				wantIdentity(t, c, "first certificate", "", first)
				uid := c.node("worker-1")
				second := mustIssue(t, n, renewal(t, "worker-1"))
				wantIdentity(t, c, "renewal", uid, first, second)
				third := mustIssue(t, n, renewal(t, "worker-1"))
				wantIdentity(t, c, "another renewal", uid, second, third)
				if end := c.claims["worker-1"].Identity.NotAfter; !end.Equal(time.Now().Add(24 * time.Hour).Truncate(time.Second)) {
					t.Errorf("got end %s, want that of the certificate", end)
				}
				must.OK(t, issue(t, n, servingRequest(t, "worker-1")))
				wantIdentity(t, c, "serving certificate", uid, second, third)
			})
		})
	}
}

// A machine that was replaced, for example a stolen one, must not rejoin: the first certificate of the new machine ends
// its identity. The node's own certificate continues it.
func TestFirstCertificateEndsIdentity(t *testing.T) {
	for name, test := range map[string]struct {
		before, limits tokens.Limits // of the tokens of the machine before and of the new one
		allow          bool          // --existing-nodes
	}{
		"replaces the Node":           {before: tokens.Limits{MaxNodes: 1}, limits: tokens.Limits{Replaces: tokens.NodeRef{Name: "worker-1"}}},
		"without limits, as existing": {allow: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			n := c.admission()
			n.RejoinWindow, n.AllowExisting = rejoinWindow, test.allow
			first := c.createToken(test.before)
			mustIssue(t, n, firstRequest(t, bootstrapUser(first), "worker-1", nil))
			uid := c.node("worker-1")
			c.change("worker-1", func(claim *tokens.Claim) {
				claim.Identity.NodeUID, claim.Identity.BoundKey, claim.Identity.Rejoins = uid, "sha256:bound", []time.Time{time.Now()}
			})
			mustIssue(t, n, renewal(t, "worker-1"))
			if i := c.claims["worker-1"].Identity; i.TokenID != first.ID() || i.BoundKey == "" || len(i.Rejoins) != 1 {
				t.Errorf("after a renewal: got %+v, want the same machine", i)
			}
			if test.limits.Replaces.Name != "" {
				test.limits.Replaces.UID = uid
			}
			token := c.createToken(test.limits)
			key := mustIssue(t, n, firstRequest(t, bootstrapUser(token), "worker-1", nil))
			i := c.claims["worker-1"].Identity
			if !slices.Equal(i.Keys, []string{key}) || i.TokenID != token.ID() || i.BoundKey != "" || len(i.Rejoins) > 0 {
				t.Errorf("after the certificate of another machine: got %+v, want only its key and token", i)
			}
		})
	}
}

// Nodes of a token with rejoin=deny must leave no identity, even if somebody erases the limit.
func TestDenyLeavesNoIdentity(t *testing.T) {
	c := newCluster()
	n := c.admission()
	n.RejoinWindow = rejoinWindow
	token := c.createToken(tokens.Limits{NodeNames: []string{"worker-*"}, Rejoin: tokens.RejoinDeny})
	mustIssue(t, n, firstRequest(t, bootstrapUser(token), "worker-1", nil))
	c.node("worker-1")
	mustIssue(t, n, renewal(t, "worker-1"))
	wantIdentity(t, c, "denied", "")
	c.editToken(token.ID(), func(r *tokens.Record) { r.Limits = tokens.Limits{} })
	mustIssue(t, n, firstRequest(t, bootstrapUser(token), "worker-2", nil))
	if claim := c.claims["worker-2"]; claim.Limits.Rejoin != tokens.RejoinDeny || !claim.Identity.IsZero() {
		t.Errorf("with erased limits: got claim %+v, want rejoin denied", claim)
	}
}

// The name may be taken by another token between admission and certificate: then no certificate may leave.
func TestIdentityFailsIfClaimIsLost(t *testing.T) {
	c := newCluster()
	n := c.admission()
	n.RejoinWindow = rejoinWindow
	r := firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{MaxNodes: 1})), "worker-1", nil)
	checked := must.Value(admission.Check(r))(t)
	a := must.Value(n.Admit(t.Context(), checked))(t)
	c.change("worker-1", func(claim *tokens.Claim) { claim.TokenID = "abc123" })
	if err := n.StoreIdentity(t.Context(), checked, a, certificateOf(r)); err == nil {
		t.Error("got no error for a claim of another token")
	}
	delete(c.claims, "worker-1")
	if err := n.StoreIdentity(t.Context(), checked, a, certificateOf(r)); err == nil {
		t.Error("got no error for a claim that is gone")
	}
}
