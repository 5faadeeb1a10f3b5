package signer

import (
	"errors"

	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
)

// WaitDecision returns the verdict to wait if an error of [Authority.Sign] means that the request is valid but has to wait.
// It may wait for a fact, for example its Node, or for the rate limit ([*TooMany]). For any other error, and for nil,
// WaitDecision returns nil.
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
