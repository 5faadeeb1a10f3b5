package explain

import (
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// A State is how far a node has got, or what keeps it: one word that does not change.
type State string

// The states. Those from TokenSpent to NotForBootstrapToken are also the reasons that kubejoin gives
// when it refuses a request.
const (
	// Joined: the Node is there and Ready.
	Joined State = "Joined"
	// JoinedNotReady: the Node is there and not Ready.
	JoinedNotReady State = "JoinedNotReady"

	// The token of a request that is not decided yet does not exist.
	TokenUnknown State = "TokenUnknown"
	// No signature of the tokens that could be used is in cluster-info.
	TokenUnsigned        State = "TokenUnsigned"
	TokenSpent           State = "TokenSpent"
	TokenExpired         State = "TokenExpired"
	TokenRevoked         State = "TokenRevoked"
	TokenReplaced        State = "TokenReplaced"
	TokenLimitsMalformed State = "TokenLimitsMalformed"
	NodeNameNotAllowed   State = "NodeNameNotAllowed"
	NodeNameReserved     State = "NodeNameReserved"
	NodeNameClaimed      State = "NodeNameClaimed"
	NodeExists           State = "NodeExists"
	NodeReplaced         State = "NodeReplaced"
	TooManyKeys          State = "TooManyKeys"
	NotForBootstrapToken State = "NotForBootstrapToken"
	// Denied and Failed: the request has that condition for another reason.
	Denied State = "Denied"
	Failed State = "Failed"

	// NotPermitted: the request waits, since RBAC does not let it be approved by itself.
	NotPermitted State = "NotPermitted"
	// ApprovalWaits: the request waits, and kubejoin has said for what.
	ApprovalWaits State = "ApprovalWaits"
	// NotApproved: the request may be approved and is not.
	NotApproved State = "NotApproved"
	// SigningFailed: the request is approved, and kubejoin has said why it is not signed.
	SigningFailed State = "SigningFailed"
	// CAUnusable: the request is approved, and the CA that should sign cannot be used.
	CAUnusable State = "CAUnusable"
	// NotSigned: the request is approved and not signed.
	NotSigned State = "NotSigned"

	// CertificateIssued: the certificate can be fetched, and there is no Node.
	CertificateIssued State = "CertificateIssued"
	// CertificateExpired: the same, and the certificate has expired.
	CertificateExpired State = "CertificateExpired"
	// SignedByOther: the same, and another signer than kubejoin wrote the certificate.
	SignedByOther State = "SignedByOther"
	// WrongIssuer: the same, and the certificate is not of a CA in cluster-info.
	WrongIssuer State = "WrongIssuer"
	// NodeDeleted: there was a Node.
	NodeDeleted State = "NodeDeleted"

	// Claimed: the name was taken with a token, and no request is left.
	Claimed State = "Claimed"
	// NoClusterInfo: no machine has asked, and none can discover the cluster.
	NoClusterInfo State = "NoClusterInfo"
	// NothingArrived: no machine has asked, and a token for the name is there to be used.
	NothingArrived State = "NothingArrived"
	// NothingKnown: no machine has asked, and no token is for that name.
	NothingKnown State = "NothingKnown"
	// Unknown: what decides could not be read.
	Unknown State = "Unknown"
)

// Kind is the kind of an Explanation; its apiVersion is api.Version.
const Kind = "NodeExplanation"

// An Explanation says why a machine has or has not joined. It holds no secrets.
type Explanation struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	Node  string `json:"node"`
	State State  `json:"state"`
	// Since is when the state began; zero if that is not known.
	Since time.Time `json:"since,omitzero"`
	// Sentence is for people: the node, what is, and what to do.
	Sentence string `json:"sentence"`
	// Next are the commands to go on with, the best first.
	Next []string `json:"next,omitempty"`
	// Evidence is what this was concluded from.
	Evidence Evidence `json:"evidence"`
	// Unread are facts that could not be read.
	Unread []Unread `json:"unread,omitempty"`
}

// Evidence is what an Explanation was concluded from.
type Evidence struct {
	// Requests are the latest certificate requests for the name, at most [MaxEvidence], of
	// RequestCount in all; the first is the newest.
	Requests     []Request `json:"requests,omitempty"`
	RequestCount int       `json:"requestCount,omitempty"`
	// Refused is how many of them were denied or have failed.
	Refused int `json:"refused,omitempty"`
	// Token is the one that the deciding request was made with.
	Token *Token `json:"token,omitempty"`
	// Tokens are those limited to the name, at most [MaxEvidence], of TokenCount in all.
	Tokens     []Token `json:"tokens,omitempty"`
	TokenCount int     `json:"tokenCount,omitempty"`
	Claim      *Claim  `json:"claim,omitempty"`
	Event      *Event  `json:"event,omitempty"`
	Object     *Node   `json:"object,omitempty"`
	Leader     *Leader `json:"leader,omitempty"`
}

// MaxEvidence is the most requests, and the most tokens, that an Explanation names.
const MaxEvidence = 10

// A Token is a bootstrap token without its secret.
type Token struct {
	ID     string     `json:"id"`
	Status TokenState `json:"status"`
	// Signed says whether cluster-info has its signature; nil if cluster-info was not read.
	Signed  *bool     `json:"signed,omitempty"`
	Expires time.Time `json:"expires,omitzero"`
	// MaxNodes and NodeNames are its limits, Nodes what has used it up.
	MaxNodes  int      `json:"maxNodes,omitempty"`
	NodeNames []string `json:"nodeNames,omitempty"`
	Nodes     []string `json:"nodes,omitempty"`
}

// A Claim is a node name that was taken with a token.
type Claim struct {
	TokenID string    `json:"tokenID"`
	Created time.Time `json:"created"`
	// NodeUID is that of the Node that has registered.
	NodeUID string `json:"nodeUID,omitempty"`
	Keys    int    `json:"keys"`
}

// HasJoined reports whether there is a Node and nothing newer stands in its way.
func (e Explanation) HasJoined() bool { return e.State == Joined || e.State == JoinedNotReady }

// Text is the sentence, and a line for each command that is not in it and each fact that could
// not be read.
func (e Explanation) Text() string {
	var out strings.Builder
	out.WriteString(e.Sentence + "\n")
	for _, command := range e.Next {
		if !strings.Contains(e.Sentence, command) {
			out.WriteString("  " + command + "\n")
		}
	}
	for _, u := range e.Unread {
		out.WriteString("  " + string(u.Fact) + " could not be read: " + u.Reason + "\n")
	}
	return out.String()
}

func claimEvidence(c *tokens.Claim) *Claim {
	if c == nil {
		return nil
	}
	return &Claim{TokenID: c.TokenID, Created: c.Created, NodeUID: c.NodeUID, Keys: len(c.Keys)}
}
