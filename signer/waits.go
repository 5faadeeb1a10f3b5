package signer

import (
	"errors"

	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
)

// WaitDecision gives, of an error of [Authority.Sign], the verdict to wait if the request is in order and
// waits for something that may come, such as its Node, or for its turn ([*TooMany]). It is nil of every
// other error, and of none.
func WaitDecision(err error) *approval.Decision {
	var w *admission.Waiting
	var many *TooMany
	switch {
	case errors.As(err, &many):
		return &approval.Decision{Verdict: approval.Wait, Reason: ReasonTooManyCertificates, Message: many.Error(), Rule: ruleRate}
	case !errors.As(err, &w):
		return nil
	}
	return &approval.Decision{Verdict: approval.Wait, Reason: w.Reason, Message: w.Message, Rule: ruleNodes}
}
