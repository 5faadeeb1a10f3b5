package api

import "time"

// A Problem is an RFC 9457 problem document, and the error that it is about.
type Problem struct {
	// Type is ProblemType and a name that does not change.
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	// Field is the query parameter or body field at fault, the first one if there are several.
	Field string `json:"field,omitempty"`
	// Errors has what Detail says about each field at fault.
	Errors []FieldProblem `json:"errors,omitempty"`
	// Reason is why there is no certificate, one word in CamelCase: see packages signer and
	// signer/approval.
	Reason string `json:"reason,omitempty"`
	// TokenID is the token that is there in spite of the problem.
	TokenID   string `json:"tokenID,omitempty"`
	RequestID string `json:"requestID,omitempty"`
	// RetryAfter is how long to wait before the same is asked again; zero is that it says
	// nothing of that. It is in a header.
	RetryAfter time.Duration `json:"-"`
}

// A FieldProblem says what is wrong with one field of a request.
type FieldProblem struct {
	Field  string `json:"field,omitempty"`
	Detail string `json:"detail"`
}

// String returns the detail after the name of the field, if there is one.
func (p FieldProblem) String() string {
	if p.Field == "" {
		return p.Detail
	}
	return p.Field + ": " + p.Detail
}

// ProblemType is what all types of problems begin with.
const ProblemType = "https://kubejoin.io/problems/"

// Names of problems that callers act on.
const (
	// ProblemNotSigned: the token of TokenID was made, and nobody has signed it in time.
	ProblemNotSigned = "token-not-signed"
	// ProblemExists: there is a token of that ID, with another secret or made for something else, or
	// claims of one that is gone.
	ProblemExists = "token-exists"
	ProblemSpent  = "token-spent"
	// ProblemTooManyTokens: no token was made, since the user has as many as one user may have.
	ProblemTooManyTokens = "too-many-tokens"
	// ProblemFull: no token was made, since cluster-info has no room for its signature.
	ProblemFull = "cluster-info-full"
	// ProblemWouldShorten: a renewal needs RenewToken.Shorten.
	ProblemWouldShorten = "would-shorten"
	// ProblemNotExpired: a token that was to be deleted if it had expired has not.
	ProblemNotExpired = "token-not-expired"
	// ProblemCertificateRefused: the certificate will not be had as it was asked for. Reason
	// says why.
	ProblemCertificateRefused = "certificate-refused"
	// ProblemCertificateNotPermitted: nobody has said no, and nobody may say yes by themselves.
	ProblemCertificateNotPermitted = "certificate-not-permitted"
	// ProblemCertificateWaits: something has to happen first, after which the same request may
	// succeed.
	ProblemCertificateWaits = "certificate-waits"
	// ProblemTooManyRequests: the address or the user sends more than it may. The same will be
	// answered after RetryAfter, or a few times that.
	ProblemTooManyRequests = "too-many-requests"
)

func (p *Problem) Error() string { return p.Detail }

// Named reports whether it is the problem of that name.
func (p *Problem) Named(name string) bool { return p.Type == ProblemType+name }
