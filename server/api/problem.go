package api

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
)

// A Problem is an RFC 9457 problem document. It is also the error that the client returns.
type Problem struct {
	// Type is ProblemType and a problem name that never changes.
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	// Field is the invalid query parameter or body field, the first one if there are several.
	Field string `json:"field,omitempty"`
	// Errors holds the detail for each invalid field.
	Errors []FieldProblem `json:"errors,omitempty"`
	// Reason is why kubejoin issued no certificate, one word in CamelCase: see packages signer and signer/approval.
	Reason string `json:"reason,omitempty"`
	// TokenID is the ID of the token if the token exists in spite of the problem.
	TokenID   string `json:"tokenID,omitempty"`
	RequestID string `json:"requestID,omitempty"`
	// Behind lists what blocks a stage of a rotation.
	Behind []CABehind `json:"behind,omitempty"`
	// RetryAfter is how long to wait before a retry; zero if the server gave none. It is sent as a header.
	RetryAfter time.Duration `json:"-"`
}

// A FieldProblem describes what is wrong with one field of a request.
type FieldProblem struct {
	Field  string `json:"field,omitempty"`
	Detail string `json:"detail"`
}

// String returns the detail, prefixed with the field name if there is one.
func (p FieldProblem) String() string {
	if p.Field == "" {
		return p.Detail
	}
	return p.Field + ": " + p.Detail
}

// InvalidFields is the error of a request with invalid fields. The server returns it as a Problem with these Errors.
type InvalidFields []FieldProblem

// InvalidField returns the InvalidFields of one field.
func InvalidField(field, format string, args ...any) InvalidFields {
	safetext.Args(args) // redacts secrets before a verb truncates them
	return InvalidFields{{Field: field, Detail: fmt.Sprintf(format, args...)}}
}

func (f InvalidFields) Error() string {
	details := make([]string, len(f))
	for i, e := range f {
		details[i] = e.String()
	}
	return strings.Join(details, "; ")
}

// JoinInvalid returns the InvalidFields of all errs as one error; nil if all errs are nil. If several errors are about
// one field, it keeps the first. If one of errs has no InvalidFields, JoinInvalid returns this error alone.
func JoinInvalid(errs ...error) error {
	var all InvalidFields
	for _, err := range errs {
		var invalid InvalidFields
		if err != nil && !errors.As(err, &invalid) {
			return err
		}
		earlier := all
		for _, one := range invalid {
			if !slices.ContainsFunc(earlier, func(e FieldProblem) bool { return e.Field == one.Field }) {
				all = append(all, one)
			}
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all
}

// ProblemType is the prefix of all problem types.
const ProblemType = "https://kubejoin.io/problems/"

// Names of problems that callers act on.
const (
	// ProblemNotSigned: the token of TokenID was created, but not signed in time.
	ProblemNotSigned = "token-not-signed"
	// ProblemExists: the token ID is taken: by a token with another secret or other settings, or by claims of a
	// deleted token.
	ProblemExists = "token-exists"
	ProblemSpent  = "token-spent"
	// ProblemTooManyTokens: no token was created, because the user is at the limit of tokens per user.
	ProblemTooManyTokens = "too-many-tokens"
	// ProblemFull: no token was created, because cluster-info is too full for its signature.
	ProblemFull = "cluster-info-full"
	// ProblemWouldShorten: the token would expire sooner, which needs RenewToken.Shorten.
	ProblemWouldShorten = "would-shorten"
	// ProblemNotExpired: DeleteToken.OnlyExpired is set and the token has not expired.
	ProblemNotExpired = "token-not-expired"
	// ProblemNotReady: the rotation has not changed, because the things in Behind are behind.
	ProblemNotReady = "not-ready"
	// ProblemTurnTaken: another control plane is joining; retry until it has the turn.
	ProblemTurnTaken = "turn-taken"
	// ProblemCertificateRefused: this request will never get a certificate. Reason says why.
	ProblemCertificateRefused = "certificate-refused"
	// ProblemCertificateNotPermitted: no rule denied the request, but none may approve it automatically.
	ProblemCertificateNotPermitted = "certificate-not-permitted"
	// ProblemCertificateWaits: something else must happen first. The same request may succeed later.
	ProblemCertificateWaits = "certificate-waits"
	// ProblemTooManyRequests: the address or user exceeds its rate limit. The same request succeeds after RetryAfter,
	// or after a few such waits.
	ProblemTooManyRequests = "too-many-requests"
)

func (p *Problem) Error() string { return p.Detail }

// Named reports whether the problem has this name.
func (p *Problem) Named(name string) bool { return p.Type == ProblemType+name }
