package explain

import (
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
)

// OfRequest returns the explanation of a request with the given status, from the explanation of an authority. If the
// request could not be parsed, refused is the error and authority is not used.
func OfRequest(r approval.Request, status string, refused error, authority *signer.Explanation) api.RequestExplanation {
	e := api.RequestExplanation{
		APIVersion: api.GroupVersion, Kind: api.KindRequestExplanation, Rules: []api.RuleVerdict{},
		Name: clean(r.Name), SignerName: clean(r.SignerName), Requester: clean(r.User), Status: status,
	}
	if refused != nil {
		e.Verdict, e.Reason, e.Message = approval.None.String(), approval.ReasonValidation, clean(refused.Error())+"; kubejoin does not approve it, and the request fails if somebody else approves it"
		return e
	}
	e.Subject = clean(r.CSR.Subject.String())
	d := authority.Decision
	e.Verdict, e.Reason, e.Message, e.Rule = d.Verdict.String(), d.Reason, clean(d.Message), d.Rule
	if d.Verdict == approval.Wait && !r.Created.IsZero() {
		e.WaitsUntil = r.Created.Add(approval.MaxWait).UTC()
	}
	for _, s := range authority.Steps {
		v := api.RuleVerdict{Rule: s.Rule, Verdict: s.Verdict.String(), Reason: s.Reason, Message: clean(s.Message)}
		for _, seen := range s.Evidence {
			v.Evidence = append(v.Evidence, clean(seen))
		}
		e.Rules = append(e.Rules, v)
	}
	e.NotBefore, e.NotAfter = authority.NotBefore, authority.NotAfter
	return e
}
