package csr

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/kubejoin/kubejoin/internal/batch"
	"github.com/kubejoin/kubejoin/internal/outage"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Nodes reads Node objects of a cluster: their names, UIDs, addresses and readiness. Only the existence of
// a Node may allow anything, because its kubelet writes the rest.
type Nodes struct {
	client   kubernetes.Interface
	informer cache.SharedIndexInformer
	hints    tokens.Hints

	cached   atomic.Int64 // number of Nodes in the informer's cache
	inFlight atomic.Int64 // calls of Node in progress
	lookups  batch.Queue[struct{}, *uidLookup]
}

// OpenNodes watches the Nodes of a cluster until ctx ends. It returns at once. The client needs get, list
// and watch on nodes.
func OpenNodes(ctx context.Context, client kubernetes.Interface) (*Nodes, error) {
	n := &Nodes{client: client}
	n.informer = cache.NewSharedIndexInformer(outage.Follow(client, client.CoreV1().Nodes(), "", nil), &corev1.Node{}, 0, cache.Indexers{byHost: hostsOf})
	_, handlerErr := n.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { n.cached.Add(1); n.hints.Send() },
		DeleteFunc: func(any) { n.cached.Add(-1); n.hints.Send() },
		UpdateFunc: func(before, now any) {
			// The Node was deleted and created again between two watch events, or its Ready period changed.
			if uid(before) != uid(now) || periodOf(before) != periodOf(now) {
				n.hints.Send()
			}
		},
	})
	if err := errors.Join(handlerErr, n.informer.SetTransform(nameUIDAndAddresses)); err != nil {
		return nil, fmt.Errorf("watch nodes: %w", err)
	}
	go n.informer.RunWithContext(ctx)
	return n, nil
}

func uid(object any) string {
	if node, ok := object.(*corev1.Node); ok {
		return string(node.UID)
	}
	return ""
}

// periodOf returns the readyPeriod of an object that nameUIDAndAddresses has reduced.
func periodOf(object any) string {
	if node, ok := object.(*corev1.Node); ok {
		return readyPeriod(node)
	}
	return ""
}

// nameUIDAndAddresses removes all fields of a Node that this package does not need. It keeps the condition
// Ready without its heartbeat time, which the kubelet updates every few minutes.
func nameUIDAndAddresses(object any) (any, error) {
	node, ok := object.(*corev1.Node)
	if !ok {
		return object, nil
	}
	kept := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion},
		Status:     corev1.NodeStatus{Addresses: node.Status.Addresses, NodeInfo: corev1.NodeSystemInfo{BootID: node.Status.NodeInfo.BootID}},
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			kept.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime}}
		}
	}
	return kept, nil
}

func (n *Nodes) get(ctx context.Context, name string) (*corev1.Node, error) {
	node, err := n.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, notFound(name)
	}
	return node, err
}

// Ready identifies the current period for which a Node has been Ready; empty if it is not Ready. A period
// ends when the condition changes and when the machine boots. The boot ID counts because a machine that
// replaces a dead one may find the condition unchanged. Errors are as with Node.
func (n *Nodes) Ready(ctx context.Context, name string) (period string, err error) {
	node, err := n.get(ctx, name)
	if err != nil {
		return "", err
	}
	return readyPeriod(node), nil
}

// readyPeriod returns a hash, so that its length does not depend on what the kubelet writes.
func readyPeriod(node *corev1.Node) string {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			sum := sha256.Sum256(fmt.Appendf(nil, "%d %s", c.LastTransitionTime.Unix(), node.Status.NodeInfo.BootID))
			return hex.EncodeToString(sum[:16])
		}
	}
	return ""
}

// Nodes returns the UIDs of all Nodes by name, from a cache that may lag. It waits until the cache is
// filled or ctx ends.
func (n *Nodes) Nodes(ctx context.Context) (map[string]string, error) {
	if !cache.WaitForCacheSync(ctx.Done(), n.informer.HasSynced) {
		return nil, fmt.Errorf("list of Nodes is not complete yet: %w", ctx.Err())
	}
	all := map[string]string{}
	for _, object := range n.informer.GetStore().List() {
		if node, ok := object.(*corev1.Node); ok {
			all[node.Name] = string(node.UID)
		}
	}
	return all, nil
}

// Watch sends a hint when a Node was created or deleted, or when its condition Ready has changed.
func (n *Nodes) Watch(ctx context.Context) <-chan struct{} { return n.hints.Watch(ctx) }
