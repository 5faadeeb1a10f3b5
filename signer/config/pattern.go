package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/kubejoin/kubejoin/internal/dnsname"
	"github.com/kubejoin/kubejoin/tokens"
)

// checkText returns nil, or why a text is not a valid pattern of a common name.
func checkText(pattern string) error {
	if strings.ContainsFunc(pattern, func(c rune) bool { return !unicode.IsPrint(c) }) {
		return fmt.Errorf("%s given, want only printable characters", quoted(pattern))
	}
	return nil
}

// matchText matches a common name or an organization. A * matches zero or more characters. Names with the
// reserved Kubernetes prefix match only patterns with the same prefix.
func matchText(pattern, value string) bool {
	if strings.HasPrefix(value, tokens.SystemPrefix) && !strings.HasPrefix(pattern, tokens.SystemPrefix) {
		return false
	}
	return tokens.MatchNodeName(pattern, value)
}

// matchPart matches the text between two dots or slashes. A * matches one or more characters.
func matchPart(pattern, value string) bool {
	return pattern == value || len(value) > len(pattern)-strings.Count(pattern, "*") && tokens.MatchNodeName(pattern, value)
}

func matchParts(pattern, value, separator string) bool {
	return slices.EqualFunc(strings.Split(pattern, separator), strings.Split(value, separator), matchPart)
}

// checkDNSName returns nil, or why a name is not a DNS name in lower case. The error quotes the text given.
func checkDNSName(name, given string) error {
	if !dnsname.IsHost(name) || name != strings.ToLower(name) || dnsname.EndsInNumber(name) {
		return fmt.Errorf("%s given, want a DNS name of at most 253 characters: labels of [a-z0-9-] separated by dots, other letters in xn-- form, the last one not a number", quoted(given))
	}
	return nil
}

// anyDNS is the pattern that matches each DNS name that kubeadm puts into a certificate: names of Nodes, and names and
// wildcards in certSANs.
const anyDNS = "**"

func checkDNS(pattern string) error {
	if pattern == anyDNS {
		return nil
	}
	return checkDNSPattern(pattern)
}

func checkDNSPattern(pattern string) error {
	if strings.Contains(pattern, "**") {
		return fmt.Errorf("%s given, want * instead of **: a * matches characters of one label", quoted(pattern))
	}
	return checkDNSName(strings.ReplaceAll(pattern, "*", "a"), pattern)
}

// matchAnyDNS reports whether a name matches anyDNS. An IPv4 address is no DNS name.
func matchAnyDNS(name string) bool {
	name = strings.TrimPrefix(strings.ToLower(name), "*.")
	_, err := netip.ParseAddr(name)
	return err != nil && dnsname.IsSubdomain(name)
}

// matchDNS matches a DNS name, ignoring case. No pattern matches a name that contains a *.
func matchDNS(pattern, name string) bool {
	return dnsname.IsHost(name) && !dnsname.EndsInNumber(name) && matchParts(pattern, strings.ToLower(name), ".")
}

// checkWildcard returns nil, or why a name does not have the form *.example.com.
func checkWildcard(name string) error {
	domain, found := strings.CutPrefix(name, "*.")
	if !found || !strings.Contains(domain, ".") {
		return fmt.Errorf("%s given, want a name such as *.example.com", quoted(name))
	}
	return checkDNSName(domain, domain)
}

// parsePrefix parses an address or an address range.
func parsePrefix(text string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	if addr, addrErr := netip.ParseAddr(text); addrErr == nil && addr.Zone() == "" {
		prefix, err = netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	switch {
	case err != nil:
		return netip.Prefix{}, fmt.Errorf("%s given, want an address or a range such as 10.0.0.0/8", quoted(text))
	case prefix.Addr().Is4In6():
		return netip.Prefix{}, fmt.Errorf("%s given, want IPv4 addresses in IPv4 notation", quoted(text))
	case prefix != prefix.Masked():
		return netip.Prefix{}, fmt.Errorf("%s given, want %s, or %s for the single address", quoted(text), prefix.Masked(), prefix.Addr())
	}
	return prefix, nil
}

// matchIP matches an address. An IPv4 address in IPv6 form matches no range.
func matchIP(prefix netip.Prefix, ip net.IP) bool {
	addr, _ := netip.AddrFromSlice(ip) // the zero Addr is in no range
	return prefix.Contains(addr)
}

func checkEmailPattern(pattern string) error {
	local, domain, found := strings.Cut(pattern, "@")
	if !found || local == "" || strings.Contains(domain, "@") || strings.ContainsFunc(local, func(c rune) bool { return c <= ' ' || c >= 0x7f || c == '"' }) {
		return fmt.Errorf("%s given, want an address such as *@example.com", quoted(pattern))
	}
	return checkDNSPattern(domain)
}

// matchEmail matches an address, ignoring the case of the domain. No pattern matches a quoted local part.
func matchEmail(pattern, address string) bool {
	wantLocal, wantDomain, _ := strings.Cut(pattern, "@")
	local, domain, _ := strings.Cut(address, "@") // matchDNS refuses an empty domain
	return !strings.Contains(local, `"`) && matchPart(wantLocal, local) && matchDNS(wantDomain, domain)
}

func checkURIPattern(pattern string) error {
	parts := uriPattern.FindStringSubmatch(pattern)
	if parts == nil || dots.MatchString(parts[2]) {
		return fmt.Errorf("%s given, want a URI such as spiffe://example.com/ns/*/sa/*, without user, port, query or %%", quoted(pattern))
	}
	return checkDNSPattern(parts[1])
}

// uriPattern has the host, and the path without the slash before it.
var uriPattern = regexp.MustCompile(`^[a-z0-9+.-]+://([^/]*)/?([!$&-;=@-Z\[\]_a-z~]*)$`)

// dots finds a ".", ".." or empty segment in a path. The path begins after the first slash, and may end with a slash.
var dots = regexp.MustCompile(`^/|//|(^|/)\.{1,2}(/|$)`)

// matchURI matches a URI that has only scheme, host and path.
func matchURI(pattern string, u *url.URL) bool {
	scheme, rest, _ := strings.Cut(u.String(), "://")
	wantScheme, wantRest, _ := strings.Cut(pattern, "://")
	host, path, slash := strings.Cut(rest, "/")
	wantHost, wantPath, wantSlash := strings.Cut(wantRest, "/")
	return scheme == wantScheme && slash == wantSlash && !strings.ContainsAny(path, "?#%") && !dots.MatchString(path) &&
		matchDNS(wantHost, host) && matchParts(wantPath, path, "/")
}
