package approval

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/internal/dnsname"
)

// forbiddenPrefixes are addresses that do not belong to one machine, or that embed an IPv4 address. Narrower ranges
// come before wider ones. They do not include link-local IPv6 addresses: some clouds report such an address for each
// machine, and an operator may allow them with a separate range.
var forbiddenPrefixes = []struct {
	kind   string
	prefix netip.Prefix
}{
	{"unspecified", netip.MustParsePrefix("0.0.0.0/8")}, // RFC 1122, section 3.2.1.3: this network
	{"loopback", netip.MustParsePrefix("127.0.0.0/8")},
	{"link-local", netip.MustParsePrefix("169.254.0.0/16")},
	{"multicast", netip.MustParsePrefix("224.0.0.0/4")},
	{"broadcast", netip.MustParsePrefix("255.255.255.255/32")},
	{"unspecified", netip.MustParsePrefix("::/128")},
	{"loopback", netip.MustParsePrefix("::1/128")},
	{"IPv4-mapped IPv6", netip.MustParsePrefix("::ffff:0:0/96")},       // RFC 4291, section 2.5.5.2
	{"IPv4-compatible IPv6", netip.MustParsePrefix("::/96")},           // RFC 4291, section 2.5.5.1
	{"IPv4-translated IPv6", netip.MustParsePrefix("::ffff:0:0:0/96")}, // RFC 2765
	{"NAT64", netip.MustParsePrefix("64:ff9b::/96")},                   // RFC 6052
	{"NAT64", netip.MustParsePrefix("64:ff9b:1::/48")},                 // RFC 8215
	{"Teredo", netip.MustParsePrefix("2001::/32")},                     // RFC 4380
	{"6to4", netip.MustParsePrefix("2002::/16")},                       // RFC 3056
	{"multicast", netip.MustParsePrefix("ff00::/8")},
}

// forbiddenAddress returns the kind of an address that no kubelet may have; empty if a kubelet may have it.
func forbiddenAddress(a netip.Addr) string {
	for _, f := range forbiddenPrefixes {
		if f.prefix.Contains(a) {
			return f.kind
		}
	}
	// RFC 5214, section 6.1: ISATAP has an IPv4 address below any prefix.
	if b := a.As16(); a.Is6() && b[8]&^2 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe {
		return "ISATAP"
	}
	return ""
}

// forbiddenName returns the owner of a name that no kubelet may have; empty if a kubelet may have the name. The name
// must be in lower case.
func forbiddenName(name string) string {
	labels := strings.Split(name, ".")
	last := labels[len(labels)-1]
	switch {
	case last == "localhost", last == "localdomain", name == "localhost6":
		return "the local machine"
	case labels[0] == "kubernetes":
		return "the API server"
	case strings.HasSuffix("."+name, ".cluster.local"), slices.Contains(labels[1:], "svc"): // NAME.NAMESPACE.svc of any cluster domain
		return "Services"
	}
	return ""
}

// checkDNSName returns an error if text is not the name of a host (RFC 1123, section 2.1). It ignores case.
func checkDNSName(text string) error {
	switch {
	case len(text) > dnsname.MaxLength:
		return fmt.Errorf("DNS name has %d characters, want at most %d", len(text), dnsname.MaxLength)
	case !dnsname.IsHost(text):
		return fmt.Errorf("invalid DNS name %q: want labels of 1 to 63 letters, digits and hyphens, separated by dots; a label begins and ends with a letter or digit", text)
	case dnsname.EndsInNumber(text):
		return fmt.Errorf("invalid DNS name %q: the last label must not be a number, because the name looks like an IP address", text)
	}
	return nil
}
