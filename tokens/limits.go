package tokens

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/dnsname"
	"github.com/kubejoin/kubejoin/internal/safetext"
)

const (
	// MaxNodes is the maximum node limit of a token.
	MaxNodes = 1000
	// MaxNodeNamesBytes is the maximum length, in bytes, of all names and patterns of a stored token,
	// joined with commas. [Record.CheckNew] allows fewer for a new token.
	MaxNodeNamesBytes = 64 << 10
	// MaxNewNodeNames is the maximum number of names and patterns of a new token.
	MaxNewNodeNames = 256
	// MaxNewNodeNamesBytes is like MaxNodeNamesBytes, but for a new token.
	MaxNewNodeNamesBytes = 8 << 10
	// maxNamesBytes is the maximum length, in bytes, of the names and patterns of a token and of the names that it can
	// count, each with two more bytes. A Secret has at most 256 KiB of annotations: the rest is for other limits and
	// other programs.
	maxNamesBytes = 252 << 10
	// MinCertificateDuration is the minimum [Limits.CertificateDuration]. It is also the minimum of
	// spec.expirationSeconds in a CertificateSigningRequest.
	MinCertificateDuration = 10 * time.Minute
	// MaxCertificateDuration is the maximum [Limits.CertificateDuration]. In practice the lifetime that
	// the signer allows is shorter.
	MaxCertificateDuration = 100 * 365 * 24 * time.Hour
)

// Values of [Limits.Rejoin].
const (
	RejoinAllow = "allow"
	RejoinDeny  = "deny"
)

// RoleControlPlane is the [Limits.Role] of a token that can take reserved node names.
const RoleControlPlane = "control-plane"

// Limits restricts the use of a token. The signer enforces limits when it issues a certificate,
// for every approver. The zero Limits sets no limit: until the token expires, any machine
// can join under any free name. A token with limits leaves a [Claim] for each node name that it takes.
//
// The fields are the limits that the token has itself. What holds is the strictest of them and of Rules: decide by the
// methods, for example [Limits.NodeLimit], and write the fields.
type Limits struct {
	// MaxNodes is how many nodes can join with the token; zero means unlimited.
	MaxNodes int
	// NodeNames are the node names and patterns that the token allows. In a pattern, each * matches any
	// characters, including none. Empty allows every name.
	NodeNames []string
	// CertificateDuration limits the lifetime of client certificates issued with the token, and of their
	// renewals. If the signer's lifetime is shorter, that applies. Zero sets no limit.
	CertificateDuration time.Duration
	// Replaces is an existing Node whose name the token can take. The token then allows no other name.
	Replaces NodeRef
	// Role is [RoleControlPlane], or empty for workers.
	Role string
	// Rejoin is [RejoinDeny] if the nodes of the token cannot rejoin after their certificates have expired.
	// [RejoinAllow] is the same as empty: the configuration of kubejoin decides.
	Rejoin string
	// Node is what a Node gets from the token. It restricts nothing, but is kept like a limit: on the claim, and in its Past.
	Node NodeProperties

	// Rules are the rules that apply to the token. No store keeps them with a token: secretstore adds those of its
	// configuration to each token that it reads. In a claim, they are what [Limits.Kept] left.
	Rules []Rule

	// Problem is why the stored limits are malformed, or nil. No machine can join with such a token.
	Problem error
}

// A NodeRef identifies one Node object. A Node that is created again under the same name has another UID.
type NodeRef struct{ Name, UID string }

// IsZero reports whether there are no limits. [RejoinAllow] limits nothing.
func (l Limits) IsZero() bool {
	return l.MaxNodes == 0 && len(l.NodeNames) == 0 && l.CertificateDuration == 0 && l.Replaces == NodeRef{} && l.Role == "" && (l.Rejoin == "" || l.Rejoin == RejoinAllow) &&
		l.Node == NodeProperties{} && l.Problem == nil && !slices.ContainsFunc(l.Rules, func(r Rule) bool { return !r.Limits.IsZero() })
}

// Equal reports whether l and m set the same limits and both or neither have a Problem.
func (l Limits) Equal(m Limits) bool {
	return l.MaxNodes == m.MaxNodes && slices.Equal(l.NodeNames, m.NodeNames) && l.CertificateDuration == m.CertificateDuration &&
		l.Replaces == m.Replaces && l.Role == m.Role && l.Rejoin == m.Rejoin && l.Node == m.Node && (l.Problem == nil) == (m.Problem == nil) && slices.EqualFunc(l.Rules, m.Rules, Rule.equal)
}

// NodeLimit returns how many nodes can join; zero means unlimited. For a token that replaces a Node, it is 1.
func (l Limits) NodeLimit() int {
	if l.Replaces != (NodeRef{}) {
		return 1
	}
	return l.Strictest().MaxNodes
}

// AllowsName reports whether the limits allow a node name: those of the token, and of each rule.
func (l Limits) AllowsName(name string) bool {
	instead, _ := l.NamesInstead(name)
	return instead == nil
}

// Check returns an error if a limit is invalid. It joins all errors.
func (l Limits) Check() error {
	var errs []error
	if l.Problem != nil {
		errs = append(errs, l.Problem)
	}
	if l.MaxNodes < 0 || l.MaxNodes > MaxNodes {
		errs = append(errs, fieldErrorf("max-nodes", "%d given, want 1 to %d", l.MaxNodes, MaxNodes))
	}
	seen, bad := make(map[string]bool, len(l.NodeNames)), len(errs)
	for i, name := range l.NodeNames {
		if len(errs)-bad == 10 { // nobody reads thousands of errors
			errs = append(errs, fieldErrorf("node-names", "%d more are not checked", len(l.NodeNames)-i))
			break
		}
		if err := errors.Join(CheckNodePattern(name), checkNotOwn(name)); err != nil {
			errs = append(errs, &FieldError{"node-names", err})
		} else if seen[name] {
			errs = append(errs, fieldErrorf("node-names", "%q is given twice", name))
		}
		seen[name] = true
	}
	if n := len(strings.Join(l.NodeNames, ",")); n > MaxNodeNamesBytes {
		errs = append(errs, fieldErrorf("node-names", "%d bytes given, %d allowed", n, MaxNodeNamesBytes))
	}
	slots := l.NodeLimit()
	if len(l.NodeNames) > 0 && !strings.Contains(strings.Join(l.NodeNames, ","), "*") {
		slots = min(slots, len(l.NodeNames)) // without patterns, no other names count
	}
	if n, most := len(strings.Join(l.NodeNames, ","))+len(l.Node.Labels)+len(l.Node.Taints), maxNamesBytes-slots*(dnsname.MaxLength+2); n > most && slots <= MaxNodes {
		errs = append(errs, fieldErrorf("node-names", "%d bytes given with labels and taints, %d allowed with patterns and max-nodes %d: give shorter patterns or fewer nodes", n, most, slots))
	}
	switch d := l.CertificateDuration; {
	case d == 0:
	case d < MinCertificateDuration, d > MaxCertificateDuration, d%time.Second != 0:
		errs = append(errs, fieldErrorf("certificate-duration", "%s given, want whole seconds from %s to %s", safetext.Duration(d), safetext.Duration(MinCertificateDuration), safetext.Duration(MaxCertificateDuration)))
	}
	if l.Role != "" && l.Role != RoleControlPlane {
		errs = append(errs, fieldErrorf("role", "%q given, want %s; leave it out for workers", l.Role, RoleControlPlane))
	}
	if l.Rejoin != "" && l.Rejoin != RejoinAllow && l.Rejoin != RejoinDeny {
		errs = append(errs, fieldErrorf("rejoin", "%q given, want %s or %s", l.Rejoin, RejoinAllow, RejoinDeny))
	}
	if l.Replaces != (NodeRef{}) {
		switch {
		case CheckNodeName(l.Replaces.Name) != nil || l.Replaces.UID == "" || strings.ContainsAny(l.Replaces.UID, "/, \n"):
			errs = append(errs, fieldErrorf("replaces-node", "%q given, want NAME/UID of a Node", l.Replaces.Name+"/"+l.Replaces.UID))
		case IsOwnName(l.Replaces.Name):
			errs = append(errs, &FieldError{"replaces-node", checkNotOwn(l.Replaces.Name)})
		case l.MaxNodes > 1:
			errs = append(errs, fieldErrorf("max-nodes", "%d given, want at most 1 with replaces-node", l.MaxNodes))
		case !(Limits{NodeNames: l.NodeNames}).AllowsName(l.Replaces.Name): // a rule refuses the machine, and is named then
			errs = append(errs, fieldErrorf("node-names", "%s given, want names that allow %s, the node of replaces-node", safetext.List(l.NodeNames, "and"), l.Replaces.Name))
		}
	}
	for _, r := range l.Rules {
		for _, e := range FieldErrors(r.Limits.Check()) {
			errs = append(errs, fieldErrorf(e.Field, "rule %s: %w", r.Name, e.Err))
		}
	}
	return errors.Join(append(errs, l.Node.check(l.Role))...)
}

// MatchNodeName reports whether name matches pattern. Each * in pattern matches any characters,
// including none.
func MatchNodeName(pattern, name string) bool {
	first, rest, found := strings.Cut(pattern, "*")
	if !found {
		return pattern == name
	}
	name, found = strings.CutPrefix(name, first)
	if !found {
		return false
	}
	for {
		part, more, found := strings.Cut(rest, "*")
		if !found {
			return strings.HasSuffix(name, part)
		}
		at := strings.Index(name, part)
		if at < 0 {
			return false
		}
		name, rest = name[at+len(part):], more
	}
}

// CheckNodeName returns an error if name is not a valid Node name in Kubernetes, which is an RFC 1123
// subdomain.
func CheckNodeName(name string) error {
	if lower := strings.ToLower(name); lower != name && dnsname.IsSubdomain(lower) {
		return fmt.Errorf("node name %.300q has upper-case letters, want %q", Redact(name), Redact(lower))
	}
	if !dnsname.IsSubdomain(name) {
		return fmt.Errorf("node name %.300q, want parts of [a-z0-9-] separated by dots, each starting and ending with a letter or digit, and at most %d characters", Redact(name), dnsname.MaxLength)
	}
	return nil
}

// CheckNodePattern returns an error if pattern is not valid in [Limits.NodeNames].
func CheckNodePattern(pattern string) error {
	if !strings.Contains(pattern, "*") {
		return CheckNodeName(pattern)
	}
	if len(pattern) > dnsname.MaxLength || strings.Trim(pattern, alphabet+"-.*") != "" {
		return fmt.Errorf("node name pattern %.300q, want at most %d characters of [a-z0-9.-] and *", Redact(pattern), dnsname.MaxLength)
	}
	return nil
}
