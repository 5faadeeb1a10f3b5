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
// find it by; one that was released is held by nobody. The rest of it is in annotations, beside the limits.
const (
	claimLabel   = annotationPrefix + "claim"
	held         = "true"
	released     = "released"
	tokenIDLabel = annotationPrefix + "token-id"

	tokenUIDAnnotation = "token-uid"
	keysAnnotation     = "keys"
	requestsAnnotation = "requests"
	nodeUIDAnnotation  = "node-uid"
)

// What claims of the name have left is under a prefix of its own, and a claim that was released is
// labelled otherwise: a kubejoin that knows nothing of them takes a claim as it is, and a released
// one for a Lease that is none, which keeps the name from being claimed.
const (
	pastUntilAnnotation    = "released." + annotationPrefix + "until"
	pastDurationAnnotation = "released." + annotationPrefix + "certificate-duration"
)

// What is known of a Node that the claim replaces is under a prefix of its own as well, and so is that
// the claim is pending: a kubejoin that knows nothing of it reads the claim all the same.
const (
	pendingAnnotation = "pending." + annotationPrefix + "claim"

	readyBeforeAnnotation = "replaced." + annotationPrefix + "ready-before"
	readyAgainAnnotation  = "replaced." + annotationPrefix + "ready-again"
)

// claimAnnotations are those on a claim that are no limits.
var claimAnnotations = []string{tokenUIDAnnotation, keysAnnotation, requestsAnnotation, nodeUIDAnnotation}

// errNoClaim is wrapped about a Lease that is there for something else, as the one of the
// leader election.
var errNoClaim = errors.New("no claim")

// decodeLease is strict: limits of a claim that cannot be read are not none.
func decodeLease(lease *coordinationv1.Lease) (tokens.Claim, error) {
	name := lease.Namespace + "/" + lease.Name
	label := lease.Labels[claimLabel]
	if label != held && label != released {
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
		Requests: tokens.NewestRequests(list(requestsAnnotation)),
		NodeUID:  annotation(nodeUIDAnnotation),

		Created: lease.CreationTimestamp.UTC(),
		UID:     string(lease.UID),
		Version: lease.ResourceVersion,
	}
	if label == held { // an earlier version that releases a claim leaves these
		c.Pending = lease.Annotations[pendingAnnotation] != ""
		c.ReadyBefore = lease.Annotations[readyBeforeAnnotation]
		c.ReadyAgain = lease.Annotations[readyAgainAnnotation] != ""
	}
	if at := lease.Spec.AcquireTime; at != nil {
		c.Created = at.UTC().Truncate(time.Second)
	}
	if lease.Spec.HolderIdentity != nil {
		c.TokenID = *lease.Spec.HolderIdentity
	}
	var err error
	if c.Past, err = readPast(lease.Annotations); err == nil && (label == released) != c.Released() {
		err = fmt.Errorf("label %s: %q given, and it is held by %q", claimLabel, label, c.TokenID)
	}
	if err := errors.Join(c.Check(), err); err != nil {
		return tokens.Claim{}, fmt.Errorf("%s is a Lease that is no good as a claim, and keeps the name taken until it is mended or deleted with kubectl: %w", name, err)
	}
	return c, nil
}

// encodeLease is a new Lease.
func encodeLease(namespace string, c tokens.Claim) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: c.Node, Labels: map[string]string{claimLabel: released}},
	}
	applyClaim(lease, tokens.Claim{}, c)
	return lease
}

// applyClaim writes what differs between before and after, and touches nothing else.
func applyClaim(lease *coordinationv1.Lease, before, after tokens.Claim) {
	switch {
	case after.TokenID == before.TokenID:
	case after.Released():
		lease.Spec.HolderIdentity = nil
		lease.Labels[claimLabel] = released
		delete(lease.Labels, tokenIDLabel)
	default:
		if before.Released() {
			// Kubernetes has a time of creation for the first claim alone.
			now := metav1.NewMicroTime(time.Now())
			lease.Spec.AcquireTime = &now
		}
		lease.Spec.HolderIdentity = &after.TokenID
		lease.Labels[claimLabel], lease.Labels[tokenIDLabel] = held, after.TokenID
	}
	set := func(changed bool, name, value string) {
		if changed {
			annotate(lease, name, value)
		}
	}
	set(after.TokenUID != before.TokenUID, tokenUIDAnnotation, after.TokenUID)
	set(!slices.Equal(after.Keys, before.Keys), keysAnnotation, strings.Join(after.Keys, ","))
	// Before may have been cut: an older kubejoin kept all requests.
	if all := strings.Join(after.Requests, ","); lease.Annotations[annotationPrefix+requestsAnnotation] != all {
		annotate(lease, requestsAnnotation, all)
	}
	// An older kubejoin may have left these on what it released.
	annotateKey(lease, pendingAnnotation, map[bool]string{true: "true"}[after.Pending])
	annotateKey(lease, readyBeforeAnnotation, after.ReadyBefore)
	annotateKey(lease, readyAgainAnnotation, map[bool]string{true: "true"}[after.ReadyAgain])
	set(after.NodeUID != before.NodeUID, nodeUIDAnnotation, after.NodeUID)
	applyLimits(lease, before.Limits, after.Limits)
	if after.Past != before.Past {
		until, duration := "", ""
		if !after.Past.Until.IsZero() {
			until = after.Past.Until.UTC().Format(time.RFC3339)
		}
		if after.Past.CertificateDuration != 0 {
			duration = after.Past.CertificateDuration.String()
		}
		annotateKey(lease, pastUntilAnnotation, until)
		annotateKey(lease, pastDurationAnnotation, duration)
	}
}

// readPast is strict as well.
func readPast(annotations map[string]string) (p tokens.ReleasedClaim, err error) {
	if value, given := annotations[pastUntilAnnotation]; given {
		if p.Until, err = time.Parse(time.RFC3339, value); err != nil {
			return p, fmt.Errorf("%s: %.100q given, want a time as of RFC 3339", pastUntilAnnotation, value)
		}
		p.Until = p.Until.UTC()
	}
	if value, given := annotations[pastDurationAnnotation]; given {
		if p.CertificateDuration, err = time.ParseDuration(value); err != nil {
			return p, fmt.Errorf("%s: %.100q given, want a duration such as 8h0m0s", pastDurationAnnotation, value)
		}
	}
	return p, nil
}
