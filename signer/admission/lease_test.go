package admission_test

import (
	"testing"

	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/tokens"
)

// The claim of this name would be the Lease that replicas of kubejoin use for leader election.
func TestDeniesNodeNameOfOwnLease(t *testing.T) {
	for name, limits := range map[string]*tokens.Limits{
		"token without limits": {},
		"token for one node":   {MaxNodes: 1},
		"token for the name":   {NodeNames: []string{"kubejoin"}},
		"control plane":        {Role: tokens.RoleControlPlane},
		"replaces its Node":    {Replaces: tokens.NodeRef{Name: "kubejoin", UID: "node-1"}},
		"no token":             nil,
	} {
		for _, existing := range []bool{false, true} {
			c := newCluster()
			if existing {
				c.node("kubejoin")
			}
			user := "jane"
			if limits != nil {
				user = bootstrapUser(c.createToken(*limits))
			}
			n := c.admission()
			n.Lease, n.AllowExisting = "kubejoin", true
			for _, n := range []*admission.Nodes{n, n.DryRun()} {
				_, err := admit(t.Context(), n, firstRequest(t, user, "kubejoin", nil))
				wantRefused(t, name, err, admission.ReasonNodeNameNotAllowed, "kubejoin's own Lease", "another name")
			}
			if len(c.claims) > 0 {
				t.Errorf("%s: got claims %v, want none", name, c.claims)
			}
		}
	}
	// An existing Node with this name can still renew.
	c := newCluster()
	c.node("kubejoin")
	n := c.admission()
	n.Lease = "kubejoin"
	r := firstRequest(t, "system:node:kubejoin", "kubejoin", nil)
	r.Groups = []string{"system:nodes"}
	if _, err := admit(t.Context(), n, r); err != nil {
		t.Errorf("renewal: %v", err)
	}
	if _, err := admit(t.Context(), n, firstRequest(t, "jane", "kubejoin-1", nil)); err != nil {
		t.Errorf("another name: %v", err)
	}
	n.Lease = ""
	if _, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{})), "kubejoin-2", nil)); err != nil {
		t.Errorf("without a Lease: %v", err)
	}
}
