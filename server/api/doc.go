// Package api is what the HTTPS API of kubejoin says: requests, answers and problems as JSON.
// Package server answers it, and server/client asks.
package api

// Version is the apiVersion of all answers that are objects.
const Version = "output.kubejoin.io/v1alpha1"

// Kinds of objects.
const (
	KindToken       = "BootstrapToken"
	KindTokenList   = "BootstrapTokenList"
	KindJoinCommand = "JoinCommand"
	KindClaim       = "NodeNameClaim"
	KindClaimList   = "NodeNameClaimList"

	KindCABundle = "CABundle"

	KindIssuanceEntry     = "IssuanceEntry"
	KindIssuanceEntryList = "IssuanceEntryList"
)
