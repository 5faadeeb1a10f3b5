package signer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
)

// Standalone is [approval.Facts] without a cluster, and so without RBAC and Nodes. It permits what kubeadm's bindings
// permit. About a machine, it knows only its name and the address that it connects from. The zero Standalone knows no
// DNS names except a node's own name.
type Standalone struct {
	// Claims are the names that nodes have taken; nil means none.
	Claims tokens.Claims
	// DNSSuffixes are the domains that contain the nodes' DNS names, for example "example.com" or ".example.com".
	DNSSuffixes []string
	// Keep lists the addresses and names that no node may have in a serving certificate.
	Keep approval.ClusterAddresses
}

var _ approval.Facts = Standalone{}

// Allowed permits first certificates of nodes to bootstrap tokens, and renewals to nodes. It permits nothing else, so
// [approval.MaySign] approves nothing: the groups of a requester may come from a client certificate, which can hold
// any group. The server decides which callers may sign.
func (s Standalone) Allowed(_ context.Context, r approval.Request, p approval.Permission) (bool, error) {
	if p.Verb != "create" || p.Resource != "certificatesigningrequests" || p.Name != "" {
		return false, nil
	}
	switch p.Subresource {
	case "nodeclient":
		return strings.HasPrefix(r.User, tokens.BootstrapUserPrefix) && slices.Contains(r.Groups, tokens.BootstrappersGroup), nil
	case "selfnodeclient":
		return approval.IsNode(r.User, r.Groups) && r.CSR != nil && r.CSR.Subject.CommonName == r.User, nil
	}
	return false, nil
}

// Node returns the requesting machine, and fails for any other name. Its addresses are the address that it connects
// from, its name, and its name under each suffix. Its client certificate proves its name.
func (s Standalone) Node(_ context.Context, r approval.Request, name string) (approval.Node, error) {
	if r.User != tokens.NodeUserPrefix+name || !approval.IsNode(r.User, r.Groups) {
		return approval.Node{}, fmt.Errorf("node %s: %w: without a cluster, only the requesting node itself is known", name, approval.ErrNoNode)
	}
	if !r.From.IsValid() {
		return approval.Node{}, errors.New("the client address of the machine is unknown")
	}
	n := approval.Node{Name: name, NoNodeObject: true, Addresses: []string{r.From.Unmap().WithZone("").String(), name}}
	for _, suffix := range s.DNSSuffixes {
		n.Addresses = append(n.Addresses, name+"."+strings.Trim(suffix, "."))
	}
	return n, nil
}

// Reporters returns the nodes that have claimed one of the addresses as their name. It does not know the IP
// addresses of other machines.
func (s Standalone) Reporters(ctx context.Context, name string, addresses []string) (map[string][]string, error) {
	reporters := map[string][]string{}
	if s.Claims == nil {
		return reporters, nil
	}
	for _, address := range addresses {
		other := strings.ToLower(strings.TrimSuffix(address, "."))
		if _, err := netip.ParseAddr(address); err == nil || other == name || tokens.CheckNodeName(other) != nil {
			continue
		}
		switch c, err := s.Claims.Get(ctx, other, tokens.Cached); {
		case err == nil && c.Released():
		case err == nil:
			reporters[address] = []string{other}
		case !errors.Is(err, tokens.ErrNotFound):
			return nil, fmt.Errorf("claim of node %s: %w", other, err)
		}
	}
	return reporters, nil
}

// ClusterAddresses returns Keep.
func (s Standalone) ClusterAddresses(context.Context) (approval.ClusterAddresses, error) {
	return s.Keep, nil
}
