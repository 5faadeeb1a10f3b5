package admission_test

import (
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/signer/revocation"
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
	return &x509.Certificate{Raw: r.CSR.Raw, RawSubjectPublicKeyInfo: r.CSR.RawSubjectPublicKeyInfo, NotAfter: time.Now().Add(24 * time.Hour)}
}

// renewalBy returns the renewal of a node that authenticates with the certificate of an earlier request.
func renewalBy(t testing.TB, before approval.Request) approval.Request {
	t.Helper()
	r := renewal(t, strings.TrimPrefix(before.CSR.Subject.CommonName, "system:node:"))
	r.Extra = map[string][]string{revocation.CredentialIDKey: {revocation.FingerprintOf(certificateOf(before)).CredentialID()}}
	return r
}

func keysOf(i tokens.Identity) (keys []string) {
	for _, c := range i.Credentials {
		keys = append(keys, c.Key)
	}
	return keys
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
	if !slices.Equal(keysOf(i), keys) || i.NodeUID != nodeUID {
		t.Errorf("%s: got Node %q and keys %q, want %q and %q", when, i.NodeUID, keysOf(i), nodeUID, keys)
	}
}

// A node must be able to prove itself with its last keys, whichever token it has used. With a restored disk of the
// time before, it must not.
func TestStoresLastKeys(t *testing.T) {
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
				r := firstRequest(t, bootstrapUser(c.createToken(limits)), "worker-1", nil)
				first := mustIssue(t, n, r)
				wantIdentity(t, c, "first certificate", "", first)
				uid := c.node("worker-1")
				var lost []approval.Request // the machine gets any one of the responses
				keys := []string{first}
				for i := range 5 {
					next := renewalBy(t, r)
					lost, keys = append(lost, next), append(keys, mustIssue(t, n, next))
					if len(keys) > tokens.MaxCredentials {
						keys = slices.Delete(keys, 1, 2)
					}
					wantIdentity(t, c, fmt.Sprint("renewal ", i), uid, keys...)
				}
				r = lost[3] // not the last one
				second, third := pkcs10.KeyID(r.CSR), mustIssue(t, n, renewalBy(t, r))
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

// A first certificate may be signed twice, for example because a response was lost. The machine must be known by either.
func TestFirstCertificateTwice(t *testing.T) {
	c := newCluster()
	n := c.admission()
	n.RejoinWindow = rejoinWindow
	r := firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{MaxNodes: 1})), "worker-1", nil)
	checked := must.Value(admission.Check(r))(t)
	for _, serial := range []string{"delivered", "lost"} {
		cert := certificateOf(r)
		cert.Raw = []byte(serial)
		must.OK(t, n.StoreIdentity(t.Context(), checked, must.Value(n.Admit(t.Context(), checked))(t), cert))
	}
	uid := c.node("worker-1")
	renewed := renewal(t, "worker-1")
	renewed.Extra = map[string][]string{revocation.CredentialIDKey: {revocation.FingerprintOf(&x509.Certificate{Raw: []byte("delivered")}).CredentialID()}}
	key := mustIssue(t, n, renewed)
	wantIdentity(t, c, "renewal", uid, pkcs10.KeyID(r.CSR), pkcs10.KeyID(r.CSR), key)

	c = newCluster()
	n = c.admission()
	n.RejoinWindow = rejoinWindow
	token := c.createToken(tokens.Limits{MaxNodes: 1})
	for range 2 { // the machine started over with another key, or another one uses the token
		wantIdentity(t, c, "another key", "", mustIssue(t, n, firstRequest(t, bootstrapUser(token), "worker-1", csrtest.NewKey())))
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
			r := firstRequest(t, bootstrapUser(first), "worker-1", nil)
			mustIssue(t, n, r)
			uid := c.node("worker-1")
			c.change("worker-1", func(claim *tokens.Claim) {
				claim.Identity.NodeUID, claim.Identity.Bound, claim.Identity.Rejoins = uid, tokens.Credential{Key: "sha256:bound"}, []time.Time{time.Now()}
			})
			r = renewalBy(t, r)
			mustIssue(t, n, r)
			if i := c.claims["worker-1"].Identity; i.TokenID != first.ID() || i.Bound.Key == "" || len(i.Rejoins) != 1 {
				t.Errorf("after a renewal: got %+v, want the same machine", i)
			}
			if test.limits.Replaces.Name != "" {
				test.limits.Replaces.UID = uid
			}
			token := c.createToken(test.limits)
			key := mustIssue(t, n, firstRequest(t, bootstrapUser(token), "worker-1", nil))
			i := c.claims["worker-1"].Identity
			if !slices.Equal(keysOf(i), []string{key}) || i.TokenID != token.ID() || i.Bound.Key != "" || len(i.Rejoins) > 0 {
				t.Errorf("after the certificate of another machine: got %+v, want only its key and token", i)
			}
			// The machine before still has a valid certificate, and renews it. An unknown credential may be its, too.
			for range 3 {
				r = renewalBy(t, r)
				mustIssue(t, n, r)
				mustIssue(t, n, renewal(t, "worker-1"))
			}
			if a := must.Value(n.Admit(t.Context(), must.Value(admission.Check(renewalBy(t, r)))(t)))(t); !a.Stranger {
				t.Error("a renewal of the machine before counts for the name")
			}
			if after := c.claims["worker-1"].Identity; !after.Equal(i) {
				t.Errorf("after renewals of the machine before: got %+v, want %+v", after, i)
			}
			current := pkcs10.KeyID(r.CSR)
			wantRefused(t, "bind a key", n.BindKey(t.Context(), "worker-1", tokens.Credential{Key: current}, "sha256:stolen"), "KeyNotCurrent")
			n.Now = func() time.Time { return time.Now().Add(25 * time.Hour) }
			wantRefused(t, "rejoin", issue(t, n, late(t, "worker-1", current, certificateOf(r).NotAfter, nil)), "KeyNotCurrent")
		})
	}
}

// A node that kubejoin does not know, for example from before --rejoin-window, must be known from its first renewal on.
func TestFirstRenewalBeginsIdentity(t *testing.T) {
	c := newCluster()
	n := c.admission()
	n.RejoinWindow = rejoinWindow
	uid := c.node("worker-1")
	r := renewal(t, "worker-1")
	first := mustIssue(t, n, r)
	wantIdentity(t, c, "first renewal", uid, first)
	wantIdentity(t, c, "second renewal", uid, first, mustIssue(t, n, renewalBy(t, r)))

	c = newCluster()
	n.Claims, n.Node = c.admission().Claims, c.Node
	uid = c.node("worker-1")
	var keys []string
	for range 2 { // the machine loses the first response, so its certificate is still the one from before
		next := renewalBy(t, r)
		keys = append(keys, mustIssue(t, n, next))
		wantIdentity(t, c, "certificate from before", uid, append([]string{""}, keys...)...)
	}
	by := tokens.Credential{Key: pkcs10.KeyID(r.CSR), Fingerprint: string(revocation.FingerprintOf(certificateOf(r)))}
	must.OK(t, n.BindKey(t.Context(), "worker-1", by, "sha256:bound"))
	n.Now = func() time.Time { return time.Now().Add(25 * time.Hour) }
	back := late(t, "worker-1", by.Key, certificateOf(r).NotAfter, nil)
	back.Extra = renewalBy(t, r).Extra
	wantIdentity(t, c, "rejoin", uid, append([]string{""}, append(keys, mustIssue(t, n, back))...)...)
}

// Nodes of a token with rejoin=deny must leave no credential, even if somebody erases the limit. The claim may also end
// because the Node is deleted, and the machine registers again.
func TestDenyLeavesNoIdentity(t *testing.T) {
	c := newCluster()
	n := c.admission()
	n.RejoinWindow = rejoinWindow
	token := c.createToken(tokens.Limits{NodeNames: []string{"worker-*"}, Rejoin: tokens.RejoinDeny})
	mustIssue(t, n, firstRequest(t, bootstrapUser(token), "worker-1", nil))
	uid := c.node("worker-1")
	mustIssue(t, n, renewal(t, "worker-1"))
	wantIdentity(t, c, "denied", uid)
	c.editToken(token.ID(), func(r *tokens.Record) { r.Limits = tokens.Limits{} })
	mustIssue(t, n, firstRequest(t, bootstrapUser(token), "worker-2", nil))
	if claim := c.claims["worker-2"]; claim.Limits.Rejoin != tokens.RejoinDeny || len(claim.Identity.Credentials) > 0 {
		t.Errorf("with erased limits: got claim %+v, want rejoin denied", claim)
	}
	long := renewal(t, "worker-1")
	checked := must.Value(admission.Check(long))(t)
	cert := certificateOf(long)
	cert.NotAfter = time.Now().AddDate(1, 0, 0)
	must.OK(t, n.StoreIdentity(t.Context(), checked, must.Value(n.Admit(t.Context(), checked))(t), cert))
	mustIssue(t, n, renewal(t, "worker-1")) // a shorter one: the long one is still valid
	if past := c.claims["worker-1"].PastAfterRelease(time.Now(), 0); !past.Active(cert.NotAfter) {
		t.Errorf("got %+v, want it to last as long as the longest certificate, until %s", past, cert.NotAfter)
	}
	for i := range 2 {
		c.change("worker-1", func(claim *tokens.Claim) { *claim = claim.AfterRelease(claim.PastAfterRelease(time.Now(), 0)) })
		uid := c.node("worker-1")
		r := renewal(t, "worker-1")
		key := mustIssue(t, n, r)
		wantIdentity(t, c, fmt.Sprint("registered again, ", i), uid)
		n.Now = func() time.Time { return time.Now().Add(25 * time.Hour) }
		wantRefused(t, "rejoin", issue(t, n, late(t, "worker-1", key, certificateOf(r).NotAfter, nil)), "RejoinOff")
		n.Now = nil
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
