package admission_test

import (
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/tokens"
)

// The claims of these names would be Leases that kubejoin keeps for itself, now or later.
func TestDeniesNodeNameOfOwnObject(t *testing.T) {
	for _, node := range []string{"kubejoin", "kubejoin-control-plane-turn", "kubejoin-of-a-later-version"} {
		for name, limits := range map[string]*tokens.Limits{
			"token without limits": {},
			"token for one node":   {MaxNodes: 1},
			"token for the name":   {NodeNames: []string{"kube*"}},
			"control plane":        {Role: tokens.RoleControlPlane},
			"no token":             nil,
		} {
			for _, existing := range []bool{false, true} {
				c := newCluster()
				if existing {
					c.node(node)
				}
				user := "jane"
				if limits != nil {
					user = bootstrapUser(c.createToken(*limits))
				}
				n := c.admission()
				n.AllowExisting, n.RejoinWindow = true, time.Hour
				for _, n := range []*admission.Nodes{n, n.DryRun()} {
					_, err := admit(t.Context(), n, firstRequest(t, user, node, nil))
					wantRefused(t, name, err, admission.ReasonNodeNameNotAllowed, "node name "+node, "kubejoin's own Leases", "another name")
				}
				if len(c.claims) > 0 {
					t.Errorf("%s: got claims %v, want none", name, c.claims)
				}
			}
		}
		// An existing Node with this name can still renew.
		c := newCluster()
		c.node(node)
		n := c.admission()
		n.RejoinWindow = rejoinWindow
		if err := issue(t, n, renewal(t, node)); err != nil || len(c.claims) > 0 {
			t.Errorf("renewal of %s: %v, claims %v", node, err, c.claims)
		}
	}
	for _, node := range []string{"kubejoiner", "kubejoin.example", "my-kubejoin-1"} {
		if _, err := admit(t.Context(), newCluster().admission(), firstRequest(t, "jane", node, nil)); err != nil {
			t.Errorf("another name: %v", err)
		}
	}
}
