package explain_test

import (
	"testing"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/explain"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/revocation"
)

// Catches a refusal reason that is missing from the states.
func TestEveryRefusalReasonIsAState(t *testing.T) {
	for _, reason := range []string{
		admission.ReasonTokenSpent, admission.ReasonTokenExpired, admission.ReasonTokenRevoked, admission.ReasonTokenReplaced, admission.ReasonTokenLimitsMalformed,
		admission.ReasonNodeNameNotAllowed, admission.ReasonNodeNameReserved, admission.ReasonNodeNameClaimed, admission.ReasonNodeExists, admission.ReasonNodeReplaced,
		admission.ReasonTooManyKeys, admission.ReasonNotForBootstrap, revocation.Reason,
	} {
		for _, end := range []func(*api.RequestEvidence){denied(reason, "because"), failed(reason, "because")} {
			e := explain.Explain(explain.Facts{Node: name, Requests: []api.RequestEvidence{request(bootstrap, end)}}, now)
			if e.State != api.NodeState(reason) || len(e.Next) == 0 {
				t.Errorf("reason %s: got state %s, next %q, want state %s and a command", reason, e.State, e.Next, reason)
			}
		}
	}
}
