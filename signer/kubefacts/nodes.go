package kubefacts

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubejoin/kubejoin/internal/kube/kubecache"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// A NodeCache reads Node objects of a cluster, live or from a cache: their names, UIDs, addresses and readiness.
// Only the existence of a Node may be the reason to allow a request, because its kubelet writes the other
// fields.
type NodeCache struct {
	client   kubernetes.Interface
	watching atomic.Bool
	// cache begins to watch at the first call: a standby replica may never need it.
	cache func() *kubecache.Cache[*corev1.Node, *cachedNode]

	inFlight atomic.Int64 // calls of Node in progress

	mu   sync.Mutex
	next *lookups // lookups that wait for more lookups to share a list; nil if there are none
}

// A cachedNode has the fields of a Node that this package needs. A whole Node has about 10 KB, and a cluster may have
// 100,000 Nodes.
type cachedNode struct {
	name   string
	seen   SeenNode
	period [16]byte // its readyPeriod
	hosts  []string // its name and addresses, in the form of approval.Host
}

func decodeNode(node *corev1.Node) (*cachedNode, error) {
	seen := SeenNode{Registration: Registration{string(node.UID), node.CreationTimestamp.Time}}
	if slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == tokens.JoiningTaint }) {
		seen.Joining = &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, CreationTimestamp: node.CreationTimestamp, Labels: node.Labels},
			Spec:       corev1.NodeSpec{Taints: slices.Clone(node.Spec.Taints)},
		}
	}
	if at := slices.IndexFunc(node.Status.Conditions, isReady); at >= 0 {
		c := node.Status.Conditions[at]
		seen.Ready = corev1.NodeCondition{Status: c.Status, LastTransitionTime: c.LastTransitionTime}
		if c.Status != corev1.ConditionTrue { // else nobody reads the text, which can have any size
			seen.Ready.Reason, seen.Ready.Message = safetext.Text(c.Reason, safetext.MaxName), safetext.Text(c.Message, safetext.MaxMessage)
		}
	}
	return &cachedNode{node.Name, seen, readyPeriod(node), hostsOf(node)}, nil
}

func isReady(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady }

// OpenNodes returns the Nodes of a cluster. The first use of the cache begins to watch them, until ctx ends. Most calls of
// Node and Ready need no cache. The client needs get, list and watch on nodes. Failures of the watch go to klog.
func OpenNodes(ctx context.Context, client kubernetes.Interface) *NodeCache {
	n := &NodeCache{client: client}
	n.cache = sync.OnceValue(func() *kubecache.Cache[*corev1.Node, *cachedNode] {
		n.watching.Store(true)
		return kubecache.Open(ctx, client, client.CoreV1().Nodes(), "", kubecache.Config[*corev1.Node, *cachedNode]{
			What:   "nodes",
			Decode: decodeNode,
			Groups: func(n *cachedNode) []string { return n.hosts },
			// Compare the UID, too: the Node may have been deleted and created again between two watch events.
			Same: func(before, now *cachedNode) bool {
				return before.seen.UID == now.seen.UID && before.period == now.period && (before.seen.Joining == nil) == (now.seen.Joining == nil)
			},
		})
	})
	return n
}

// Until returns n if it has begun to watch Nodes, or else a NodeCache that watches them until ctx ends.
func (n *NodeCache) Until(ctx context.Context) *NodeCache {
	if n.watching.Load() {
		return n
	}
	return OpenNodes(ctx, n.client)
}

func (n *NodeCache) get(ctx context.Context, name string) (*corev1.Node, error) {
	node, err := n.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, notFound(name)
	}
	return node, err
}

// Ready identifies the current period for which a Node has been Ready; empty if it is not Ready. A period ends
// when the condition changes or the machine boots. The boot ID is part of it, because a machine that replaces a
// dead machine may find the condition unchanged. It returns the same errors as Node.
func (n *NodeCache) Ready(ctx context.Context, name string) (period string, err error) {
	node, err := n.get(ctx, name)
	if err != nil {
		return "", err
	}
	if sum := readyPeriod(node); sum != [16]byte{} {
		period = hex.EncodeToString(sum[:])
	}
	return period, nil
}

// readyPeriod returns a hash of the period, so that its length does not depend on the kubelet's text. It is zero if
// the Node is not Ready. The heartbeat time, which the kubelet updates every few minutes, does not change it.
func readyPeriod(node *corev1.Node) (period [16]byte) {
	for _, c := range node.Status.Conditions {
		if isReady(c) && c.Status == corev1.ConditionTrue {
			sum := sha256.Sum256(fmt.Appendf(nil, "%d %s", c.LastTransitionTime.Unix(), node.Status.NodeInfo.BootID))
			return [16]byte(sum[:16])
		}
	}
	return period
}

// Nodes returns the UIDs of all Nodes by name, from a cache that may lag. It waits until the cache is
// filled or ctx ends.
func (n *NodeCache) Nodes(ctx context.Context) (map[string]string, error) {
	cached, err := n.cache().List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	all := make(map[string]string, len(cached))
	for _, node := range cached {
		all[node.name] = node.seen.UID
	}
	return all, nil
}

// Registered returns when the Node with this name and UID was created, from a cache that may lag. The time is zero if the
// cache has no such Node. It waits until the cache is filled or ctx ends.
func (n *NodeCache) Registered(ctx context.Context, name, uid string) (time.Time, error) {
	e, err := n.cache().Get(ctx, name)
	if err != nil || e == nil || e.Value.seen.UID != uid {
		return time.Time{}, err
	}
	return e.Value.seen.Created, nil
}

// A Registration is a Node that exists, and when it was created.
type Registration struct {
	UID     string
	Created time.Time
}

// Joining returns the Nodes with the taint [tokens.JoiningTaint] by name, from a cache that may lag. It waits until the cache
// is filled or ctx ends.
func (n *NodeCache) Joining(ctx context.Context) (map[string]Registration, error) {
	cached, err := n.cache().List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	all := map[string]Registration{}
	for _, node := range cached {
		if node.seen.Joining != nil {
			all[node.name] = node.seen.Registration
		}
	}
	return all, nil
}

// A SeenNode has the fields of a Node that a cache keeps. Do not change them.
type SeenNode struct {
	Registration
	// Ready has the status and the transition time of the condition Ready. If the status is not True, it also has the start of
	// the reason and of the message. It is zero if the kubelet has not reported it.
	Ready corev1.NodeCondition
	// Joining has the metadata and the taints of a Node with the taint [tokens.JoiningTaint]; else nil.
	Joining *corev1.Node
}

// Seen returns all Nodes by name, from a cache that may lag. It waits until the cache is filled or ctx ends.
func (n *NodeCache) Seen(ctx context.Context) (map[string]SeenNode, error) {
	cached, err := n.cache().List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	all := make(map[string]SeenNode, len(cached))
	for _, node := range cached {
		all[node.name] = node.seen
	}
	return all, nil
}

// Watch sends a hint when a Node was created or deleted, or when its condition Ready or the taint [tokens.JoiningTaint] has
// changed.
func (n *NodeCache) Watch(ctx context.Context) <-chan struct{} { return n.cache().Watch(ctx) }
