package explain

import (
	"crypto/x509"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/kube/failedwrites"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

// Facts are the inputs of an explanation, read at one time. Unread lists the facts that could not be read. If a fact
// is missing and not in Unread, it does not exist in the cluster.
type Facts struct {
	// Node is the node name.
	Node string
	// Requests are the certificate requests with the common name system:node:NAME, in any order.
	Requests []api.RequestEvidence
	// Object is the Node object; nil if there is none.
	Object *api.NodeEvidence
	// Claim is the claim of the name; nil if there is none.
	Claim *tokens.Claim
	// Identity has the keys that the node can rejoin with; the zero Identity if nothing is known.
	Identity tokens.Identity
	// Machine is the machine that holds the name with a key of its own. It is zero if no machine holds the name.
	Machine tokens.Machine
	// Tokens are all tokens.
	Tokens []tokens.Record
	// ClusterInfo is the ConfigMap cluster-info.
	ClusterInfo ClusterInfo
	// Leader is the replica that runs the controllers; nil if there is no Lease.
	Leader *api.LeaderEvidence
	// FailedWrites are the last writes of kubejoin that failed, the newest first.
	FailedWrites []failedwrites.Write
	// Turn says which control plane joins now, and which control planes wait; nil if no control plane has
	// joined with kubejoin.
	Turn *api.TurnEvidence
	// Revocation is the revocation of the node; nil if there is none.
	Revocation *api.RevocationEvidence
	// Joining reports whether the Node has the taint [tokens.JoiningTaint]. Waits continues "it waits until"; it is empty if the
	// Node has what its token asks for.
	Joining bool
	Waits   string
	// Unread are the facts that could not be read.
	Unread []api.UnreadFact
}

// A ClusterInfo is the ConfigMap cluster-info. [ParseClusterInfo] creates it.
type ClusterInfo struct {
	Data   map[string]string // nil if there is no ConfigMap
	Server string            // empty if it is unknown
	CAs    []*x509.Certificate
}

// ParseClusterInfo returns the data of cluster-info with the server and the CAs in it.
func ParseClusterInfo(data map[string]string) ClusterInfo {
	server, cas, _ := clusterinfo.ParseKubeconfig([]byte(data[clusterinfo.KubeconfigKey])) // empty with an error
	return ClusterInfo{data, server, cas}
}

// leaseMargin is the tolerated difference between the clock of the reader and that of the leader.
const leaseMargin = 30 * time.Second

// Leaderless reports whether there is a Lease, but no replica renews it.
func (f Facts) Leaderless(now time.Time) bool {
	return f.Leader != nil && (f.Leader.Holder == "" || now.Sub(f.Leader.Renewed) > f.Leader.Duration+leaseMargin)
}

// Names of the facts.
const (
	FactRequests    api.Fact = "certificate requests"
	FactNode        api.Fact = "the Node"
	FactClaim       api.Fact = "the claim of the name"
	FactTokens      api.Fact = "tokens"
	FactClusterInfo api.Fact = "cluster-info"
	FactLeader      api.Fact = "kubejoin's Lease"
	FactTurn        api.Fact = "the turn of control planes"
	FactRevocation  api.Fact = "revocations"
	FactPermission  api.Fact = "permissions of the requester"
)

const (
	clientSigner  = "kubernetes.io/kube-apiserver-client-kubelet"
	servingSigner = "kubernetes.io/kubelet-serving"
)

// refusalOf returns the condition that ends a request, or nil. It also returns the state to report if the
// reason of the condition is not itself a state. Like a kubelet, callers check for this condition before they
// look for a certificate.
func refusalOf(r api.RequestEvidence) (*api.RequestCondition, api.NodeState) {
	switch {
	case r.Denied != nil:
		return r.Denied, Denied
	case r.Failed != nil:
		return r.Failed, Failed
	}
	return nil, ""
}
