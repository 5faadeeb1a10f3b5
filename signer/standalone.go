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

// Standalone is [approval.Facts] where there is no cluster, and so neither RBAC nor Nodes: what
// kubeadm's bindings permit is permitted, and of a machine is known from where it asks. The zero
// Standalone knows of no names but a node's own.
type Standalone struct {
	// Claims are the names that nodes have taken; nil is that there are none.
	Claims tokens.Claims
	// DNSSuffixes are those under which a node has its name in DNS, such as "example.com" or
	// ".example.com".
	DNSSuffixes []string
	// Keep is what no node may have in a serving certificate.
	Keep approval.Reserved
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

// Node is the machine that asks, and no other one: its addresses are the one that it asks from,
// its name, and its name under each suffix. The name is its own by its client certificate.
func (s Standalone) Node(_ context.Context, r approval.Request, name string) (approval.Node, error) {
	if r.User != tokens.NodeUserPrefix+name || !approval.IsNode(r.User, r.Groups) {
		return approval.Node{}, fmt.Errorf("node %s: %w: nothing is known of machines that do not ask themselves", name, approval.ErrNoNode)
	}
	if !r.From.IsValid() {
		return approval.Node{}, errors.New("it is not known from which address the machine asks")
	}
	n := approval.Node{Name: name, NoNodeObject: true, Addresses: []string{r.From.Unmap().WithZone("").String(), name}}
	for _, suffix := range s.DNSSuffixes {
		n.Addresses = append(n.Addresses, name+"."+strings.Trim(suffix, "."))
	}
	return n, nil
}

// Reporters gives the nodes that have claimed a name which is among the addresses. Nothing is
// known of other machines' IP addresses.
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
		switch c, err := s.Claims.Find(ctx, other); {
		case err == nil && c.Released():
		case err == nil:
			reporters[address] = []string{other}
		case !errors.Is(err, tokens.ErrNotFound):
			return nil, fmt.Errorf("claim of node %s: %w", other, err)
		}
	}
	return reporters, nil
}

// Reserved is Keep.
func (s Standalone) Reserved(context.Context) (approval.Reserved, error) { return s.Keep, nil }
