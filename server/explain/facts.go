package explain

import (
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

// Facts is what is known about a node name at one time. What could not be read is missing, and
// named in Unread: everything else that is missing is not there.
type Facts struct {
	// Node is the name.
	Node string
	// Requests are the certificate requests for the name, in any order: those whose common
	// name is system:node:NAME.
	Requests []api.RequestEvidence
	// Object is the Node object; nil if there is none.
	Object *api.NodeEvidence
	// Claim is who has taken the name; nil if nobody has.
	Claim *tokens.Claim
	// Tokens are all tokens that there are.
	Tokens []tokens.Record
	// ClusterInfo is the data of cluster-info; nil if there is none.
	ClusterInfo map[string]string
	// Events are those about the requests, and kubejoin's about itself.
	Events []api.EventEvidence
	// Leader is the kubejoin that runs the controllers; nil if none has ever led.
	Leader *api.LeaderEvidence
	// Unread is what could not be read.
	Unread []api.UnreadFact
}

// What Facts are read from.
const (
	FactRequests    api.Fact = "certificate requests"
	FactNode        api.Fact = "the Node"
	FactClaim       api.Fact = "the claim of the name"
	FactTokens      api.Fact = "tokens"
	FactClusterInfo api.Fact = "cluster-info"
	FactEvents      api.Fact = "Events"
	FactLeader      api.Fact = "kubejoin's Lease"
	FactPermission  api.Fact = "what the requester may do"
)

const (
	clientSigner  = "kubernetes.io/kube-apiserver-client-kubelet"
	servingSigner = "kubernetes.io/kubelet-serving"
)

// refusalOf is the condition that ends a request, if one does, and the state that it means unless
// its reason says more. A kubelet looks at Failed and Denied before it looks for a certificate.
func refusalOf(r api.RequestEvidence) (*api.RequestCondition, api.NodeState) {
	switch {
	case r.Denied != nil:
		return r.Denied, Denied
	case r.Failed != nil:
		return r.Failed, Failed
	}
	return nil, ""
}
