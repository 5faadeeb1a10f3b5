package admission_test

import (
	"maps"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// A dry run returns the same reason as an admission and writes nothing.
func TestDryRunPredictsReasonAndWritesNothing(t *testing.T) {
	c := newCluster()
	real := c.admission()
	one, other := c.createToken(tokens.Limits{MaxNodes: 1}), c.createToken(tokens.Limits{MaxNodes: 2, NodeNames: []string{"worker-*"}})
	admit := func(n *admission.Nodes, token tokens.Token, node string) string {
		t.Helper()
		r := firstRequest(t, "system:bootstrap:"+token.ID(), node, nil)
		_, err := admit(t.Context(), n, r)
		if refused := approval.Refused(err); refused != nil {
			return refused.Reason
		} else if err != nil {
			t.Fatal(err)
		}
		return ""
	}
	both := func(token tokens.Token, node, want string) {
		t.Helper()
		claims, records := maps.Clone(c.claims), maps.Clone(c.records)
		for range 2 {
			if got := admit(real.DryRun(), token, node); got != want {
				t.Errorf("dry run for %s: got %q, want %q", node, got, want)
			}
		}
		if !maps.EqualFunc(claims, c.claims, tokens.Claim.Equal) {
			t.Errorf("dry run changed claims: got %v, want %v", c.claims, claims)
		}
		for id, r := range records {
			if c.records[id].Version != r.Version {
				t.Errorf("dry run wrote token %s", id)
			}
		}
		if got := admit(real, token, node); got != want {
			t.Errorf("admission of %s: got %q, want %q", node, got, want)
		}
	}
	both(one, "worker-1", "")
	both(one, "worker-2", admission.ReasonTokenSpent)
	both(other, "worker-1", admission.ReasonNodeNameClaimed)
	both(other, "db-1", admission.ReasonNodeNameNotAllowed)
	both(other, "worker-3", "")
	c.node("worker-4")
	both(other, "worker-4", admission.ReasonNodeExists)

	// The Node of a claim registered and was deleted, so its name is free again.
	uid := c.node("worker-1")
	must.Value(storetest.UpdateClaim(t.Context(), real.Claims, "worker-1", func(claim *tokens.Claim) error { claim.NodeUID = uid; return nil }))(t)
	c.deleteNode("worker-1")
	both(other, "worker-1", "")
	// The cache does not have this claim yet.
	third := c.createToken(tokens.Limits{MaxNodes: 1})
	c.freezeCaches()
	c.claims["worker-5"] = tokens.Claim{Node: "worker-5", TokenID: one.ID(), UID: "5", Version: c.next()}
	both(third, "worker-5", admission.ReasonNodeNameClaimed)
	// The proof that a cache of claims is recent is a write.
	c.refreshCaches()
	noProof := c.admissionWith(storetest.Fail(errInjected, "Claims.Get.recent", "Claims.HeldBy.recent")).DryRun()
	if got := admit(noProof, c.createToken(tokens.Limits{}), "worker-6"); got != "" {
		t.Errorf("dry run of a token without limits: got %q", got)
	}
	if (*admission.Nodes)(nil).DryRun() != nil {
		t.Error("DryRun of nil: got Nodes, want nil")
	}
}
