package secretstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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
	pastNodePrefix         = "released." + annotationPrefix
)

// The data about a replaced Node has its own annotation prefix too, so that earlier versions can still read the claim.
const (
	readyBeforeAnnotation = "replaced." + annotationPrefix + "ready-before"
	readyAgainAnnotation  = "replaced." + annotationPrefix + "ready-again"
)

// nodeWaitsAnnotation says that the Node waits for its properties. It has its own prefix, too.
const nodeWaitsAnnotation = "node." + annotationPrefix + "waits"

// identityAnnotation contains the Identity as JSON. It has its own prefix, too.
const identityAnnotation = "rejoin." + annotationPrefix + "identity"

// machineAnnotation contains the Machine as JSON. It has its own prefix, too.
const machineAnnotation = "machine." + annotationPrefix + "machine"

// rulesAnnotation contains, as JSON, what the rules of the token's configuration left for renewals. It has its own prefix, too.
const rulesAnnotation = "rules." + annotationPrefix + "limits"

// claimAnnotations are the annotations of a claim that are not limits.
var claimAnnotations = []string{tokenUIDAnnotation, keysAnnotation, requestsAnnotation, nodeUIDAnnotation}

// ErrNoClaim is wrapped if a Lease is not a claim, for example the Lease of the leader election.
var ErrNoClaim = errors.New("not a claim")

// DecodeClaim returns the claim in a Lease. It returns an error if the limits are malformed, because
// otherwise the claim would have no limits. The error wraps [ErrNoClaim] if the Lease is not a claim.
func DecodeClaim(lease *coordinationv1.Lease) (tokens.Claim, error) {
	name := lease.Namespace + "/" + lease.Name
	label := lease.Labels[claimLabel]
	if label != held && label != released {
		return tokens.Claim{}, fmt.Errorf("the Lease %s is %w: it has no label %s=true", name, ErrNoClaim, claimLabel)
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
	var rules []claimRule
	var rulesErr error
	if label == held { // an earlier version does not remove these annotations when it releases a claim
		rulesErr = readJSON(lease.Annotations, rulesAnnotation, &rules)
		c.ReadyBefore = lease.Annotations[readyBeforeAnnotation]
		c.ReadyAgain = lease.Annotations[readyAgainAnnotation] != ""
		c.Waits = lease.Annotations[nodeWaitsAnnotation] != ""
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
	err = errors.Join(err, rulesErr, readJSON(lease.Annotations, identityAnnotation, &c.Identity), readJSON(lease.Annotations, machineAnnotation, &c.Machine))
	for _, r := range rules {
		c.Limits.Rules = append(c.Limits.Rules, tokens.Rule{Name: r.Name, Limits: tokens.Limits{CertificateDuration: time.Duration(r.Seconds) * time.Second, Rejoin: r.Rejoin}})
	}
	if err := errors.Join(c.Check(), err); err != nil {
		return tokens.Claim{}, fmt.Errorf("the Lease %s is a malformed claim, and its node name stays taken: repair the Lease, or if no machine uses the name, delete the Lease with kubectl: %w", name, err)
	}
	return c, nil
}

// entries returns the labels and annotations of a claim. The value is empty for those that it does not have.
func entries(c tokens.Claim) (labels, annotations map[string]string) {
	labels = map[string]string{claimLabel: held, tokenIDLabel: c.TokenID}
	if c.Released() {
		labels[claimLabel] = released
	}
	annotations = map[string]string{
		annotationPrefix + tokenUIDAnnotation: c.TokenUID,
		annotationPrefix + keysAnnotation:     strings.Join(c.Keys, ","),
		annotationPrefix + requestsAnnotation: strings.Join(c.Requests, ","),
		annotationPrefix + nodeUIDAnnotation:  c.NodeUID,

		readyBeforeAnnotation:  c.ReadyBefore,
		readyAgainAnnotation:   map[bool]string{true: "true"}[c.ReadyAgain],
		nodeWaitsAnnotation:    map[bool]string{true: "true"}[c.Waits],
		pastUntilAnnotation:    "",
		pastDurationAnnotation: "",
		pastRejoinAnnotation:   c.Past.Rejoin,
		identityAnnotation:     "",
		machineAnnotation:      "",
		rulesAnnotation:        "",
	}
	if !c.Identity.IsZero() {
		annotations[identityAnnotation] = jsonText(c.Identity)
	}
	if !c.Machine.IsZero() {
		annotations[machineAnnotation] = jsonText(c.Machine)
	}
	if rules := c.Limits.Kept().Rules; len(rules) > 0 {
		kept := make([]claimRule, len(rules))
		for i, r := range rules {
			kept[i] = claimRule{r.Name, int64(r.Limits.CertificateDuration / time.Second), r.Limits.Rejoin}
		}
		annotations[rulesAnnotation] = jsonText(kept)
	}
	if !c.Past.Until.IsZero() {
		annotations[pastUntilAnnotation] = c.Past.Until.UTC().Format(time.RFC3339)
	}
	if c.Past.CertificateDuration != 0 {
		annotations[pastDurationAnnotation] = c.Past.CertificateDuration.String()
	}
	for _, a := range limitAnnotations {
		annotations[annotationPrefix+a.name] = a.write(c.Limits)
	}
	for _, a := range nodeAnnotations {
		annotations[pastNodePrefix+a.name] = a.write(tokens.Limits{Node: c.Past.Node})
	}
	return labels, annotations
}

// encodeLease returns a new Lease for a claim.
func encodeLease(namespace string, c tokens.Claim) *coordinationv1.Lease {
	labels, annotations := entries(c)
	empty := func(_, value string) bool { return value == "" }
	maps.DeleteFunc(labels, empty)
	maps.DeleteFunc(annotations, empty)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: c.Node, Labels: labels, Annotations: annotations}}
	if !c.Released() {
		now := metav1.NowMicro()
		lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: &c.TokenID, AcquireTime: &now}
	}
	return lease
}

// patchLease returns a merge patch with the differences between two versions of a claim. The API server applies it only
// to the version before. It changes nothing that others have set.
func patchLease(before, after tokens.Claim) ([]byte, error) {
	wasLabels, was := entries(before)
	labels, annotations := entries(after)
	// Earlier versions kept all requests, which DecodeClaim shortens. They may have left the others on a released claim.
	for _, key := range []string{annotationPrefix + requestsAnnotation, readyBeforeAnnotation, readyAgainAnnotation, nodeWaitsAnnotation, rulesAnnotation} {
		delete(was, key)
	}
	patch := map[string]any{"metadata": map[string]any{
		"uid": before.UID, "resourceVersion": before.Version,
		"labels": changed(wasLabels, labels), "annotations": changed(was, annotations),
	}}
	switch {
	case after.TokenID == before.TokenID:
	case after.Released():
		patch["spec"] = map[string]any{"holderIdentity": nil}
	default: // the creationTimestamp is that of the first claim in this Lease
		patch["spec"] = map[string]any{"holderIdentity": after.TokenID, "acquireTime": metav1.NowMicro()}
	}
	return json.Marshal(patch)
}

// changed returns the values that differ from before; nil for an empty one, which removes its key.
func changed(before, after map[string]string) map[string]any {
	values := map[string]any{}
	for key, value := range after {
		switch was, found := before[key]; {
		case found && was == value:
		case value == "":
			values[key] = nil
		default:
			values[key] = value
		}
	}
	return values
}

// A claimRule is a [tokens.Rule] in rulesAnnotation.
type claimRule struct {
	Name    string `json:"name"`
	Seconds int64  `json:"certificateSeconds,omitempty"`
	Rejoin  string `json:"rejoin,omitempty"`
}

// jsonText returns a value as JSON.
func jsonText(value any) string {
	text, err := json.Marshal(value)
	if err != nil { // cannot happen: Check has checked the times
		return ""
	}
	return string(text)
}

// readJSON reads an annotation. It returns an error for a malformed value.
func readJSON[T any](annotations map[string]string, name string, into *T) error {
	value, given := annotations[name]
	if !given {
		return nil
	}
	decoder := json.NewDecoder(strings.NewReader(value))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil || decoder.More() {
		*into = *new(T)
		return fmt.Errorf("%s: %.100q given, want JSON as kubejoin writes it", name, value)
	}
	return nil
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
			return p, fmt.Errorf("%s: %.100q given, want a duration such as 8h", pastDurationAnnotation, value)
		}
	}
	p.Rejoin = annotations[pastRejoinAnnotation]
	var l tokens.Limits
	for _, a := range nodeAnnotations {
		if value, given := annotations[pastNodePrefix+a.name]; given {
			err = errors.Join(err, a.read(&l, value))
		}
	}
	p.Node = l.Node
	return p, err
}
