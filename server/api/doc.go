// Package api defines the JSON of kubejoin's HTTPS API: requests, responses and problems. Package server implements
// the API, and package server/client calls it.
package api

// GroupVersion is the apiVersion of all responses that are objects.
const GroupVersion = "output.kubejoin.io/v1alpha1"

// Kinds of objects.
const (
	KindToken       = "BootstrapToken"
	KindTokenList   = "BootstrapTokenList"
	KindJoinCommand = "JoinCommand"
	KindClaim       = "NodeNameClaim"
	KindClaimList   = "NodeNameClaimList"

	KindRevocation     = "Revocation"
	KindRevocationList = "RevocationList"

	KindCABundle   = "CABundle"
	KindCARotation = "CARotation"

	KindIssuanceEntry     = "IssuanceEntry"
	KindIssuanceEntryList = "IssuanceEntryList"
)
