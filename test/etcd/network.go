package etcd

import (
	"slices"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/test/cluster"
)

// A Network is the path from one client to the members: it has a proxy for each member. Other clients do not use this path,
// so that a test can separate one client from one member.
type Network struct {
	links []*cluster.Proxy

	mu   sync.Mutex
	heal map[int]func() // by member
}

// Network returns a new network. Stop it with [Network.Close].
func (c *Cluster) Network() (*Network, error) {
	n := &Network{heal: map[int]func(){}}
	for _, m := range c.members {
		l, err := cluster.NewProxy(m.address, nil)
		if err != nil {
			n.Close()
			return nil, err
		}
		n.links = append(n.links, l)
	}
	return n, nil
}

// Endpoints returns the URLs of the members on this network.
func (n *Network) Endpoints() []string {
	var all []string
	for _, l := range n.links {
		all = append(all, "https://"+l.Address())
	}
	return all
}

// Cut closes the connections to members and refuses new ones, until Heal. Without members, it cuts off all members.
func (n *Network) Cut(members ...int) { n.each(members, (*cluster.Proxy).Cut) }

// Drop stops forwarding to and from members until Heal, as if packets were lost. Connections stay open. Without members,
// Drop stops forwarding for all members.
func (n *Network) Drop(members ...int) { n.each(members, (*cluster.Proxy).Stall) }

// Delay delays all data to and from members, until Heal. Without members, it delays data for all members.
func (n *Network) Delay(d time.Duration, members ...int) {
	n.each(members, func(p *cluster.Proxy) func() { return p.Delay(d) })
}

// Heal ends Cut, Drop and Delay for members. Without members, it ends them for all.
func (n *Network) Heal(members ...int) { n.each(members, nil) }

// each ends an earlier Cut, Drop or Delay for the members, and then calls do for each member.
func (n *Network) each(members []int, do func(*cluster.Proxy) (heal func())) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, l := range n.links {
		if len(members) > 0 && !slices.Contains(members, i) {
			continue
		}
		if heal := n.heal[i]; heal != nil {
			heal()
		}
		if n.heal[i] = nil; do != nil {
			n.heal[i] = do(l)
		}
	}
}

// Close closes all connections and listeners.
func (n *Network) Close() {
	for _, l := range n.links {
		l.Close()
	}
}
