package approval

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
)

// A Verdict is the outcome of a decision about a request.
type Verdict int

const (
	// None makes no decision: other approvers and people may decide the request. It is the zero Verdict.
	None Verdict = iota
	// Approve approves the request.
	Approve
	// Deny denies the request permanently.
	Deny
	// Wait asks the rules again later, because a fact that they need is missing.
	Wait
)

// String returns the verdict in lower case, as metrics and logs use it.
func (v Verdict) String() string {
	switch v {
	case None:
		return "none"
	case Approve:
		return "approve"
	case Deny:
		return "deny"
	case Wait:
		return "wait"
	}
	return fmt.Sprintf("verdict(%d)", int(v))
}

// Reasons of the rules of this package.
const (
	// ReasonAutoApproved is given with Approve. kube-controller-manager uses the same reason.
	ReasonAutoApproved = "AutoApproved"
	// ReasonNotPermitted is given with None if a rule recognizes the request, but the requester lacks the RBAC
	// permission for automatic approval.
	ReasonNotPermitted = "NotPermitted"
	// ReasonNotRecognized is given with None if no rule recognizes the request.
	ReasonNotRecognized = "NotRecognized"
	// ReasonFactsUnavailable is given with Wait if a rule returned an error.
	ReasonFactsUnavailable = "FactsUnavailable"
)

// MaxWait is how long a request may wait, counted from its creation. By then the kubelet has given up the request: it
// waits 15 minutes, or an hour if it does not rotate its client certificate. Then it creates a new request. A request
// waits longer if a rule could not read a fact because of an error.
const MaxWait = time.Hour

// A Decision is a verdict and its reason. The zero Decision has verdict None and gives no reason.
type Decision struct {
	Verdict Verdict
	// Reason is machine-readable: one word in CamelCase out of a fixed set.
	Reason string
	// Message is a sentence for people.
	Message string
	// Rule is the name of the rule that decided; empty if no rule recognized the request.
	Rule string
	// Evidence lists the facts that the rule found, in a short sentence each.
	Evidence []string
}

// A Rule decides the requests that it recognizes. It returns the zero Decision for all other requests.
type Rule interface {
	// Name returns a short, constant name for Decision.Rule.
	Name() string
	// Decide decides one request. An error means that a fact is unavailable: the verdict is Wait, regardless of
	// the returned Decision.
	Decide(ctx context.Context, r Request, f Facts) (Decision, error)
}

// Decide asks the rules in order and returns the first verdict other than None. If there is none, it returns the
// first None with a reason. If a rule fails, Decide returns Wait, and the error for the log: a later rule must
// not approve a request that an earlier rule could not decide. Without rules it returns the zero Decision.
func Decide(ctx context.Context, rules []Rule, r Request, f Facts) (Decision, error) {
	undecided := Decision{Reason: ReasonNotRecognized, Message: "no approval rule applies to this request"}
	for _, rule := range rules {
		d, err := ask(ctx, rule, r, f)
		if err != nil || d.Verdict != None {
			return d, err
		}
		if d.Reason != "" && undecided.Rule == "" {
			undecided = d
		}
	}
	return undecided, nil
}

// Explain asks each rule independently and returns all their decisions in order. [Decide] stops at the first verdict.
func Explain(ctx context.Context, rules []Rule, r Request, f Facts) []Decision {
	decisions := make([]Decision, 0, len(rules))
	for _, rule := range rules {
		d, _ := ask(ctx, rule, r, f) // the Decision contains the error
		if d.Verdict == None && d.Reason == "" {
			d.Reason, d.Message = ReasonNotRecognized, "the rule does not apply to this request"
		}
		decisions = append(decisions, d)
	}
	return decisions
}

func ask(ctx context.Context, rule Rule, r Request, f Facts) (Decision, error) {
	d, err := rule.Decide(ctx, r, f)
	if err != nil {
		d = Decision{
			Verdict:  Wait,
			Reason:   ReasonFactsUnavailable,
			Message:  fmt.Sprintf("rule %s cannot decide yet: %v", rule.Name(), err),
			Evidence: d.Evidence,
		}
		err = fmt.Errorf("rule %s: %w", rule.Name(), err)
	}
	d.Rule = rule.Name()
	// Message and evidence may contain text that the requester chose. kubejoin writes them to conditions,
	// Events and logs.
	d.Message, d.Evidence = safetext.Text(d.Message, safetext.MaxMessage), slices.Clone(d.Evidence)
	for i, seen := range d.Evidence {
		d.Evidence[i] = safetext.Text(seen, safetext.MaxMessage)
	}
	return d, err
}
