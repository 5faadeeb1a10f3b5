package desk

import (
	"github.com/kubejoin/kubejoin/internal/safetext"
)

// A Reason is why a [Desk] refused a request or failed. It never changes. The HTTPS API has a problem type of the same
// name.
type Reason string

// Reasons of an [Error].
const (
	// NotIssued: no certificate with the serial number is known.
	NotIssued Reason = "not-issued"
	// NoToken: there is no such token, and no certificate that was issued on it.
	NoToken Reason = "no-token"
	// NotRevoked: there is no such entry.
	NotRevoked Reason = "not-revoked"
	// Full: the list of revocations has no space.
	Full Reason = "too-many-revocations"
	// Unavailable: the list of revocations cannot be read or written now.
	Unavailable Reason = "revocations-unavailable"
	// Refused: the store of revocations refused the request, and would refuse a retry.
	Refused Reason = "store-refuses"
	// NoRecord: the issuance record cannot be read now.
	NoRecord Reason = "record-unavailable"
	// NoRequests: the certificate requests of the cluster cannot be read now.
	NoRequests Reason = "cluster-unavailable"
)

// An Error is the error of a [Desk], except for an invalid request and for errors of the stores of tokens and claims.
type Error struct {
	Reason Reason
	// Message says what failed and what to do.
	Message string
	// Err is the cause, if there is one.
	Err error
	// Retry reports that a retry may help.
	Retry bool
}

func (e *Error) Error() string {
	if e.Err != nil {
		return e.Message + ": " + safetext.Redact(e.Err.Error())
	}
	return e.Message
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// An Incomplete is the error of a [Desk] that has made a token unusable, but has not revoked all that was issued on it.
// To complete the revocation, revoke the token again.
type Incomplete struct {
	TokenID string
	Err     error
}

func (e *Incomplete) Error() string {
	return "token " + e.TokenID + " can no longer be used, but its revocation is incomplete: " + e.Err.Error() + "; then revoke the token again"
}

// Unwrap returns the cause.
func (e *Incomplete) Unwrap() error { return e.Err }
