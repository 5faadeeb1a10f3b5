package approval

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/tokens"
)

// A ServingScope is what an operator lets kubelets serve as. The zero ServingScope is none: no
// serving certificate is approved.
type ServingScope struct {
	// CIDRs hold every address that a kubelet may have, as [ParseServingCIDR] gives them.
	CIDRs []netip.Prefix
	// DNSSuffixes are the domains below which a kubelet may have names, as
	// [ParseServingSuffix] gives them. The name of its Node it may have anyway.
	DNSSuffixes []string
	// ControlPlane are names and patterns, as [tokens.MatchNodeName] has them, of nodes that
	// may have the API server's own addresses and names: on such a machine both answer at the
	// same ones. It must be names that only the operator gives out.
	ControlPlane []string
}

// IsZero reports whether no address and no name is in the scope.
func (s ServingScope) IsZero() bool { return len(s.CIDRs) == 0 && len(s.DNSSuffixes) == 0 }

// Check says what is wrong with the scope, or nil.
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
	return errors.Join(errs...)
}

// ParseServingCIDR reads one of [ServingScope.CIDRs], such as 10.0.0.0/16 or 2001:db8::/48. A
// single address is its own range with /32 or /128.
func ParseServingCIDR(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("range of addresses %.300q, want one such as 10.0.0.0/16 or 2001:db8::/48", text)
	}
	if err := checkServingCIDR(p); err != nil {
		return netip.Prefix{}, err
	}
	return p, nil
}

func checkServingCIDR(p netip.Prefix) error {
	switch {
	case !p.IsValid():
		return errors.New("range of addresses that is none, want one such as 10.0.0.0/16 or 2001:db8::/48")
	case p.Addr().Is4In6():
		return fmt.Errorf("range of addresses %s is of IPv4 addresses written as IPv6, want it as IPv4", p)
	case p != p.Masked():
		return fmt.Errorf("range of addresses %s has bits after its length, want %s, or %s/%d for that address alone", p, p.Masked(), p.Addr(), p.Addr().BitLen())
	case p.Bits() == 0:
		return fmt.Errorf("range of addresses %s is all of them, and what a Node says of itself is not enough: want those of the machines", p)
	}
	for _, f := range forbiddenPrefixes {
		if f.prefix.Bits() <= p.Bits() && f.prefix.Contains(p.Addr()) {
			return fmt.Errorf("range of addresses %s is of %s addresses, which no kubelet may have", p, f.kind)
		}
	}
	return nil
}

// ParseServingSuffix reads one of [ServingScope.DNSSuffixes]: example.com, with or without a dot
// before it, is every name below it and not itself. It gives it without the dot.
func ParseServingSuffix(text string) (string, error) {
	suffix := strings.TrimPrefix(text, ".")
	if suffix == "" {
		return "", fmt.Errorf("DNS suffix %q is every name, want a domain such as node.example.com", text)
	}
	if err := checkDNSName(suffix); err != nil {
		return "", fmt.Errorf("DNS suffix: %w", err)
	}
	if suffix != strings.ToLower(suffix) {
		return "", fmt.Errorf("DNS suffix %q has upper case letters, want %q", text, strings.ToLower(suffix))
	}
	if kind := forbiddenName("x." + suffix); kind != "" {
		return "", fmt.Errorf("DNS suffix %q is of %s, which no kubelet may have", text, kind)
	}
	return suffix, nil
}

// cidr is the range that an address is in.
func (s ServingScope) cidr(a netip.Addr) (netip.Prefix, bool) {
	i := slices.IndexFunc(s.CIDRs, func(p netip.Prefix) bool { return p.Contains(a) && checkServingCIDR(p) == nil })
	if i < 0 {
		return netip.Prefix{}, false
	}
	return s.CIDRs[i], true
}

// suffix is the longest suffix that a name in lower case is below.
func (s ServingScope) suffix(name string) (string, bool) {
	longest := ""
	for _, text := range s.DNSSuffixes {
		suffix, err := ParseServingSuffix(text)
		if err == nil && len(suffix) > len(longest) && strings.HasSuffix(name, "."+suffix) {
			longest = suffix
		}
	}
	return longest, longest != ""
}

// labels are what is left of a name in lower case before each suffix that it is below.
func (s ServingScope) labels(name string) []string {
	var labels []string
	for _, text := range s.DNSSuffixes {
		if suffix, err := ParseServingSuffix(text); err == nil {
			if label, below := strings.CutSuffix(name, "."+suffix); below {
				labels = append(labels, label)
			}
		}
	}
	return labels
}

func (s ServingScope) controlPlane(node string) bool {
	return slices.ContainsFunc(s.ControlPlane, func(pattern string) bool { return tokens.MatchNodeName(pattern, node) })
}
