package csr

import (
	"context"
	"fmt"
	"sync"

	"github.com/kubejoin/kubejoin/tokens"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A rack that comes up asks about as many Nodes, none of which exists: each question is a request
// that kube-apiserver passes on to etcd. When more than fewLookups are asked at once, and the
// cluster has not more than nodesPerLookup Nodes for each of them, one list answers them all.
//
// A list has to be as of now, too: while others write, kube-apiserver (since 1.31, KEP-2340) takes
// up to 100 ms to be sure that its cache is. For a few questions that is longer than it is worth.
const (
	fewLookups     = 8
	nodesPerLookup = 20
)

// A question is which UID a Node has.
type uidLookup struct {
	name string
	uid  string
	err  error
}

// Node gives the UID of a Node as it is now: no earlier than when it is asked. The error wraps
// [tokens.ErrNotFound] if there is none.
func (n *Nodes) Node(ctx context.Context, name string) (string, error) {
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
	if err := n.lookups.Do(ctx, struct{}{}, q, n.lookUp); err != nil {
		return "", fmt.Errorf("node %s: %w", name, err)
	}
	return q.uid, q.err
}

// isFew reports whether the cluster has few Nodes for so many questions, as far as is known.
func (n *Nodes) isFew(lookups int) bool {
	return n.informer.HasSynced() && n.cached.Load() <= int64(nodesPerLookup*lookups)
}

// lookUp answers questions with what is asked of the API server from now on.
func (n *Nodes) lookUp(ctx context.Context, all []*uidLookup) {
	if len(all) > fewLookups && n.isFew(len(all)) {
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

// metadataList is the form of a list in which a Node is without its images and addresses, which
// are most of it.
const metadataList = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1," +
	"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// list reads all Nodes. Without a resourceVersion the API server answers with the newest state.
func (n *Nodes) list(ctx context.Context, all []*uidLookup) {
	var nodes metav1.PartialObjectMetadataList
	err := n.client.CoreV1().RESTClient().Get().Resource("nodes").SetHeader("Accept", metadataList).Do(ctx).Into(&nodes)
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
