package explain

import (
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

// The states beside api.Joined and api.JoinedNotReady. Those from TokenSpent to NotForBootstrapToken are also the reasons that kubejoin gives
// when it refuses a request.
const (
	// The token of a request that is not decided yet does not exist.
	TokenUnknown api.NodeState = "TokenUnknown"
	// No signature of the tokens that could be used is in cluster-info.
	TokenUnsigned        api.NodeState = "TokenUnsigned"
	TokenSpent           api.NodeState = "TokenSpent"
	TokenExpired         api.NodeState = "TokenExpired"
	TokenRevoked         api.NodeState = "TokenRevoked"
	TokenReplaced        api.NodeState = "TokenReplaced"
	TokenLimitsMalformed api.NodeState = "TokenLimitsMalformed"
	NodeNameNotAllowed   api.NodeState = "NodeNameNotAllowed"
	NodeNameReserved     api.NodeState = "NodeNameReserved"
	NodeNameClaimed      api.NodeState = "NodeNameClaimed"
	NodeExists           api.NodeState = "NodeExists"
	NodeReplaced         api.NodeState = "NodeReplaced"
	TooManyKeys          api.NodeState = "TooManyKeys"
	NotForBootstrapToken api.NodeState = "NotForBootstrapToken"
	// Denied and Failed: the request has that condition for another reason.
	Denied api.NodeState = "Denied"
	Failed api.NodeState = "Failed"

	// NotPermitted: the request waits, since RBAC does not let it be approved by itself.
	NotPermitted api.NodeState = "NotPermitted"
	// ApprovalWaits: the request waits, and kubejoin has said for what.
	ApprovalWaits api.NodeState = "ApprovalWaits"
	// NotApproved: the request may be approved and is not.
	NotApproved api.NodeState = "NotApproved"
	// SigningFailed: the request is approved, and kubejoin has said why it is not signed.
	SigningFailed api.NodeState = "SigningFailed"
	// CAUnusable: the request is approved, and the CA that should sign cannot be used.
	CAUnusable api.NodeState = "CAUnusable"
	// NotSigned: the request is approved and not signed.
	NotSigned api.NodeState = "NotSigned"

	// CertificateIssued: the certificate can be fetched, and there is no Node.
	CertificateIssued api.NodeState = "CertificateIssued"
	// CertificateExpired: the same, and the certificate has expired.
	CertificateExpired api.NodeState = "CertificateExpired"
	// SignedByOther: the same, and another signer than kubejoin wrote the certificate.
	SignedByOther api.NodeState = "SignedByOther"
	// WrongIssuer: the same, and the certificate is not of a CA in cluster-info.
	WrongIssuer api.NodeState = "WrongIssuer"
	// NodeDeleted: there was a Node.
	NodeDeleted api.NodeState = "NodeDeleted"

	// Claimed: the name was taken with a token, and no request is left.
	Claimed api.NodeState = "Claimed"
	// NoClusterInfo: no machine has asked, and none can discover the cluster.
	NoClusterInfo api.NodeState = "NoClusterInfo"
	// NothingArrived: no machine has asked, and a token for the name is there to be used.
	NothingArrived api.NodeState = "NothingArrived"
	// NothingKnown: no machine has asked, and no token is for that name.
	NothingKnown api.NodeState = "NothingKnown"
	// Unknown: what decides could not be read.
	Unknown api.NodeState = "Unknown"
)

func claimEvidence(c *tokens.Claim) *api.ClaimEvidence {
	if c == nil {
		return nil
	}
	return &api.ClaimEvidence{TokenID: c.TokenID, Created: c.Created, NodeUID: c.NodeUID, Keys: len(c.Keys)}
}
