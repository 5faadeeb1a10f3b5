package approval_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/approval"
)

// memory holds the facts of a cluster with many nodes.
type memory struct {
	nodes     map[string]approval.Node
	reporters map[string][]string // node names by address
	reserved  approval.ClusterAddresses
}

func newMemory(nodes int) *memory {
	m := &memory{
		nodes: map[string]approval.Node{}, reporters: map[string][]string{},
		reserved: approval.ClusterAddresses{
			Prefixes: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}, APIServer: []string{"10.0.0.1", "api.example.com"}, Source: "a benchmark",
		},
	}
	for i := range nodes {
		name := fmt.Sprintf("worker-%d", i)
		addresses := []string{fmt.Sprintf("10.0.%d.%d", 1+i/250, 1+i%250), name, name + ".example.com"}
		m.nodes[name] = approval.Node{Name: name, UID: name, Addresses: addresses}
		for _, address := range addresses {
			m.reporters[address] = append(m.reporters[address], name)
		}
	}
	return m
}

func (m *memory) Allowed(context.Context, approval.Request, approval.Permission) (bool, error) {
	return true, nil
}

func (m *memory) Node(_ context.Context, _ approval.Request, name string) (approval.Node, error) {
	node, found := m.nodes[name]
	if !found {
		return node, approval.ErrNoNode
	}
	return node, nil
}

func (m *memory) Reporters(_ context.Context, name string, addresses []string) (map[string][]string, error) {
	others := map[string][]string{}
	for _, address := range addresses {
		for _, node := range m.reporters[address] {
			if node != name {
				others[address] = append(others[address], node)
			}
		}
	}
	return others, nil
}

func (m *memory) ClusterAddresses(context.Context) (approval.ClusterAddresses, error) {
	return m.reserved, nil
}

// BenchmarkDecide measures one decision with a parsed request and facts in memory.
func BenchmarkDecide(b *testing.B) {
	rules := must.Value(approval.Rules(approval.RuleNames(), scope))(b)
	facts := newMemory(5000)
	for _, one := range []struct {
		name    string
		request approval.Request
		rule    string
	}{
		{"first certificate", kubeletRequest(bootstrap, nil), "nodeclient"},
		{"renewal", kubeletRequest(node, nil), "selfnodeclient"},
		{"serving certificate", servingRequest("worker-1", "10.0.1.2", "worker-1", "worker-1.example.com"), "kubelet-serving"},
	} {
		b.Run(one.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				d, err := approval.Decide(b.Context(), rules, one.request, facts)
				if err != nil || d.Verdict != approval.Approve || d.Rule != one.rule {
					b.Fatalf("%+v, %v", d, err)
				}
			}
		})
	}
}
