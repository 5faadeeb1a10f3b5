package kubefacts

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
)

// hostsOf returns the name of a Node and the addresses that it reports, without duplicates.
func hostsOf(node *corev1.Node) []string {
	hosts := []string{approval.Host(node.Name)}
	for _, a := range node.Status.Addresses {
		hosts = append(hosts, approval.Host(a.Address))
	}
	slices.Sort(hosts)
	return slices.Clone(slices.Compact(hosts)) // without spare capacity
}

var errNoNodes = errors.New("cannot look up Nodes: want Facts.Nodes")

// Node reads a Node from the API server, not from the cache.
func (f *Facts) Node(ctx context.Context, _ approval.Request, name string) (approval.Node, error) {
	if f.Nodes == nil {
		return approval.Node{}, errNoNodes
	}
	node, err := f.Nodes.get(ctx, name)
	if errors.Is(err, tokens.ErrNotFound) {
		return approval.Node{}, fmt.Errorf("node %s: %w", name, approval.ErrNoNode)
	}
	if err != nil {
		return approval.Node{}, err
	}
	n := approval.Node{Name: node.Name, UID: string(node.UID)}
	for _, a := range node.Status.Addresses {
		n.Addresses = append(n.Addresses, a.Address)
	}
	return n, nil
}

// Reporters returns, by address, the names of other Nodes that report the address or have it as their name.
// It reads a cache that may lag. It waits until the cache is filled or ctx ends.
func (f *Facts) Reporters(ctx context.Context, name string, addresses []string) (map[string][]string, error) {
	if f.Nodes == nil {
		return nil, errNoNodes
	}
	return f.Nodes.reporters(ctx, name, addresses)
}

func (n *NodeCache) reporters(ctx context.Context, name string, addresses []string) (map[string][]string, error) {
	all := map[string][]string{}
	for _, address := range addresses {
		nodes, err := n.cache().Grouped(ctx, approval.Host(address))
		if err != nil {
			return nil, fmt.Errorf("find Nodes by address: %w", err)
		}
		for _, other := range nodes { // sorted by name
			if other.name != name {
				all[address] = append(all[address], other.name)
			}
		}
	}
	return all, nil
}
