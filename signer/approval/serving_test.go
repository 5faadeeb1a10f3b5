package approval_test

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/approval"
	certificates "k8s.io/api/certificates/v1"
)

// world holds the facts that the rule for serving certificates reads.
type world struct {
	approval.Facts // the rule uses no other facts

	nodes     map[string][]string // reported addresses by node
	final     bool                // NoNodeObject of all Nodes
	services  []netip.Prefix
	apiServer []string
	err       map[string]error // by method
	asked     []string
}

func (w *world) Node(_ context.Context, _ approval.Request, name string) (approval.Node, error) {
	w.asked = append(w.asked, "Node")
	addresses, ok := w.nodes[name]
	if err := w.err["Node"]; err != nil {
		return approval.Node{}, err
	}
	if !ok {
		return approval.Node{}, fmt.Errorf("node %s: %w", name, approval.ErrNoNode)
	}
	return approval.Node{Name: name, UID: "uid-" + name, Addresses: addresses, NoNodeObject: w.final}, nil
}

func (w *world) Reporters(_ context.Context, name string, addresses []string) (map[string][]string, error) {
	w.asked = append(w.asked, "Reporters")
	reporters := map[string][]string{}
	for _, address := range addresses {
		for node, reports := range w.nodes {
			if node != name && (node == address || slices.Contains(reports, address)) {
				reporters[address] = append(reporters[address], node)
			}
		}
	}
	return reporters, w.err["Reporters"]
}

func (w *world) ClusterAddresses(context.Context) (approval.ClusterAddresses, error) {
	w.asked = append(w.asked, "Reserved")
	return approval.ClusterAddresses{Prefixes: w.services, APIServer: w.apiServer, Source: "a table"}, w.err["Reserved"]
}

// servingWorld has two nodes. worker-1 reports the given addresses.
func servingWorld(reports ...string) *world {
	return &world{
		nodes: map[string][]string{
			"worker-1":  append([]string{"10.0.0.5", "2001:db8::5", "worker-1", "Worker-1.example.com"}, reports...),
			"worker-2":  {"10.0.0.6", "worker-2", "worker-2.example.com"},
			"control-1": {"10.0.0.1", "control-1", "api.example.com"},
		},
		services:  []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("2001:db8:0:1::/112")},
		apiServer: []string{"10.0.0.1", "api.example.com", "2001:DB8::1"},
	}
}

var scope = approval.ServingScope{
	CIDRs:       []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32")},
	DNSSuffixes: []string{".example.com", "xn--bcher-kva.example"}, // with and without a leading dot
}

// servingRequest returns the request of a kubelet for a serving certificate with the given names.
func servingRequest(node string, names ...string) approval.Request {
	user := "system:node:" + node
	c := &x509.CertificateRequest{Subject: pkix.Name{CommonName: user, Organization: []string{"system:nodes"}}}
	for _, name := range names {
		if a, err := netip.ParseAddr(name); err == nil {
			c.IPAddresses = append(c.IPAddresses, net.IP(a.AsSlice())) // the bytes as in a request
		} else {
			c.DNSNames = append(c.DNSNames, name)
		}
	}
	return approval.Request{
		Name: "csr-x", SignerName: certificates.KubeletServingSignerName,
		User: user, Groups: []string{"system:nodes", "system:authenticated"},
		Usages: []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageServerAuth},
		CSR:    c,
	}
}

func TestKubeletServingDecidesOnEvidence(t *testing.T) {
	const (
		forbidden = approval.ReasonNameForbidden
		outside   = approval.ReasonNameOutOfScope
		reserved  = approval.ReasonNameReserved
		other     = approval.ReasonNameOfOther
	)
	long := strings.Repeat("a", 64) + ".example.com"
	type change func(*approval.Request, *approval.ServingScope, *world)
	leave := func(reason string) change {
		return func(_ *approval.Request, s *approval.ServingScope, _ *world) { s.LeaveAlone = []string{reason} }
	}
	ranges := func(texts ...string) change {
		return func(_ *approval.Request, s *approval.ServingScope, _ *world) {
			s.CIDRs = nil
			for _, text := range texts {
				s.CIDRs = append(s.CIDRs, netip.MustParsePrefix(text))
			}
		}
	}
	for _, test := range []struct {
		name    string
		names   []string // reported by the Node, unless hidden
		node    string   // default: worker-1
		hidden  bool     // the Node does not report the names
		change  change
		verdict approval.Verdict
		reason  string
		message string // part of the message
	}{
		{name: "as a kubelet asks", names: []string{"10.0.0.5", "worker-1"}, verdict: approval.Approve, reason: approval.ReasonAutoApproved},
		{name: "two stacks and a domain", names: []string{"10.0.0.5", "2001:db8::5", "worker-1", "worker-1.example.com"}, verdict: approval.Approve, reason: approval.ReasonAutoApproved},
		{name: "names in another case", names: []string{"10.0.0.5", "WORKER-1", "worker-1.EXAMPLE.com"}, hidden: true, verdict: approval.Approve, reason: approval.ReasonAutoApproved},
		{name: "an address alone", names: []string{"10.0.0.5"}, verdict: approval.Approve, reason: approval.ReasonAutoApproved},
		{name: "a name alone", names: []string{"worker-1"}, verdict: approval.Approve, reason: approval.ReasonAutoApproved},
		{name: "as many names as may be", names: manyNames(approval.MaxNames), verdict: approval.Approve, reason: approval.ReasonAutoApproved},
		{name: "a suffix that is not ASCII to people", names: []string{"worker-1.xn--bcher-kva.example"}, verdict: approval.Approve, reason: approval.ReasonAutoApproved},
		{name: "key encipherment", names: []string{"10.0.0.5"}, verdict: approval.Approve, reason: approval.ReasonAutoApproved, change: func(r *approval.Request, _ *approval.ServingScope, _ *world) {
			r.Usages = append(r.Usages, certificates.UsageKeyEncipherment)
		}},

		{name: "somebody else asks", names: []string{"10.0.0.5"}, change: func(r *approval.Request, _ *approval.ServingScope, _ *world) { r.User = "system:node:worker-2" },
			reason: approval.ReasonNotByNode},
		{name: "a bootstrap token asks", names: []string{"10.0.0.5"}, change: func(r *approval.Request, _ *approval.ServingScope, _ *world) { r.User = bootstrap },
			reason: approval.ReasonNotByNode},
		{name: "not in the group", names: []string{"10.0.0.5"}, change: func(r *approval.Request, _ *approval.ServingScope, _ *world) { r.Groups = r.Groups[1:] },
			reason: approval.ReasonNotByNode},
		{name: "another signer", names: []string{"10.0.0.5"}, change: func(r *approval.Request, _ *approval.ServingScope, _ *world) { r.SignerName = "example.com/x" },
			reason: approval.ReasonNotRecognized},
		{name: "client auth", names: []string{"10.0.0.5"}, change: func(r *approval.Request, _ *approval.ServingScope, _ *world) {
			r.Usages = append(r.Usages, certificates.UsageClientAuth)
		}, reason: approval.ReasonNotRecognized},
		{name: "no names", reason: approval.ReasonNotRecognized},
		{name: "no request inside", change: func(r *approval.Request, _ *approval.ServingScope, _ *world) { r.CSR = nil }, reason: approval.ReasonNotRecognized},

		{name: "nothing configured", names: []string{"10.0.0.5"}, change: func(_ *approval.Request, s *approval.ServingScope, _ *world) { *s = approval.ServingScope{} },
			verdict: approval.Wait, reason: approval.ReasonScopeNotConfigured},
		{name: "only the control plane configured", names: []string{"127.0.0.1"}, change: func(_ *approval.Request, s *approval.ServingScope, _ *world) {
			*s = approval.ServingScope{ControlPlane: []string{"*"}}
		}, verdict: approval.Wait, reason: approval.ReasonScopeNotConfigured},

		{name: "too many names", names: manyNames(approval.MaxNames + 1), verdict: approval.Deny, reason: approval.ReasonTooManyNames, message: "501"},
		{name: "a node that cannot be", node: "Worker_1", names: []string{"10.0.0.5"}, verdict: approval.Deny, reason: forbidden},

		{name: "forbidden names left alone", names: []string{"127.0.0.1"}, change: leave(forbidden), reason: forbidden, message: "kubectl certificate approve csr-x"},
		{name: "many names left alone", names: manyNames(approval.MaxNames + 1), change: leave(approval.ReasonTooManyNames), reason: approval.ReasonTooManyNames},
		{name: "reserved names left alone", names: []string{"10.96.0.1"}, change: leave(reserved), reason: reserved},
		{name: "forbidden names denied, reserved ones left alone", names: []string{"127.0.0.1"}, change: leave(reserved), verdict: approval.Deny, reason: forbidden},
		{name: "loopback", names: []string{"127.0.0.1"}, verdict: approval.Deny, reason: forbidden, message: "loopback"},
		{name: "all of loopback", names: []string{"127.200.3.4"}, verdict: approval.Deny, reason: forbidden, message: "loopback"},
		{name: "loopback, IPv6", names: []string{"::1"}, verdict: approval.Deny, reason: forbidden, message: "loopback"},
		{name: "unspecified", names: []string{"0.0.0.0"}, verdict: approval.Deny, reason: forbidden, message: "unspecified"},
		{name: "this network", names: []string{"0.1.2.3"}, verdict: approval.Deny, reason: forbidden, message: "unspecified"},
		{name: "unspecified, IPv6", names: []string{"::"}, verdict: approval.Deny, reason: forbidden, message: "unspecified"},
		{name: "link-local, where clouds have metadata", names: []string{"169.254.169.254"}, verdict: approval.Deny, reason: forbidden, message: "link-local"},
		{name: "link-local, in a wider range", names: []string{"169.254.1.1"}, change: ranges("128.0.0.0/1"), verdict: approval.Deny, reason: forbidden, message: "link-local"},
		{name: "loopback, in a wider range", names: []string{"127.0.0.1"}, change: ranges("0.0.0.0/1"), verdict: approval.Deny, reason: forbidden, message: "loopback"},
		{name: "multicast, IPv6, in a wider range", names: []string{"ff02::1"}, change: ranges("8000::/1"), verdict: approval.Deny, reason: forbidden, message: "multicast"},
		{name: "link-local, IPv6", names: []string{"10.0.0.5", "fe80::1"}, reason: outside, message: "fe80::1 is not in any allowed range within fe80::/10 (--serving-allowed-cidr); to approve it by hand: kubectl certificate approve csr-x"},
		{name: "link-local, IPv6, in wider ranges", names: []string{"fe80::1"}, change: ranges("8000::/1", "fe80::/9"), reason: outside, message: "not in any allowed range within fe80::/10"},
		{name: "link-local, IPv6, the last address", names: []string{"febf:ffff::1"}, change: ranges("8000::/1", "fe80::/64"), reason: outside},
		{name: "beside link-local, IPv6, in a wider range", names: []string{"fec0::1"}, change: ranges("8000::/1"), verdict: approval.Approve, reason: approval.ReasonAutoApproved},
		{name: "link-local, IPv6, all allowed", names: []string{"fe80::1"}, change: ranges("fe80::/10"), verdict: approval.Approve, reason: approval.ReasonAutoApproved},
		{name: "link-local, IPv6, a wider range and its own", names: []string{"2001:db8::9", "fe80::1"}, change: ranges("::/1", "8000::/1", "fe80::1/128"), verdict: approval.Approve, reason: approval.ReasonAutoApproved},
		{name: "link-local, IPv6, allowed", names: []string{"fe80::1"}, change: ranges("fe80::/64"), verdict: approval.Approve, reason: approval.ReasonAutoApproved},
		{name: "multicast", names: []string{"224.0.0.1"}, verdict: approval.Deny, reason: forbidden, message: "multicast"},
		{name: "multicast, IPv6", names: []string{"ff02::1"}, verdict: approval.Deny, reason: forbidden, message: "multicast"},
		{name: "broadcast", names: []string{"255.255.255.255"}, verdict: approval.Deny, reason: forbidden, message: "broadcast"},
		{name: "IPv4-mapped", names: []string{"::ffff:10.0.0.5"}, verdict: approval.Deny, reason: forbidden, message: "IPv4-mapped"},
		{name: "the API server, IPv4-mapped", names: []string{"::ffff:10.0.0.1"}, verdict: approval.Deny, reason: forbidden, message: "IPv4-mapped"},
		{name: "IPv4-compatible", names: []string{"::10.0.0.5"}, verdict: approval.Deny, reason: forbidden, message: "IPv4-compatible"},
		{name: "IPv4-translated", names: []string{"::ffff:0:10.0.0.5"}, verdict: approval.Deny, reason: forbidden, message: "IPv4-translated"},
		{name: "NAT64", names: []string{"64:ff9b::10.0.0.5"}, verdict: approval.Deny, reason: forbidden, message: "NAT64"},
		{name: "local NAT64", names: []string{"64:ff9b:1::5"}, verdict: approval.Deny, reason: forbidden, message: "NAT64"},
		{name: "6to4", names: []string{"2002:a00:5::1"}, verdict: approval.Deny, reason: forbidden, message: "6to4"},
		{name: "Teredo", names: []string{"2001::a00:5"}, verdict: approval.Deny, reason: forbidden, message: "Teredo"},
		{name: "ISATAP", names: []string{"2001:db8::5efe:10.0.0.5"}, verdict: approval.Deny, reason: forbidden, message: "ISATAP"},
		{name: "ISATAP of a global address", names: []string{"2001:db8::200:5efe:10.0.0.5"}, verdict: approval.Deny, reason: forbidden, message: "ISATAP"},
		{name: "five bytes", change: func(r *approval.Request, _ *approval.ServingScope, _ *world) {
			r.CSR.IPAddresses = []net.IP{{1, 2, 3, 4, 5}}
		},
			verdict: approval.Deny, reason: forbidden, message: "5 bytes"},

		{name: "wildcard", names: []string{"*.example.com"}, verdict: approval.Deny, reason: forbidden, message: "want printable ASCII characters and no wildcard"},
		{name: "wildcard inside", names: []string{"a*.example.com"}, verdict: approval.Deny, reason: forbidden, message: "want printable ASCII characters and no wildcard"},
		{name: "final dot, as AWS reports", names: []string{"worker-1.example.com."}, verdict: approval.Approve, reason: approval.ReasonAutoApproved},
		{name: "final dot in the request only", names: []string{"Worker-1.example.com."}, hidden: true, verdict: approval.Approve, reason: approval.ReasonAutoApproved},
		{name: "two final dots", names: []string{"worker-1.."}, reason: outside, message: "want labels of 1 to 63"},
		{name: "a dot", names: []string{"."}, reason: outside, message: "want labels of 1 to 63"},
		{name: "localhost with a final dot", names: []string{"localhost."}, verdict: approval.Deny, reason: forbidden, message: "local machine"},
		{name: "a Service with a final dot", names: []string{"metrics.kube-system.svc."}, verdict: approval.Deny, reason: forbidden, message: "Services"},
		{name: "the API server's name with a final dot", names: []string{"api.example.com."}, verdict: approval.Deny, reason: reserved, message: "API server"},
		{name: "another node's name with a final dot", names: []string{"worker-2.example.com."}, reason: other, message: "worker-2"},
		{name: "a Node named by a number", node: "12345", names: []string{"12345"}, verdict: approval.Approve, reason: approval.ReasonAutoApproved},
		{name: "a Node whose name ends in a number", node: "rack.7", names: []string{"rack.7"}, verdict: approval.Approve, reason: approval.ReasonAutoApproved},
		{name: "a number that is not the Node's name", names: []string{"12345"}, verdict: approval.Deny, reason: forbidden, message: "looks like an IP address"},
		{name: "a Node named as an address", node: "10.1", names: []string{"10.1"}, verdict: approval.Deny, reason: forbidden, message: "looks like an IP address"},
		{name: "a Node named as an address with zeros", node: "010.0.0.9", names: []string{"10.0.0.9", "010.0.0.9"}, verdict: approval.Deny, reason: forbidden, message: "looks like an IP address"},
		{name: "reported with leading zeros", names: []string{"10.0.0.9"}, hidden: true, verdict: approval.Approve, reason: approval.ReasonAutoApproved,
			change: func(_ *approval.Request, _ *approval.ServingScope, w *world) {
				w.nodes["worker-1"] = []string{"010.0.0.9"}
			}},
		{name: "the API server's, beside one that is out of scope", names: []string{"192.0.2.1", "10.0.0.1"}, verdict: approval.Deny, reason: reserved, message: "API server"},
		{name: "many names out of scope", names: append(manyNames(3), strings.Repeat("a.", 120)+"x", strings.Repeat("b.", 120)+"x", strings.Repeat("c.", 120)+"x", strings.Repeat("d.", 120)+"x", "e.x"), reason: outside, message: "and 2 more; to approve it by hand: kubectl certificate approve csr-x"},
		{name: "without an object", names: []string{"192.0.2.1"}, reason: outside, message: "an operator can sign it with: kubejoin sign --signer kubernetes.io/kubelet-serving",
			change: func(r *approval.Request, _ *approval.ServingScope, _ *world) { r.Name = "" }},
		{name: "leading dot", names: []string{".example.com"}, reason: outside, message: "want labels of 1 to 63"},
		{name: "two dots", names: []string{"a..example.com"}, reason: outside, message: "want labels of 1 to 63"},
		{name: "empty name", names: []string{""}, reason: outside, message: "want labels of 1 to 63"},
		{name: "white space", names: []string{"worker-1 "}, verdict: approval.Deny, reason: forbidden, message: "want printable ASCII characters and no wildcard"},
		{name: "NUL", names: []string{"worker-1\x00.example.com"}, verdict: approval.Deny, reason: forbidden, message: "want printable ASCII characters and no wildcard"},
		{name: "underscore", names: []string{"_x.example.com"}, reason: outside, message: "want labels of 1 to 63"},
		{name: "hyphen first", names: []string{"-x.example.com"}, reason: outside, message: "want labels of 1 to 63"},
		{name: "hyphen last", names: []string{"x-.example.com"}, reason: outside, message: "want labels of 1 to 63"},
		{name: "long label", names: []string{long}, reason: outside, message: "want labels of 1 to 63"},
		{name: "long name", names: []string{strings.Repeat("a.", 127) + "example.com"}, reason: outside, message: "253"},
		{name: "not ASCII", names: []string{"bücher.example.com"}, verdict: approval.Deny, reason: forbidden, message: "want printable ASCII characters and no wildcard"},
		{name: "lower case only in Unicode", names: []string{"\u212aube.example.com"}, verdict: approval.Deny, reason: forbidden, message: "want printable ASCII characters and no wildcard"}, // Kelvin sign
		{name: "Punycode", names: []string{"xn--wrker-1-90a.example.com"}, reason: outside, message: "xn--"},
		{name: "Punycode, upper case", names: []string{"a.XN--wrker-1-90a.example.com"}, reason: outside, message: "xn--"},
		{name: "Punycode as the node", node: "xn--wrker-1-90a", names: []string{"xn--wrker-1-90a"}, reason: outside, message: "xn--"},
		{name: "an address as a name", change: func(r *approval.Request, _ *approval.ServingScope, _ *world) { r.CSR.DNSNames = []string{"10.0.0.5"} },
			verdict: approval.Deny, reason: forbidden, message: "looks like an IP address"},
		{name: "an IPv6 address as a name", change: func(r *approval.Request, _ *approval.ServingScope, _ *world) {
			r.CSR.DNSNames = []string{"2001:db8::5"}
		},
			verdict: approval.Deny, reason: forbidden, message: "looks like an IP address"},
		{name: "an address to some", change: func(r *approval.Request, _ *approval.ServingScope, _ *world) { r.CSR.DNSNames = []string{"0x0a.0X5"} },
			verdict: approval.Deny, reason: forbidden, message: "looks like an IP address"},
		{name: "localhost", names: []string{"localhost"}, verdict: approval.Deny, reason: forbidden, message: "local machine"},
		{name: "localhost as the node", node: "localhost", names: []string{"LOCALHOST"}, verdict: approval.Deny, reason: forbidden, message: "local machine"},
		{name: "below localhost", names: []string{"x.localhost"}, verdict: approval.Deny, reason: forbidden, message: "local machine"},
		{name: "localhost.localdomain", names: []string{"localhost.localdomain"}, verdict: approval.Deny, reason: forbidden, message: "local machine"},
		{name: "kubernetes", names: []string{"kubernetes"}, verdict: approval.Deny, reason: forbidden, message: "API server"},
		{name: "kubernetes as the node", node: "kubernetes", names: []string{"kubernetes"}, verdict: approval.Deny, reason: forbidden, message: "API server"},
		{name: "kubernetes.default", names: []string{"Kubernetes.default"}, verdict: approval.Deny, reason: forbidden, message: "API server"},
		{name: "kubernetes in the suffix", names: []string{"kubernetes.example.com"}, verdict: approval.Deny, reason: forbidden, message: "API server"},
		{name: "a Service", names: []string{"metrics.kube-system.svc"}, verdict: approval.Deny, reason: forbidden, message: "Services"},
		{name: "a Service in the suffix", names: []string{"metrics.kube-system.svc.example.com"}, verdict: approval.Deny, reason: forbidden, message: "Services"},
		{name: "cluster.local", names: []string{"x.cluster.local"}, verdict: approval.Deny, reason: forbidden, message: "Services"},

		{name: "address out of scope", names: []string{"10.0.0.5", "192.0.2.1"}, reason: outside, message: "192.0.2.1"},
		{name: "no addresses in the scope", names: []string{"10.0.0.5"}, change: func(_ *approval.Request, s *approval.ServingScope, _ *world) { s.CIDRs = nil },
			reason: outside, message: "10.0.0.5"},
		{name: "name out of scope", names: []string{"worker-1.example.org"}, reason: outside},
		{name: "the suffix itself", names: []string{"example.com"}, reason: outside},
		{name: "the end of another name", names: []string{"badexample.com"}, reason: outside},
		{name: "another node's name", names: []string{"worker-2"}, reason: other},
		{name: "another node's name, not reported by it", names: []string{"worker-3"}, reason: outside},

		{name: "address of a Service", names: []string{"10.96.0.1"}, verdict: approval.Deny, reason: reserved, message: "Services"},
		{name: "address of a Service, IPv6", names: []string{"2001:db8:0:1::1"}, verdict: approval.Deny, reason: reserved, message: "Services"},
		{name: "the API server's address", names: []string{"10.0.0.5", "10.0.0.1"}, verdict: approval.Deny, reason: reserved, message: "API server"},
		{name: "the API server's address, IPv6", names: []string{"2001:db8:0:0::1"}, verdict: approval.Deny, reason: reserved, message: "API server"},
		{name: "the API server's name", names: []string{"API.example.com"}, verdict: approval.Deny, reason: reserved, message: "API server"},
		{name: "the API server's name, reserved with a final dot", names: []string{"api.example.com"}, verdict: approval.Deny, reason: reserved, message: "API server",
			change: func(_ *approval.Request, _ *approval.ServingScope, w *world) {
				w.apiServer = []string{"API.example.com."}
			}},
		{name: "the API server's address, reserved with a final dot", names: []string{"10.0.0.5"}, verdict: approval.Deny, reason: reserved, message: "API server",
			change: func(_ *approval.Request, _ *approval.ServingScope, w *world) { w.apiServer = []string{"10.0.0.5."} }},
		{name: "the API server's address, reserved as IPv4-mapped", names: []string{"10.0.0.5"}, verdict: approval.Deny, reason: reserved, message: "API server",
			change: func(_ *approval.Request, _ *approval.ServingScope, w *world) {
				w.apiServer = []string{"::ffff:10.0.0.5"}
			}},
		{name: "the API server's address, reserved with a zone", names: []string{"2001:db8::5"}, verdict: approval.Deny, reason: reserved, message: "API server",
			change: func(_ *approval.Request, _ *approval.ServingScope, w *world) {
				w.apiServer = []string{"2001:db8::5%eth0"}
			}},
		{name: "Services reserved as IPv4-mapped", names: []string{"10.0.0.5"}, verdict: approval.Deny, reason: reserved, message: "Services",
			change: func(_ *approval.Request, _ *approval.ServingScope, w *world) {
				w.services = []netip.Prefix{netip.MustParsePrefix("::ffff:10.0.0.0/120")}
			}},
		{name: "the API server's machine", node: "control-1", names: []string{"10.0.0.1"}, verdict: approval.Deny, reason: reserved, message: "API server"},
		{name: "the API server's machine, known to the operator", node: "control-1", names: []string{"10.0.0.1", "control-1", "api.example.com"}, hidden: true,
			change:  func(_ *approval.Request, s *approval.ServingScope, _ *world) { s.ControlPlane = []string{"control-*"} },
			verdict: approval.Approve, reason: approval.ReasonAutoApproved},
		{name: "another machine beside it", names: []string{"10.0.0.1"},
			change:  func(_ *approval.Request, s *approval.ServingScope, _ *world) { s.ControlPlane = []string{"control-*"} },
			verdict: approval.Deny, reason: reserved},
		{name: "a Service on it", node: "control-1", names: []string{"10.96.0.1"},
			change:  func(_ *approval.Request, s *approval.ServingScope, _ *world) { s.ControlPlane = []string{"control-*"} },
			verdict: approval.Deny, reason: reserved},
		{name: "another node's address", names: []string{"10.0.0.6"}, reason: other, message: "worker-2"},
		{name: "another node's name in the shorter of two suffixes", names: []string{"worker-4.rack.example.com"}, reason: other, message: "worker-4.rack",
			change: func(_ *approval.Request, scope *approval.ServingScope, w *world) {
				scope.DNSSuffixes = append(scope.DNSSuffixes, "rack.example.com")
				w.nodes["worker-4.rack"] = []string{"10.0.0.9"}
			}},
		{name: "another node's name in the suffix, which that does not report", names: []string{"worker-4.example.com"}, reason: other, message: "worker-4",
			change: func(_ *approval.Request, _ *approval.ServingScope, w *world) {
				w.nodes["worker-4"] = []string{"10.0.0.9"}
			}},
		{name: "another node's name in the suffix", names: []string{"worker-2.example.com"}, reason: other, message: "worker-2"},
		{name: "another node's address, not reported here", names: []string{"10.0.0.6"}, hidden: true, reason: other},
		{name: "somebody reports it in another writing", names: []string{"10.0.0.5"}, change: func(_ *approval.Request, _ *approval.ServingScope, w *world) {
			w.nodes["worker-3"] = []string{"10.0.0.5"}
		}, reason: other, message: "worker-3"},
		{name: "denied though there is no Node", names: []string{"10.0.0.6"}, node: "worker-9", hidden: true, reason: other},

		{name: "no Node", names: []string{"10.0.0.9"}, node: "worker-9", hidden: true, verdict: approval.Wait, reason: approval.ReasonNodeNotFound},
		{name: "no addresses yet", names: []string{"10.0.0.9"}, node: "worker-9", hidden: true,
			change:  func(_ *approval.Request, _ *approval.ServingScope, w *world) { w.nodes["worker-9"] = nil },
			verdict: approval.Wait, reason: approval.ReasonAddressNotReported},
		{name: "one address not reported yet", names: []string{"10.0.0.5", "10.0.0.9"}, hidden: true, verdict: approval.Wait, reason: approval.ReasonAddressNotReported, message: "10.0.0.9"},
		{name: "one name not reported", names: []string{"10.0.0.5", "other.example.com"}, hidden: true, verdict: approval.Wait, reason: approval.ReasonAddressNotReported, message: "other.example.com"},
		{name: "an address that will never be reported", names: []string{"10.0.0.9"}, hidden: true, change: func(_ *approval.Request, _ *approval.ServingScope, w *world) { w.final = true },
			verdict: approval.None, reason: approval.ReasonAddressNotReported, message: "10.0.0.9 is not one of them; send the request from 10.0.0.9, or have an operator sign it with: kubejoin sign --signer kubernetes.io/kubelet-serving"},
		{name: "a name that will never be reported", names: []string{"10.0.0.5", "other.example.com"}, hidden: true, change: func(_ *approval.Request, _ *approval.ServingScope, w *world) { w.final = true },
			verdict: approval.None, reason: approval.ReasonAddressNotReported, message: "other.example.com is not one of them; have an operator sign it"},
		{name: "reported as IPv4-mapped", names: []string{"10.0.0.9"}, hidden: true, verdict: approval.Approve, reason: approval.ReasonAutoApproved,
			change: func(_ *approval.Request, _ *approval.ServingScope, w *world) {
				w.nodes["worker-1"] = []string{"::ffff:10.0.0.9"}
			}},
	} {
		t.Run(test.name, func(t *testing.T) {
			node := test.node
			if node == "" {
				node = "worker-1"
			}
			r, s, w := servingRequest(node, test.names...), scope, servingWorld()
			if !test.hidden {
				w.nodes[node] = append(slices.Clone(w.nodes[node]), test.names...)
			}
			if test.change != nil {
				test.change(&r, &s, w)
			}
			d := must.Value(approval.Decide(t.Context(), []approval.Rule{must.Get(approval.NewKubeletServing(s))}, r, w))(t)
			if d.Verdict != test.verdict || d.Reason != test.reason || d.Message == "" || !strings.Contains(d.Message, test.message) {
				t.Errorf("got decision %+v, want %v, %s with %q", d, test.verdict, test.reason, test.message)
			}
			if (d.Verdict == approval.Approve || d.Verdict == approval.Deny) && len(d.Evidence) == 0 {
				t.Errorf("got %+v, want evidence", d)
			}
			if d.Verdict == approval.Approve {
				for _, want := range append([]string{"uid-" + node, "a table", "no other Node", "the node itself"}, test.names...) {
					if !strings.Contains(strings.ToLower(strings.Join(d.Evidence, "\n")), strings.TrimSuffix(strings.ToLower(want), ".")) {
						t.Errorf("got evidence %q, want %q in it", d.Evidence, want)
					}
				}
			}
			if static := slices.Contains([]string{forbidden, approval.ReasonTooManyNames, approval.ReasonScopeNotConfigured, approval.ReasonNotByNode}, d.Reason); static && len(w.asked) > 0 {
				t.Errorf("got facts read: %q, want none", w.asked)
			}
		})
	}
}

func manyNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("n%d.example.com", i)
	}
	return names
}

// If a fact cannot be read, the request waits.
func TestKubeletServingWaitsIfFactsFail(t *testing.T) {
	down := errors.New("connection refused")
	rules := []approval.Rule{must.Get(approval.NewKubeletServing(scope))}
	for _, method := range []string{"Node", "Reporters", "Reserved"} {
		w := servingWorld()
		w.err = map[string]error{method: down}
		d, err := approval.Decide(t.Context(), rules, servingRequest("worker-1", "10.0.0.5"), w)
		if !errors.Is(err, down) || d.Verdict != approval.Wait || d.Reason != approval.ReasonFactsUnavailable {
			t.Errorf("%s fails: got %+v, %v, want verdict wait", method, d, err)
		}
	}
	if d, err := approval.Decide(t.Context(), rules, servingRequest("worker-1", "10.0.0.5"), nil); err == nil || d.Verdict != approval.Wait {
		t.Errorf("no facts: got %+v, %v, want verdict wait", d, err)
	}
}

func TestParseServingCIDR(t *testing.T) {
	for text, want := range map[string]string{ // part of the error; empty: no error
		"10.0.0.0/16":            "",
		"10.0.0.5/32":            "",
		"2001:db8::/48":          "",
		"2001:DB8::/48":          "",
		"240.0.0.0/4":            "",
		"10.0.0.5/16":            "10.0.0.0/16, or 10.0.0.5/32",
		"2001:db8::1/48":         "2001:db8::/48, or 2001:db8::1/128",
		"10.0.0.0":               "want a CIDR such as",
		"10.0.0.0/33":            "want a CIDR such as",
		"10.0.0.0/016":           "want a CIDR such as",
		"010.0.0.0/8":            "want a CIDR such as",
		"fe80::%eth0/64":         "want a CIDR such as",
		"":                       "want a CIDR such as",
		" 10.0.0.0/16":           "want a CIDR such as",
		"::ffff:10.0.0.0/112":    "want IPv4 addresses in IPv4 notation",
		"::ffff:0.0.0.0/96":      "want IPv4 addresses in IPv4 notation",
		"0.0.0.0/0":              "it contains every address",
		"::/0":                   "it contains every address",
		"127.0.0.0/8":            "loopback",
		"169.254.1.0/24":         "link-local",
		"fe80::/64":              "",
		"::1/128":                "loopback",
		"239.0.0.0/8":            "multicast",
		"255.255.255.255/32":     "broadcast",
		strings.Repeat("1", 1e5): "want a CIDR such as",
	} {
		p, err := approval.ParseServingCIDR(text)
		checkParsed(t, text, err, want)
		if (err == nil) != p.IsValid() {
			t.Errorf("%.100q: got %v with error %v", text, p, err)
		}
	}
}

func TestParseServingSuffix(t *testing.T) {
	for text, want := range map[string]string{
		"example.com":             "",
		".example.com":            "",
		"local":                   "",
		"xn--bcher-kva.example":   "",
		"":                        "every name",
		".":                       "every name",
		"..":                      "want labels of 1 to 63",
		"..example.com":           "want labels of 1 to 63",
		"example.com.":            "want labels of 1 to 63",
		"*.example.com":           "want labels of 1 to 63",
		"Example.com":             `want "example.com"`,
		"bücher.example":          "want labels of 1 to 63",
		"10.0":                    "looks like an IP address",
		"cluster.local":           "Services",
		"svc":                     "Services",
		"svc.example.com":         "Services",
		"localhost":               "local machine",
		strings.Repeat("a.", 1e5): "253",
	} {
		suffix, err := approval.ParseServingSuffix(text)
		checkParsed(t, text, err, want)
		if err == nil && suffix != strings.TrimPrefix(text, ".") || err != nil && suffix != "" {
			t.Errorf("%.100q: got %q, %v", text, suffix, err)
		}
	}
}

func checkParsed(t *testing.T, text string, err error, want string) {
	t.Helper()
	switch {
	case (err == nil) != (want == ""), err != nil && !strings.Contains(err.Error(), want):
		t.Errorf("%.100q: got error %v, want one with %q", text, err, want)
	case err != nil && len(err.Error()) > 1000:
		t.Errorf("%.100q: got an error of %d bytes", text, len(err.Error()))
	}
}

func TestCheckKubeletServingRefusesOtherRequests(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*approval.Request)
		want   string
	}{
		{name: "as a kubelet asks"},
		{name: "no names", change: func(r *approval.Request) { r.CSR.DNSNames, r.CSR.IPAddresses = nil, nil }, want: "at least one"},
		{name: "email", change: func(r *approval.Request) { r.CSR.EmailAddresses = []string{"a@b"} }, want: "email"},
		{name: "URI", change: func(r *approval.Request) { r.CSR.URIs = []*url.URL{{Scheme: "spiffe", Host: "x"}} }, want: "URI"},
		{name: "no node", change: func(r *approval.Request) { r.CSR.Subject.CommonName = "worker-1" }, want: "system:node:NAME"},
		{name: "client auth", change: func(r *approval.Request) { r.Usages[1] = certificates.UsageClientAuth }, want: "usages"},
		{name: "no request", change: func(r *approval.Request) { r.CSR = nil }, want: "no certificate request"},
	} {
		r := servingRequest("worker-1", "10.0.0.5", "worker-1")
		if test.change != nil {
			test.change(&r)
		}
		checkParsed(t, test.name, approval.CheckKubeletServing(r), test.want)
	}
}
