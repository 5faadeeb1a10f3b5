package approval

import (
	"context"
	"errors"
	"net/netip"
)

// A Permission is what RBAC may grant to a requester, on a resource in API group
// certificates.k8s.io.
type Permission struct {
	Verb        string // such as "create"
	Resource    string // such as "certificatesigningrequests"
	Subresource string // such as "nodeclient"; empty is the resource itself
	Name        string // of one object; empty is every one
}

// String is such as "create certificatesigningrequests/nodeclient".
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

// ErrNoNode is wrapped by [Facts] where there is no Node of a name.
var ErrNoNode = errors.New("no such Node")

// A Node is what a rule may know of a Node. Its kubelet writes all of it: it is evidence that is
// necessary and never sufficient.
type Node struct {
	Name string
	UID  string
	// Addresses are what it reports in its status: IP addresses and DNS names as they stand
	// there.
	Addresses []string
	// Final is that it will report no others, however long one waits: there is no Node, and
	// Addresses are what is known of the machine that asks.
	NoNodeObject bool
}

// Reserved is what no node may have in a serving certificate.
type Reserved struct {
	// Prefixes are addresses of Services.
	Prefixes []netip.Prefix
	// APIServer are the addresses and names at which the API server is reached, or kubejoin.
	APIServer []string
	// Source says where this is from, for people.
	Source string
}

// Facts is what rules may ask about the world. Its methods fail rather than guess.
type Facts interface {
	// Allowed reports whether the requester has a permission: a SubjectAccessReview.
	Allowed(ctx context.Context, r Request, p Permission) (bool, error)
	// Node gives the Node of that name as it is now, not from a cache. The error wraps
	// [ErrNoNode] if there is none. Where there are no Nodes it is what is known of the machine
	// that asks.
	Node(ctx context.Context, r Request, name string) (Node, error)
	// Reporters gives the names of other Nodes than name that report one of the addresses, in any
	// writing of it, or have it for a name: by address.
	Reporters(ctx context.Context, name string, addresses []string) (map[string][]string, error)
	// Reserved gives what no node may have.
	Reserved(ctx context.Context) (Reserved, error)
}
