package explain

import (
	"crypto/x509"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// Facts is what is known about a node name at one time. What could not be read is missing, and
// named in Unread: everything else that is missing is not there.
type Facts struct {
	// Node is the name.
	Node string
	// Requests are the certificate requests for the name, in any order: those whose common
	// name is system:node:NAME.
	Requests []Request
	// Object is the Node object; nil if there is none.
	Object *Node
	// Claim is who has taken the name; nil if nobody has.
	Claim *tokens.Claim
	// Tokens are all tokens that there are.
	Tokens []tokens.Record
	// ClusterInfo is the data of cluster-info; nil if there is none.
	ClusterInfo map[string]string
	// Events are those about the requests, and kubejoin's about itself.
	Events []Event
	// Leader is the kubejoin that runs the controllers; nil if none has ever led.
	Leader *Leader
	// Unread is what could not be read.
	Unread []Unread
}

// A Fact is something that may not be readable.
type Fact string

// What Facts are read from.
const (
	FactRequests    Fact = "certificate requests"
	FactNode        Fact = "the Node"
	FactClaim       Fact = "the claim of the name"
	FactTokens      Fact = "tokens"
	FactClusterInfo Fact = "cluster-info"
	FactEvents      Fact = "Events"
	FactLeader      Fact = "kubejoin's Lease"
	FactPermission  Fact = "what the requester may do"
)

// An Unread is a fact that could not be read, and why.
type Unread struct {
	Fact   Fact   `json:"fact"`
	Reason string `json:"reason"`
}

// A Request is one certificate request for the node name.
type Request struct {
	Name    string    `json:"name"`
	UID     string    `json:"uid"`
	Signer  string    `json:"signer"`
	User    string    `json:"user"`
	Groups  []string  `json:"-"`
	Created time.Time `json:"created"`
	// Approved, Denied and Failed are its conditions.
	Approved *Condition `json:"approved,omitempty"`
	Denied   *Condition `json:"denied,omitempty"`
	Failed   *Condition `json:"failed,omitempty"`
	// Certificate is what was issued on it.
	Certificate *Certificate `json:"certificate,omitempty"`
	// Permitted says whether RBAC lets the request be approved by itself; nil where that was
	// not asked.
	Permitted *bool `json:"permitted,omitempty"`
}

// A Condition of a request.
type Condition struct {
	Reason  string    `json:"reason,omitempty"`
	Message string    `json:"message,omitempty"`
	At      time.Time `json:"at"`
}

// A Certificate that was issued.
type Certificate struct {
	// Writer is the field manager that wrote it; empty if that is not known.
	Writer string `json:"writer,omitempty"`
	// At is when it was written.
	At time.Time `json:"at"`
	// Chain is the certificate and what else came with it; empty if it cannot be parsed.
	Chain []*x509.Certificate `json:"-"`
}

// A Node is what there is to know of a Node object.
type Node struct {
	UID     string    `json:"uid"`
	Created time.Time `json:"created"`
	// Ready is the status of the condition Ready: True, False or Unknown; empty if the kubelet
	// has not reported it yet.
	Ready   string    `json:"ready"`
	Reason  string    `json:"reason,omitempty"`
	Message string    `json:"message,omitempty"`
	Since   time.Time `json:"since,omitzero"`
}

// An Event is something that was reported about an object.
type Event struct {
	// Name and Namespace are the Event's own.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Kind, Object and UID are what it is about.
	Kind    string    `json:"kind"`
	Object  string    `json:"object"`
	UID     string    `json:"-"`
	Source  string    `json:"source"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	At      time.Time `json:"at"`
}

// A Leader is the holder of the Lease by which kubejoin's replicas lead.
type Leader struct {
	Namespace string `json:"namespace"`
	Lease     string `json:"lease"`
	Holder    string `json:"holder"`
	// Renewed is when it was last known to lead.
	Renewed time.Time `json:"renewed,omitzero"`
	// Duration is how long the others wait for it to be renewed.
	Duration time.Duration `json:"-"`
}

const (
	clientSigner  = "kubernetes.io/kube-apiserver-client-kubelet"
	servingSigner = "kubernetes.io/kubelet-serving"
)

// tokenID is the ID of the bootstrap token that a request was made with, or empty.
func (r Request) tokenID() string {
	id, found := strings.CutPrefix(r.User, tokens.BootstrapUserPrefix)
	if !found || tokens.CheckID(id) != nil {
		return ""
	}
	return id
}

// refused is the condition that ends a request, if one does, and the state that it means unless
// its reason says more. A kubelet looks at Failed and Denied before it looks for a certificate.
func (r Request) refused() (*Condition, State) {
	switch {
	case r.Denied != nil:
		return r.Denied, Denied
	case r.Failed != nil:
		return r.Failed, Failed
	}
	return nil, ""
}
