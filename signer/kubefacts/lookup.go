package kubefacts

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/kube/fakeclient"
	"github.com/kubejoin/kubejoin/internal/kube/kubecache"
	"github.com/kubejoin/kubejoin/tokens"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A rack of machines that joins causes one lookup for each Node name, and none of these Nodes exists. Each
// lookup is a request that kube-apiserver passes on to etcd. While more than fewLookups lookups are open,
// lookups that begin within gather share a list. The cluster must have at most nodesPerLookup Nodes for each of
// these lookups.
//
// The list must be up to date, too. While other clients write, kube-apiserver (since 1.31, KEP-2340) takes up to
// 100 ms to confirm that its cache is up to date. For a few lookups, that is slower than single requests. For the
// same reason, a list does not wait until an earlier list has ended.
const (
	fewLookups     = 8
	nodesPerLookup = 20
	gather         = 30 * time.Millisecond
	// listTimeout limits the time of a list, which continues even if all its callers have been canceled.
	listTimeout = 10 * time.Second
)

// A uidLookup asks for the UID of a Node.
type uidLookup struct {
	name string
	uid  string
	err  error
}

// lookups are lookups that share one list.
type lookups struct {
	all  []*uidLookup
	done chan struct{} // closed when all are complete
}

// Node returns the UID of a Node, read after the call began. The error wraps [tokens.ErrNotFound] if the
// Node does not exist.
func (n *NodeCache) Node(ctx context.Context, name string) (string, error) {
	asking := n.inFlight.Add(1)
	defer n.inFlight.Add(-1)
	if asking <= fewLookups || !n.isFew(int(asking)) {
		node, err := n.get(ctx, name)
		if err != nil {
			return "", err
		}
		return string(node.UID), nil
	}
	q := &uidLookup{name: name}
	select {
	case <-n.join(ctx, q):
		return q.uid, q.err
	case <-ctx.Done():
		return "", fmt.Errorf("node %s: %w", name, ctx.Err())
	}
}

// join adds a lookup to the next list. It returns a channel that is closed when the lookup is complete.
func (n *NodeCache) join(ctx context.Context, q *uidLookup) <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next == nil {
		next := &lookups{done: make(chan struct{})}
		n.next = next
		ctx = context.WithoutCancel(ctx) // ctx belongs to the first lookup, but the other lookups also need the list
		time.AfterFunc(gather, func() {
			defer close(next.done)
			n.mu.Lock()
			n.next = nil
			n.mu.Unlock()
			ctx, cancel := context.WithTimeout(ctx, listTimeout)
			defer cancel()
			n.lookUp(ctx, next.all)
		})
	}
	n.next.all = append(n.next.all, q)
	return n.next.done
}

// isFew reports whether the cached number of Nodes is small compared to the number of lookups.
func (n *NodeCache) isFew(lookups int) bool {
	cached, filled := n.cache().Len()
	return filled && cached <= nodesPerLookup*lookups
}

// lookUp completes lookups with reads of the API server that begin now.
func (n *NodeCache) lookUp(ctx context.Context, all []*uidLookup) {
	if len(all) > 1 && n.isFew(len(all)) && !fakeclient.Is(n.client.CoreV1()) {
		n.list(ctx, all)
		return
	}
	var asking sync.WaitGroup
	for _, q := range all {
		asking.Go(func() {
			node, err := n.get(ctx, q.name)
			if q.err = err; err == nil {
				q.uid = string(node.UID)
			}
		})
	}
	asking.Wait()
}

// list reads all Nodes. Without a resourceVersion the API server returns the newest state.
func (n *NodeCache) list(ctx context.Context, all []*uidLookup) {
	var nodes metav1.PartialObjectMetadataList
	err := n.client.CoreV1().RESTClient().Get().Resource("nodes").SetHeader("Accept", kubecache.MetadataList).Do(ctx).Into(&nodes)
	if err != nil {
		for _, q := range all {
			q.err = fmt.Errorf("list nodes: %w", err)
		}
		return
	}
	uids := make(map[string]string, len(nodes.Items))
	for _, node := range nodes.Items {
		uids[node.Name] = string(node.UID)
	}
	for _, q := range all {
		uid, found := uids[q.name]
		if q.uid = uid; !found {
			q.err = notFound(q.name)
		}
	}
}

func notFound(name string) error { return fmt.Errorf("node %s: %w", name, tokens.ErrNotFound) }
