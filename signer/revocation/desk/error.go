package desk

// Reasons of the [tokens.Refusal] of a [Revoker]. Errors of the stores of tokens and claims have the reasons of package
// mint.
const (
	// NotIssued: no certificate with the serial number is known.
	NotIssued = "not-issued"
	// NoToken: the token does not exist, and no certificate was issued on it.
	NoToken = "no-token"
	// NotRevoked: the node or certificate is not revoked.
	NotRevoked = "not-revoked"
	// TokenWorks: a release gives a slot back to a token that admitted a revoked node and still works.
	TokenWorks = "token-works"
	// Full: the list of revocations has no space.
	Full = "too-many-revocations"
	// Unavailable: the list of revocations cannot be read or written now.
	Unavailable = "revocations-unavailable"
	// Refused: the store of revocations refused the request, and would refuse a retry.
	Refused = "store-refuses"
	// NoRecord: the issuance record cannot be read now.
	NoRecord = "record-unavailable"
	// NoRequests: the certificate requests of the cluster cannot be read now.
	NoRequests = "cluster-unavailable"
)

// An Incomplete is the error of a [Revoker] that has stored a revocation or made a token unusable. It may have
// missed certificates that were issued meanwhile, or failed to bar the key of the node's machine. To complete the
// revocation, revoke again. This also revokes certificates of the last hour that were requested with a revoked certificate.
type Incomplete struct {
	TokenID string // empty for a node or a certificate
	Err     error
}

func (e *Incomplete) Error() string {
	if e.TokenID == "" {
		return "the revocation is stored, but it may not cover certificates issued at this moment, or the key of the machine; revoke again: " + e.Err.Error()
	}
	return "token " + e.TokenID + " can no longer be used, but its revocation is incomplete: " + e.Err.Error() + "; then revoke the token again"
}

// Unwrap returns the cause.
func (e *Incomplete) Unwrap() error { return e.Err }
