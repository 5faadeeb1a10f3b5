package secretstore

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A claim is a Lease that is named after the node and held by the token's ID, with labels to
// find it by. The rest of it is in annotations, beside the limits.
const (
	claimLabel   = annotationPrefix + "claim"
	tokenIDLabel = annotationPrefix + "token-id"

	tokenUIDAnnotation = "token-uid"
	keysAnnotation     = "keys"
	requestsAnnotation = "requests"
	nodeUIDAnnotation  = "node-uid"
)

// claimAnnotations are those on a claim that are no limits.
var claimAnnotations = []string{tokenUIDAnnotation, keysAnnotation, requestsAnnotation, nodeUIDAnnotation}

// errNoClaim is wrapped about a Lease that is there for something else, as the one of the
// leader election.
var errNoClaim = errors.New("no claim")

// decodeLease is strict: limits of a claim that cannot be read are not none.
func decodeLease(lease *coordinationv1.Lease) (tokens.Claim, error) {
	name := lease.Namespace + "/" + lease.Name
	if lease.Labels[claimLabel] != "true" {
		return tokens.Claim{}, fmt.Errorf("%s is a Lease that is %w: it has no label %s=true", name, errNoClaim, claimLabel)
	}
	annotation := func(name string) string { return lease.Annotations[annotationPrefix+name] }
	list := func(name string) []string {
		if annotation(name) == "" {
			return nil
		}
		return strings.Split(annotation(name), ",")
	}
	c := tokens.Claim{
		Node:     lease.Name,
		TokenUID: annotation(tokenUIDAnnotation),
		Limits:   readLimits(lease.Annotations, claimAnnotations...),
		Keys:     list(keysAnnotation),
		Requests: list(requestsAnnotation),
		NodeUID:  annotation(nodeUIDAnnotation),
		Created:  lease.CreationTimestamp.UTC(),
		UID:      string(lease.UID),
		Version:  lease.ResourceVersion,
	}
	if lease.Spec.HolderIdentity != nil {
		c.TokenID = *lease.Spec.HolderIdentity
	}
	if err := c.Check(); err != nil {
		return tokens.Claim{}, fmt.Errorf("%s is a Lease that is no good as a claim, and keeps the name taken until it is mended or deleted with kubectl: %w", name, err)
	}
	return c, nil
}

// encodeLease is a new Lease.
func encodeLease(namespace string, c tokens.Claim) *coordinationv1.Lease {
	// Kubernetes has its own time of creation. This one is for those who read Leases.
	now := metav1.NewMicroTime(time.Now())
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: c.Node, Labels: map[string]string{claimLabel: "true"}},
		Spec:       coordinationv1.LeaseSpec{AcquireTime: &now},
	}
	applyClaim(lease, tokens.Claim{}, c)
	return lease
}

// applyClaim writes what differs between before and after, and touches nothing else.
func applyClaim(lease *coordinationv1.Lease, before, after tokens.Claim) {
	if after.TokenID != before.TokenID {
		lease.Spec.HolderIdentity = &after.TokenID
		lease.Labels[tokenIDLabel] = after.TokenID
	}
	set := func(changed bool, name, value string) {
		if changed {
			annotate(lease, name, value)
		}
	}
	set(after.TokenUID != before.TokenUID, tokenUIDAnnotation, after.TokenUID)
	set(!slices.Equal(after.Keys, before.Keys), keysAnnotation, strings.Join(after.Keys, ","))
	set(!slices.Equal(after.Requests, before.Requests), requestsAnnotation, strings.Join(after.Requests, ","))
	set(after.NodeUID != before.NodeUID, nodeUIDAnnotation, after.NodeUID)
	applyLimits(lease, before.Limits, after.Limits)
}
