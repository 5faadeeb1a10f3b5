package approval

import (
	"fmt"

	"github.com/kubejoin/kubejoin/internal/safetext"
)

// ReasonValidation is the reason for a request that breaks the rules of its signer. kube-controller-manager uses the
// same reason.
const ReasonValidation = "SignerValidationFailure"

// Refused is the error for a request that will never be signed as it is. Every other error may be temporary.
type Refused struct {
	// Reason is machine-readable: one word in CamelCase.
	Reason string
	// Message is a sentence for the requester.
	Message string
}

// Error returns Message.
func (r *Refused) Error() string { return r.Message }

// Refuse returns a [*Refused] with [ReasonValidation].
func Refuse(format string, args ...any) error { return RefuseFor(ReasonValidation, format, args...) }

// RefuseFor returns a [*Refused]. It redacts tokens in args, and truncates the message.
func RefuseFor(reason, format string, args ...any) error {
	safetext.Args(args) // redact first: a verb such as %.100q may cut a token
	return &Refused{Reason: reason, Message: safetext.Text(fmt.Sprintf(format, args...), safetext.MaxMessage)}
}
