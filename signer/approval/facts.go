package approval

import (
	"context"
	"errors"
	"net/netip"
)

// A Permission is an RBAC permission on a resource in API group certificates.k8s.io.
type Permission struct {
	Verb        string // for example "create"
	Resource    string // for example "certificatesigningrequests"
	Subresource string // for example "nodeclient"; empty means the resource itself
	Name        string // the name of one object; empty means all objects
}

// String returns the permission for people, for example "create certificatesigningrequests/nodeclient".
func (p Permission) String() string {
	s := p.Verb + " " + p.Resource
	if p.Subresource != "" {
		s += "/" + p.Subresource
	}
	if p.Name != "" {
		s += " " + p.Name
	}
	return s
}

// ErrNoNode is wrapped by errors of [Facts] if there is no Node of that name.
var ErrNoNode = errors.New("no such Node")

// A Node has the fields of a Node object that rules read. Its kubelet writes all of them, so they are necessary
// evidence but never sufficient.
type Node struct {
	Name string
	UID  string
	// Addresses are the IP addresses and DNS names in the Node's status, unchanged.
	Addresses []string
	// NoNodeObject means that there is no Node object, and Addresses are the addresses of the requesting
	// machine. A rule then need not wait for more addresses.
	NoNodeObject bool
}

// ClusterAddresses lists the addresses and names that no node may have in a serving certificate.
type ClusterAddresses struct {
	// Prefixes are the address ranges of Services.
	Prefixes []netip.Prefix
	// APIServer lists the addresses and names of the API server and of kubejoin. Nodes that
	// [ServingScope.ControlPlane] names may have them.
	APIServer []string
	// Source tells people where these values come from.
	Source string
}

// Facts gives rules the facts about the cluster that they need. Its methods return an error rather than guess.
type Facts interface {
	// Allowed reports whether the requester has a permission, in a cluster by SubjectAccessReview.
	Allowed(ctx context.Context, r Request, p Permission) (bool, error)
	// Node returns the Node of that name, read live and not from a cache. The error wraps [ErrNoNode] if there is
	// none. Without a cluster, it returns the facts about the requesting machine.
	Node(ctx context.Context, r Request, name string) (Node, error)
	// Reporters returns, by address, the names of other Nodes than name that report the address in any notation, or
	// whose name it is.
	Reporters(ctx context.Context, name string, addresses []string) (map[string][]string, error)
	// ClusterAddresses returns the addresses and names that no node may have.
	ClusterAddresses(ctx context.Context) (ClusterAddresses, error)
}
