package signer

import (
	"context"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
)

// An Explanation is the decision of an authority about a request, and why.
type Explanation struct {
	// Decision is the decision that the authority would make.
	Decision approval.Decision
	// Steps are the decisions of each rule of the signer, in order and independent of each other. Then come the checks
	// of the signer for every approver (rule "signer"), of revocations (rule "revocation", only if the requester is
	// revoked), and of the node name (rule "node-admission").
	Steps []approval.Decision
	// NotBefore and NotAfter are the validity of the certificate if it were signed now; zero if it would not be
	// signed.
	NotBefore, NotAfter time.Time
}

// Reasons of steps in [Explanation.Steps] that no rule made.
const (
	// ReasonInOrder: the request passes the checks of the signer.
	ReasonInOrder = "InOrder"
	// ReasonAdmitted: the requester may have the name.
	ReasonAdmitted = "Admitted"
	// ReasonUnknownSigner: the signer is not configured.
	ReasonUnknownSigner = "SignerNotConfigured"
)

// Explain returns what the authority would do with a request. It writes, claims and records nothing.
func (a *Authority) Explain(ctx context.Context, r approval.Request) Explanation {
	dry := &Authority{Signers: a.Signers, Facts: a.Facts, Nodes: a.Nodes.DryRun(), Revocations: a.Revocations, MaxLifetime: a.MaxLifetime, Now: a.Now}
	var e Explanation
	if m, no := dry.decide(ctx, r); no != nil {
		e.Decision = no.Decision
	} else {
		e.Decision = m.decision
	}
	s, ok := dry.Signer(r.SignerName)
	if !ok {
		e.Steps = []approval.Decision{{
			Rule: ruleSigner, Reason: ReasonUnknownSigner,
			Message: fmt.Sprintf("%v: %q; kubejoin leaves the request to other signers", ErrUnknownSigner, safetext.Text(r.SignerName, safetext.MaxName)),
		}}
		return e
	}
	e.Steps = approval.Explain(ctx, s.Rules, r, a.Facts)
	v, inOrder := s.validate(r)
	if inOrder == nil {
		inOrder = pkcs10.CheckSignature(r.CSR)
	}
	e.Steps = append(e.Steps, outcome(ruleSigner, inOrder, ReasonInOrder, "signer "+safetext.Text(r.SignerName, safetext.MaxName)+" signs the request if it is approved"))
	if inOrder != nil {
		return e
	}
	if err := dry.checkRevoked(ctx, r); err != nil {
		e.Steps = append(e.Steps, outcome(ruleRevoke, err, "", ""))
		return e
	}
	admitted, err := dry.Nodes.Admit(ctx, v.checked)
	e.Steps = append(e.Steps, outcome(ruleNodes, err, ReasonAdmitted, "the requester may have the node name: no token limit, claim or Node prevents it"))
	if err != nil {
		return e
	}
	if ca, err := s.CA(); err == nil {
		e.NotBefore, e.NotAfter, _ = s.profile.Validity(ca.Certificate().NotAfter, dry.lifetime(s, ca, r, *admitted), dry.now()) // zero with an error
	}
	return e
}

// outcome returns the result of the signer or of Nodes as a Decision. The reason and message are for a nil error.
func outcome(rule string, err error, reason, message string) approval.Decision {
	if err != nil {
		return because(err, rule, nil).Decision
	}
	return approval.Decision{Rule: rule, Verdict: approval.Approve, Reason: reason, Message: message}
}
