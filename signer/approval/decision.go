package approval

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/internal/foreign"
)

// A Verdict is what is to be done about a request.
type Verdict int

const (
	// None leaves the request alone: other approvers and people may decide it. It is the zero
	// Verdict.
	None Verdict = iota
	// Approve grants it.
	Approve
	// Deny refuses it for good.
	Deny
	// Wait asks the rules again later: something that they need to know is not known.
	Wait
)

// String is the verdict in lower case, as metrics and logs have it.
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
	// ReasonAutoApproved is the reason that kube-controller-manager gives, too.
	ReasonAutoApproved = "AutoApproved"
	// ReasonNotPermitted is given with None for a request that a rule knows, where the
	// requester lacks the RBAC permission for automatic approval.
	ReasonNotPermitted = "NotPermitted"
	// ReasonNotRecognized is given with None where no rule knows the request.
	ReasonNotRecognized = "NotRecognized"
	// ReasonFactsUnavailable is given with Wait where a rule returned an error.
	ReasonFactsUnavailable = "FactsUnavailable"
)

// MaxWait is how long after its creation a request is waited for at most. A kubelet has given up
// its request by then: it waits 15 minutes, or an hour where its client certificate does not
// rotate, and asks anew. What a fact could not be had for, because somebody did not answer, waits
// on.
const MaxWait = time.Hour

// A Decision is a verdict and why. The zero Decision leaves the request alone without a reason.
type Decision struct {
	Verdict Verdict
	// Reason is for machines: one word in CamelCase out of a fixed set.
	Reason string
	// Message is a sentence for people.
	Message string
	// Rule is the name of the rule that decided; empty if none knew the request.
	Rule string
	// Evidence is what the rule has seen, a short sentence for each fact.
	Evidence []string
}

// A Rule decides the requests that it knows and leaves the others alone with the zero Decision.
type Rule interface {
	// Name is short, fixed, and stands in Decision.Rule.
	Name() string
	// Decide looks at one request. An error says that a fact could not be had: it means
	// wait, whatever the Decision beside it.
	Decide(ctx context.Context, r Request, f Facts) (Decision, error)
}

// Decide asks the rules in order. The first verdict other than None is the answer; if there is
// none, the first None that has a reason. An error of a rule ends it with Wait and is returned
// for the log: a later rule must not grant what an earlier one could not judge. No rules leave
// everything alone.
func Decide(ctx context.Context, rules []Rule, r Request, f Facts) (Decision, error) {
	undecided := Decision{Reason: ReasonNotRecognized, Message: "no rule of automatic approval applies to this request"}
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

// Explain asks all rules, each for itself, and gives what they say in their order. [Decide] would
// not have asked those that come after the first verdict.
func Explain(ctx context.Context, rules []Rule, r Request, f Facts) []Decision {
	decisions := make([]Decision, 0, len(rules))
	for _, rule := range rules {
		d, _ := ask(ctx, rule, r, f) // which says the error, too
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
	// Both repeat what the requester chose, and go to conditions, Events and logs.
	d.Message, d.Evidence = foreign.Text(d.Message, foreign.MaxMessage), slices.Clone(d.Evidence)
	for i, seen := range d.Evidence {
		d.Evidence[i] = foreign.Text(seen, foreign.MaxMessage)
	}
	return d, err
}
