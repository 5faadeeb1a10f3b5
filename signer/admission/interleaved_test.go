package admission_test

import (
	"context"
	"crypto/elliptic"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
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
	find    error                      // of the cached Get of a claim
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
	case "Claims.Get.cached":
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
	claim.Version = c.next()
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
			c.change(node, func(claim *tokens.Claim) { claim.UID, claim.Version = "another", "1" })
		}
	}
	must.Value(admit(t.Context(), b.admission(c), firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{MaxNodes: 1})), "worker-1", nil)))(t)
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

// A request that no signer would sign must not leave a claim.
func TestUnsignableRequestLeavesNoClaim(t *testing.T) {
	for want, spoil := range map[string]func(*x509.CertificateRequest){
		"want RSA, ECDSA or Ed25519": func(csr *x509.CertificateRequest) {
			csr.PublicKey, csr.PublicKeyAlgorithm = nil, x509.UnknownPublicKeyAlgorithm
		},
		"1024 bits": func(csr *x509.CertificateRequest) { csr.PublicKey = csrtest.RSA1024().Public() },
		"P-224":     func(csr *x509.CertificateRequest) { csr.PublicKey = csrtest.ECDSA(elliptic.P224()).Public() },
		"not signed by its own key": func(csr *x509.CertificateRequest) {
			csr.Signature = slices.Clone(csr.Signature)
			csr.Signature[len(csr.Signature)-1] ^= 1
		},
	} {
		c := newCluster()
		r := firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{MaxNodes: 1})), "worker-1", csrtest.Ed25519())
		csr := *r.CSR
		spoil(&csr)
		r.CSR = &csr
		if _, err := admit(t.Context(), c.admission(), r); approval.Refused(err) == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want a refusal with %q", err, want)
		}
		if len(c.claims) > 0 {
			t.Errorf("%s: got claims %v, want none", want, c.claims)
		}
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
