package tokens

import "github.com/kubejoin/kubejoin/internal/safetext"

// A Refusal is the error of a request that kubejoin refused or that failed. Its text contains no secret: Error redacts the
// text of the cause.
type Refusal struct {
	// Reason says why, in words that never change. The HTTPS API has a problem type of the same name, in docs/codes.md.
	Reason string
	// Message says what failed, and what to do.
	Message string
	// Field is the field of the request that causes the refusal; empty if no field does.
	Field string
	// Retry is true if a retry may help.
	Retry bool
	// Err is the cause, if there is one.
	Err error
}

func (r *Refusal) Error() string {
	if r.Err != nil {
		return r.Message + ": " + safetext.Redact(r.Err.Error())
	}
	return r.Message
}

// Unwrap returns the cause.
func (r *Refusal) Unwrap() error { return r.Err }
