package api

// A Problem is an RFC 9457 problem document, and the error that it is about.
type Problem struct {
	// Type is ProblemType and a name that does not change.
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	// Field is the query parameter or body field at fault.
	Field string `json:"field,omitempty"`
	// TokenID is the token that is there in spite of the problem.
	TokenID   string `json:"tokenID,omitempty"`
	RequestID string `json:"requestID,omitempty"`
}

// ProblemType is what all types of problems begin with.
const ProblemType = "https://kubejoin.io/problems/"

// Names of problems that callers act on.
const (
	// ProblemNotSigned: the token of TokenID was made, and nobody has signed it in time.
	ProblemNotSigned = "token-not-signed"
	ProblemExists    = "token-exists"
	ProblemSpent     = "token-spent"
	// ProblemFull: no token was made, since cluster-info has no room for its signature.
	ProblemFull = "cluster-info-full"
	// ProblemWouldShorten: a renewal needs RenewToken.Shorten.
	ProblemWouldShorten = "would-shorten"
	// ProblemNotExpired: a token that was to be deleted if it had expired has not.
	ProblemNotExpired = "token-not-expired"
)

func (p *Problem) Error() string { return p.Detail }

// Named reports whether it is the problem of that name.
func (p *Problem) Named(name string) bool { return p.Type == ProblemType+name }
