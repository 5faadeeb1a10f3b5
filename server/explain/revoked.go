package explain

import (
	"fmt"
	"slices"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

// revoked adds that the node is revoked, and whether it has joined again since. The state is Revoked, unless
// another credential has requested the name since, or a token exists for the machine.
func (v *view) revoked() {
	r := v.Revocation
	if r == nil {
		return
	}
	v.e.Sentence += "; its certificates were revoked " + ago(r.Since, v.now)
	if reason := clean(r.Reason); reason != "" {
		v.e.Sentence += ": " + reason
	}
	if r.Allowed > 0 {
		v.e.Sentence += fmt.Sprintf("; kubejoin has issued %d valid certificates to it since", r.Allowed)
		return
	}
	if v.e.State == NothingArrived {
		return
	}
	requested := slices.ContainsFunc(v.client, func(c api.RequestEvidence) bool {
		return c.User != tokens.NodeUserPrefix+v.Node && c.Created.After(r.Since)
	})
	if !requested {
		v.e.State, v.e.Since = Revoked, r.Since
	}
	v.next(v.remedy(Revoked))
}
