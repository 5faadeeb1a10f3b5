package secretstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A claim is a Lease whose name is the node name and whose holder is the token ID. The Lease of a released
// claim has no holder. Labels make claims searchable. Annotations contain the other fields and the limits.
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

// The Past has its own annotation prefix, so that earlier versions of kubejoin can read a claim that has
// one. A released claim has another label value. Earlier versions take it for a Lease that is not a claim,
// so with them nobody can claim its name.
const (
	pastUntilAnnotation    = "released." + annotationPrefix + "until"
	pastDurationAnnotation = "released." + annotationPrefix + "certificate-duration"
	pastRejoinAnnotation   = "released." + annotationPrefix + "rejoin"
)

// The data about a replaced Node has its own annotation prefix too, so that earlier versions can still read the claim.
const (
	readyBeforeAnnotation = "replaced." + annotationPrefix + "ready-before"
	readyAgainAnnotation  = "replaced." + annotationPrefix + "ready-again"
)

// identityAnnotation contains the Identity as JSON. It has its own prefix, too.
const identityAnnotation = "rejoin." + annotationPrefix + "identity"

// claimAnnotations are the annotations of a claim that are not limits.
var claimAnnotations = []string{tokenUIDAnnotation, keysAnnotation, requestsAnnotation, nodeUIDAnnotation}

// errNoClaim is wrapped if a Lease is not a claim, for example the Lease of the leader election.
var errNoClaim = errors.New("not a claim")

// decodeLease returns the claim in a Lease. It returns an error if the limits are malformed, because
// otherwise the claim would have no limits.
func decodeLease(lease *coordinationv1.Lease) (tokens.Claim, error) {
	name := lease.Namespace + "/" + lease.Name
	label := lease.Labels[claimLabel]
	if label != held && label != released {
		return tokens.Claim{}, fmt.Errorf("the Lease %s is %w: it has no label %s=true", name, errNoClaim, claimLabel)
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
	if label == held { // an earlier version does not remove these annotations when it releases a claim
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
		err = fmt.Errorf("label %s: %q given, but the holder is %q", claimLabel, label, c.TokenID)
	}
	var identityErr error
	c.Identity, identityErr = readIdentity(lease.Annotations)
	if err := errors.Join(c.Check(), err, identityErr); err != nil {
		return tokens.Claim{}, fmt.Errorf("the Lease %s is a malformed claim, and its node name stays taken: repair or delete the Lease with kubectl: %w", name, err)
	}
	return c, nil
}

// encodeLease returns a new Lease for a claim.
func encodeLease(namespace string, c tokens.Claim) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: c.Node, Labels: map[string]string{claimLabel: released}},
	}
	applyClaim(lease, tokens.Claim{}, c)
	return lease
}

// applyClaim writes the differences between before and after to the Lease. It changes nothing else.
func applyClaim(lease *coordinationv1.Lease, before, after tokens.Claim) {
	switch {
	case after.TokenID == before.TokenID:
	case after.Released():
		lease.Spec.HolderIdentity = nil
		lease.Labels[claimLabel] = released
		delete(lease.Labels, tokenIDLabel)
	default:
		// The creationTimestamp is that of the first claim in this Lease.
		now := metav1.NewMicroTime(time.Now())
		lease.Spec.AcquireTime = &now
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
	// Compare with the annotation, not with before: earlier versions kept all requests, and
	// decodeLease has shortened the list.
	if all := strings.Join(after.Requests, ","); lease.Annotations[annotationPrefix+requestsAnnotation] != all {
		annotate(lease, requestsAnnotation, all)
	}
	// Earlier versions may have left these annotations on a released claim, so set them in any case.
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
		annotateKey(lease, pastRejoinAnnotation, after.Past.Rejoin)
	}
	if !after.Identity.Equal(before.Identity) {
		annotateKey(lease, identityAnnotation, identityText(after.Identity))
	}
}

// identityText returns an Identity as JSON; empty for the zero Identity.
func identityText(i tokens.Identity) string {
	if i.IsZero() {
		return ""
	}
	text, err := json.Marshal(i)
	if err != nil { // cannot happen: Check has checked the times
		return ""
	}
	return string(text)
}

// readIdentity returns the Identity in the annotations. It returns an error for a malformed value.
func readIdentity(annotations map[string]string) (i tokens.Identity, err error) {
	value, given := annotations[identityAnnotation]
	if !given {
		return i, nil
	}
	decoder := json.NewDecoder(strings.NewReader(value))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&i); err != nil || decoder.More() {
		return tokens.Identity{}, fmt.Errorf("%s: %.100q given, want a JSON object as kubejoin writes it", identityAnnotation, value)
	}
	return i, nil
}

// readPast returns the Past in the annotations. It returns an error for malformed values.
func readPast(annotations map[string]string) (p tokens.ReleasedClaim, err error) {
	if value, given := annotations[pastUntilAnnotation]; given {
		if p.Until, err = time.Parse(time.RFC3339, value); err != nil {
			return p, fmt.Errorf("%s: %.100q given, want an RFC 3339 time", pastUntilAnnotation, value)
		}
		p.Until = p.Until.UTC()
	}
	if value, given := annotations[pastDurationAnnotation]; given {
		if p.CertificateDuration, err = time.ParseDuration(value); err != nil {
			return p, fmt.Errorf("%s: %.100q given, want a duration such as 8h0m0s", pastDurationAnnotation, value)
		}
	}
	p.Rejoin = annotations[pastRejoinAnnotation]
	return p, nil
}
