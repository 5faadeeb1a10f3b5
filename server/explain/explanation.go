package explain

import (
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

// The states besides api.Joined and api.JoinedNotReady. The states from TokenSpent to Revoked are also reasons with
// which kubejoin refuses a request. Revoked is also the state of a node whose certificates are revoked.
const (
	// TokenUnknown: the token of an undecided or unsigned request does not exist.
	TokenUnknown api.NodeState = "TokenUnknown"
	// TokenUnsigned: cluster-info has no signature by any usable token.
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
	Revoked              api.NodeState = "Revoked"
	// Denied and Failed: the request has the condition of that name, for another reason than those above.
	Denied api.NodeState = "Denied"
	Failed api.NodeState = "Failed"

	// NotPermitted: the request waits, because RBAC does not allow its automatic approval.
	NotPermitted api.NodeState = "NotPermitted"
	// NotApproved: the request could be approved, but is not.
	NotApproved api.NodeState = "NotApproved"
	// NotSigned: the request is approved but not signed.
	NotSigned api.NodeState = "NotSigned"

	// CertificateIssued: the certificate is issued, but there is no Node object.
	CertificateIssued api.NodeState = "CertificateIssued"
	// CertificateExpired: the certificate has expired, and there is no Node object or it is not Ready.
	CertificateExpired api.NodeState = "CertificateExpired"
	// SignedByOther: there is no Node object, and a signer other than kubejoin issued the certificate.
	SignedByOther api.NodeState = "SignedByOther"
	// WrongIssuer: there is no Node object, and no CA in cluster-info issued the certificate.
	WrongIssuer api.NodeState = "WrongIssuer"
	// NodeDeleted: the Node object was deleted.
	NodeDeleted api.NodeState = "NodeDeleted"

	// WaitsForTurn: the machine waits until another control plane has joined.
	WaitsForTurn api.NodeState = "WaitsForTurn"
	// Claimed: a token holds the name, but there is neither a request nor a Node object.
	Claimed api.NodeState = "Claimed"
	// NoClusterInfo: there is no request, and without cluster-info no machine can discover the cluster.
	NoClusterInfo api.NodeState = "NoClusterInfo"
	// NothingArrived: there is no request, but a usable token is limited to the name, or a machine with a key of its own has it.
	NothingArrived api.NodeState = "NothingArrived"
	// NothingKnown: there is no request and no token limited to the name.
	NothingKnown api.NodeState = "NothingKnown"
	// Unknown: a fact that decides the state could not be read.
	Unknown api.NodeState = "Unknown"
)

func claimEvidence(c *tokens.Claim) *api.ClaimEvidence {
	if c == nil {
		return nil
	}
	p := c.Limits.Node
	return &api.ClaimEvidence{
		TokenID: c.TokenID, Created: c.Created, NodeUID: c.NodeUID, Keys: len(c.Keys),
		NodeLabels: tokens.SplitProperties(p.Labels), NodeTaints: tokens.SplitProperties(p.Taints), NodeReadyAfter: p.ReadyAfter,
	}
}
