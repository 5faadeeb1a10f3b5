package tokens

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/dnsname"
)

const (
	// MaxNodes is the most nodes that a token can be limited to.
	MaxNodes = 1000
	// MaxNodeNamesBytes is the most bytes of all names and patterns of a stored token, with one between
	// each two. [Record.CheckNew] allows a new token fewer.
	MaxNodeNamesBytes = 64 << 10
	// MaxNewNodeNames is the most names and patterns of a new token.
	MaxNewNodeNames = 256
	// MaxNewNodeNamesBytes is what MaxNodeNamesBytes is for a new token.
	MaxNewNodeNamesBytes = 8 << 10
	// MinCertificateDuration is the shortest lifetime of certificates that a token can ask
	// for, as for a CertificateSigningRequest.
	MinCertificateDuration = 10 * time.Minute
	// MaxCertificateDuration is the longest. The signer's own is shorter in practice.
	MaxCertificateDuration = 100 * 365 * 24 * time.Hour
)

// RoleControlPlane is the [Limits.Role] of a token that may take reserved node names.
const RoleControlPlane = "control-plane"

// Limits is what a token is good for. They bind when a certificate is issued, whoever approved
// the request. The zero Limits is none: any machine, under any free name, until the token
// expires. A token with limits leaves a [Claim] for each node name that it takes.
type Limits struct {
	// MaxNodes is how many nodes may join with the token; zero is any number.
	MaxNodes int
	// NodeNames are the names that it may be used for. A * in one stands for any characters,
	// none included. Empty is any name.
	NodeNames []string
	// CertificateDuration is the lifetime of the client certificates that are issued on it, and
	// of their renewals, if the signer's is not shorter. Zero is the signer's.
	CertificateDuration time.Duration
	// Replaces lets the token take the name of one Node that exists, and no other name.
	Replaces NodeRef
	// Role is empty, for workers, or [RoleControlPlane].
	Role string

	// Problem is what is wrong with limits that were stored by others, or nil. Such a token lets
	// nobody join.
	Problem error
}

// A NodeRef is one Node object: another one of the same name has another UID.
type NodeRef struct{ Name, UID string }

// IsZero reports whether there are no limits.
func (l Limits) IsZero() bool {
	return l.MaxNodes == 0 && len(l.NodeNames) == 0 && l.CertificateDuration == 0 && l.Replaces == NodeRef{} && l.Role == "" && l.Problem == nil
}

// Equal reports whether both say the same.
func (l Limits) Equal(m Limits) bool {
	return l.MaxNodes == m.MaxNodes && slices.Equal(l.NodeNames, m.NodeNames) && l.CertificateDuration == m.CertificateDuration &&
		l.Replaces == m.Replaces && l.Role == m.Role && (l.Problem == nil) == (m.Problem == nil)
}

// NodeLimit is how many nodes may join; zero is any number. A token that replaces a Node is for that
// one alone.
func (l Limits) NodeLimit() int {
	if l.Replaces != (NodeRef{}) {
		return 1
	}
	return l.MaxNodes
}

// AllowsName reports whether a node of that name may join.
func (l Limits) AllowsName(name string) bool {
	if l.Replaces != (NodeRef{}) && name != l.Replaces.Name {
		return false
	}
	return len(l.NodeNames) == 0 || slices.ContainsFunc(l.NodeNames, func(pattern string) bool { return MatchNodeName(pattern, name) })
}

// Check says what is wrong with the limits, or nil.
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
		if len(errs)-bad == 10 { // nobody reads thousands of them
			errs = append(errs, fieldErrorf("node-names", "%d more are not looked at", len(l.NodeNames)-i))
			break
		}
		if err := CheckNodePattern(name); err != nil {
			errs = append(errs, &FieldError{"node-names", err})
		} else if seen[name] {
			errs = append(errs, fieldErrorf("node-names", "%q is given twice", name))
		}
		seen[name] = true
	}
	if n := len(strings.Join(l.NodeNames, ",")); n > MaxNodeNamesBytes {
		errs = append(errs, fieldErrorf("node-names", "%d bytes given, %d allowed", n, MaxNodeNamesBytes))
	}
	switch d := l.CertificateDuration; {
	case d == 0:
	case d < MinCertificateDuration, d > MaxCertificateDuration, d%time.Second != 0:
		errs = append(errs, fieldErrorf("certificate-duration", "%s given, want whole seconds from %s to %s", d, MinCertificateDuration, MaxCertificateDuration))
	}
	if l.Role != "" && l.Role != RoleControlPlane {
		errs = append(errs, fieldErrorf("role", "%q given, want %s or none", l.Role, RoleControlPlane))
	}
	if l.Replaces != (NodeRef{}) {
		switch {
		case CheckNodeName(l.Replaces.Name) != nil || l.Replaces.UID == "" || strings.ContainsAny(l.Replaces.UID, "/, \n"):
			errs = append(errs, fieldErrorf("replaces-node", "%q given, want NAME/UID of a Node", l.Replaces.Name+"/"+l.Replaces.UID))
		case l.MaxNodes > 1:
			errs = append(errs, fieldErrorf("max-nodes", "%d given, and replaces-node is for one node", l.MaxNodes))
		case !l.AllowsName(l.Replaces.Name):
			errs = append(errs, fieldErrorf("node-names", "%q do not allow %s, which the token is to replace", l.NodeNames, l.Replaces.Name))
		}
	}
	return errors.Join(errs...)
}

// MatchNodeName reports whether a name is the pattern's, in which each * stands for any
// characters, none included.
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
	switch {
	case len(name) > dnsname.MaxLength:
		return fmt.Errorf("node name of %d characters, want at most %d", len(name), dnsname.MaxLength)
	case !dnsname.IsSubdomain(name):
		return fmt.Errorf("node name %q, want parts of [a-z0-9-] separated by dots, each starting and ending with a letter or digit", Redact(name))
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
