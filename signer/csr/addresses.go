package csr

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// byHost is the index of Nodes by name and reported addresses.
const byHost = "host"

// hostsOf returns the addresses that a Node reports, and its name.
func hostsOf(object any) ([]string, error) {
	node, ok := object.(*corev1.Node)
	if !ok {
		return nil, nil
	}
	hosts := []string{approval.Host(node.Name)}
	for _, a := range node.Status.Addresses {
		hosts = append(hosts, approval.Host(a.Address))
	}
	slices.Sort(hosts)
	return slices.Compact(hosts), nil
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

func (n *Nodes) reporters(ctx context.Context, name string, addresses []string) (map[string][]string, error) {
	if !cache.WaitForCacheSync(ctx.Done(), n.informer.HasSynced) {
		return nil, fmt.Errorf("list of Nodes is not complete yet: %w", ctx.Err())
	}
	all := map[string][]string{}
	for _, address := range addresses {
		keys, err := n.informer.GetIndexer().IndexKeys(byHost, approval.Host(address))
		if err != nil {
			return nil, err
		}
		for _, other := range keys {
			if other != name {
				all[address] = append(all[address], other)
			}
		}
		slices.Sort(all[address])
	}
	return all, nil
}
