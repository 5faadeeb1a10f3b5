package approval

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/tokens"
)

// A ServingScope limits the addresses and names in serving certificates of kubelets. With the zero ServingScope no
// serving certificate is approved.
type ServingScope struct {
	// CIDRs contain every address that a kubelet may have, as [ParseServingCIDR] returns them. Link-local IPv6 addresses
	// need a range within fe80::/10.
	CIDRs []netip.Prefix
	// DNSSuffixes are the domains below which a kubelet may have names, as [ParseServingSuffix] reads them. A kubelet
	// may always have the name of its Node.
	DNSSuffixes []string
	// ControlPlane lists names and patterns, as in [tokens.MatchNodeName], of nodes that may have the addresses and
	// names of the API server. On such a machine, the kubelet and the API server share these addresses and names.
	// Make sure that only the operator can assign these node names.
	ControlPlane []string
	// LeaveAlone lists reasons of [DenialReasons]. If KubeletServing would deny a request for a listed reason, it
	// returns None instead, so that a person or another approver can decide.
	LeaveAlone []string
}

// DenialReasons returns the reasons for which [KubeletServing] denies a request.
func DenialReasons() []string {
	return []string{ReasonNameForbidden, ReasonNameReserved, ReasonTooManyNames}
}

// IsZero reports whether the scope contains no address and no name.
func (s ServingScope) IsZero() bool { return len(s.CIDRs) == 0 && len(s.DNSSuffixes) == 0 }

// Check returns an error if the scope is invalid.
func (s ServingScope) Check() error {
	var errs []error
	for _, p := range s.CIDRs {
		if err := checkServingCIDR(p); err != nil {
			errs = append(errs, err)
		}
	}
	for _, suffix := range s.DNSSuffixes {
		if _, err := ParseServingSuffix(suffix); err != nil {
			errs = append(errs, err)
		}
	}
	for _, pattern := range s.ControlPlane {
		if err := tokens.CheckNodePattern(pattern); err != nil {
			errs = append(errs, err)
		}
	}
	for _, reason := range s.LeaveAlone {
		if !slices.Contains(DenialReasons(), reason) {
			errs = append(errs, fmt.Errorf("invalid reason %.100q: want one of %s", reason, strings.Join(DenialReasons(), ", ")))
		}
	}
	return errors.Join(errs...)
}

// ParseServingCIDR parses one of [ServingScope.CIDRs], for example 10.0.0.0/16 or 2001:db8::/48. A single address has
// /32 or /128.
func ParseServingCIDR(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("invalid address range %.300q: want a CIDR such as 10.0.0.0/16 or 2001:db8::/48", text)
	}
	if err := checkServingCIDR(p); err != nil {
		return netip.Prefix{}, err
	}
	return p, nil
}

func checkServingCIDR(p netip.Prefix) error {
	switch {
	case !p.IsValid():
		return errors.New("invalid address range: want a CIDR such as 10.0.0.0/16 or 2001:db8::/48")
	case p.Addr().Is4In6():
		return fmt.Errorf("invalid address range %s: want IPv4 addresses in IPv4 notation", p)
	case p != p.Masked():
		return fmt.Errorf("invalid address range %s: want %s, or %s/%d for the single address", p, p.Masked(), p.Addr(), p.Addr().BitLen())
	case p.Bits() == 0:
		return fmt.Errorf("invalid address range %s: it contains every address, and a kubelet can report any; want the ranges of your machines", p)
	}
	for _, f := range forbiddenPrefixes {
		if f.prefix.Bits() <= p.Bits() && f.prefix.Contains(p.Addr()) {
			return fmt.Errorf("invalid address range %s: no kubelet may have %s addresses", p, f.kind)
		}
	}
	return nil
}

// ParseServingSuffix parses one of [ServingScope.DNSSuffixes] and returns it without a leading dot. The suffix
// example.com allows every name below it, but not example.com itself.
func ParseServingSuffix(text string) (string, error) {
	suffix := strings.TrimPrefix(text, ".")
	if suffix == "" {
		return "", fmt.Errorf("invalid DNS suffix %q: it matches every name; want a domain such as node.example.com", text)
	}
	if err := checkDNSName(suffix); err != nil {
		return "", fmt.Errorf("DNS suffix: %w", err)
	}
	if suffix != strings.ToLower(suffix) {
		return "", fmt.Errorf("invalid DNS suffix %q: it has upper-case letters, want %q", text, strings.ToLower(suffix))
	}
	if kind := forbiddenName("x." + suffix); kind != "" {
		return "", fmt.Errorf("invalid DNS suffix %q: no kubelet may have names of %s", text, kind)
	}
	return suffix, nil
}

// linkLocal are the link-local IPv6 addresses (RFC 4291, section 2.5.6). Machines on two links may have the same
// link-local address.
var linkLocal = netip.MustParsePrefix("fe80::/10")

// cidr returns the first range that allows an address. A range that is wider than linkLocal allows no link-local
// address: an operator who gives such a range means addresses that belong to one machine.
func (s ServingScope) cidr(a netip.Addr) (netip.Prefix, bool) {
	i := slices.IndexFunc(s.CIDRs, func(p netip.Prefix) bool {
		return p.Contains(a) && (p.Bits() >= linkLocal.Bits() || !linkLocal.Contains(a))
	})
	if i < 0 {
		return netip.Prefix{}, false
	}
	return s.CIDRs[i], true
}

// labels returns, for each suffix that a name is below, the part before the suffix. The name must be in lower case.
func (s ServingScope) labels(name string) []string {
	var labels []string
	for _, suffix := range s.DNSSuffixes {
		if label, below := strings.CutSuffix(name, "."+suffix); below {
			labels = append(labels, label)
		}
	}
	return labels
}

func (s ServingScope) controlPlane(node string) bool {
	return slices.ContainsFunc(s.ControlPlane, func(pattern string) bool { return tokens.MatchNodeName(pattern, node) })
}
