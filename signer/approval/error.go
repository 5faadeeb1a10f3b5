package approval

import (
	"errors"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/tokens"
)

// ReasonValidation is the reason for a request that breaks the rules of its signer. kube-controller-manager uses the
// same reason.
const ReasonValidation = "SignerValidationFailure"

// An Error says why a request gets no certificate, or no certificate yet. Verdict [Deny] means that the request will
// never be signed as it is. [Wait] means that a retry may help, and [None] that somebody else may approve the request.
// Any other error is a failure, which may be temporary. An Error is a [tokens.Refusal], too.
type Error struct {
	// Decision is the verdict, with its reason and a sentence for the requester.
	Decision
	// RetryAfter is how long the requester has to wait; zero if that is unknown.
	RetryAfter time.Duration
	// Err is the failure that makes the request wait, for the log; nil if there was no failure.
	Err error
}

// Error returns the text of Err, or Message if Err is nil.
func (e *Error) Error() string {
	if e.Err != nil {
		return e.Err.Error()
	}
	return e.Message
}

// problems are the reasons of the [tokens.Refusal] of an Error. They are for requests over HTTPS, which no person can approve
// later.
var problems = map[Verdict]string{None: "certificate-not-permitted", Deny: "certificate-refused", Wait: "certificate-waits"}

// Unwrap returns the [*tokens.Refusal], which wraps Err. Its message does not repeat Err, which may name internals.
func (e *Error) Unwrap() error {
	r := &tokens.Refusal{Reason: problems[e.Verdict], Message: e.Message, Retry: e.Verdict == Wait, Err: e.Err}
	if e.Err != nil {
		r.Message = "kubejoin cannot decide or sign this request now; retry, and see kubejoin's log"
	}
	return r
}

// Refused returns the first [*Error] in err if its verdict is [Deny], or else nil.
func Refused(err error) *Error {
	if e, found := errors.AsType[*Error](err); found && e.Verdict == Deny {
		return e
	}
	return nil
}

// Refuse returns an [*Error] to deny with [ReasonValidation].
func Refuse(format string, args ...any) error { return RefuseFor(ReasonValidation, format, args...) }

// RefuseFor returns an [*Error] to deny. It redacts tokens in args, and truncates the message.
func RefuseFor(reason, format string, args ...any) error {
	safetext.Args(args) // redact first: a verb such as %.100q may cut a token
	return &Error{Decision: Decision{Verdict: Deny, Reason: reason, Message: safetext.Text(fmt.Sprintf(format, args...), safetext.MaxMessage)}}
}
