package approval

import (
	"fmt"

	"github.com/kubejoin/kubejoin/internal/foreign"
)

// ReasonValidation is the reason of a request that breaks the rules of its signer, as
// kube-controller-manager writes it.
const ReasonValidation = "SignerValidationFailure"

// Refused is the error of a request that will never be signed as it is. Every other error may
// pass by itself.
type Refused struct {
	// Reason is for machines: one word in CamelCase.
	Reason string
	// Message is a sentence for the requester.
	Message string
}

// Error is the message.
func (r *Refused) Error() string { return r.Message }

// Refuse returns a [*Refused] with [ReasonValidation].
func Refuse(format string, args ...any) error { return RefuseFor(ReasonValidation, format, args...) }

// RefuseFor returns a [*Refused]. It redacts tokens in args, and cuts the message.
func RefuseFor(reason, format string, args ...any) error {
	foreign.Args(args) // before a verb cuts them
	return &Refused{Reason: reason, Message: foreign.Text(fmt.Sprintf(format, args...), foreign.MaxMessage)}
}
