package approval

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/internal/foreign"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

// MaxServingNames is how many names and addresses a kubelet's serving certificate may have. A
// kubelet asks for what its Node reports, which is a handful.
const MaxServingNames = 100

// Reasons of [KubeletServing].
const (
	// ReasonNotByNode is given with None: somebody else asks than the node.
	ReasonNotByNode = "NotRequestedByNode"
	// ReasonScopeNotConfigured is given with Wait: the operator has said nothing of what
	// kubelets may serve as.
	ReasonScopeNotConfigured = "ServingScopeNotConfigured"
	// ReasonTooManyNames is given with Deny: more than [MaxServingNames].
	ReasonTooManyNames = "ServingTooManyNames"
	// ReasonNameForbidden is given with Deny: no kubelet may have this address or name.
	ReasonNameForbidden = "ServingNameForbidden"
	// ReasonNameReserved is given with Deny: it is the API server's, or a Service's.
	ReasonNameReserved = "ServingNameReserved"
	// ReasonNameOutOfScope is given with Deny: the operator has not allowed it.
	ReasonNameOutOfScope = "ServingNameOutOfScope"
	// ReasonNameOfOther is given with Deny: another Node reports it.
	ReasonNameOfOther = "ServingNameOfAnotherNode"
	// ReasonNodeNotFound is given with Wait: the Node does not exist, not yet or not any more.
	ReasonNodeNotFound = "NodeNotFound"
	// ReasonAddressNotReported is given with Wait: the Node does not report it, or not yet. It is
	// given with None where there are no Nodes ([Node.Final]) and waiting would be in vain.
	ReasonAddressNotReported = "AddressNotReported"
)

// KubeletServing approves a kubelet's serving certificate, the first one and each renewal, on
// evidence: the node itself asks, and every name and address is in the scope that the operator
// has configured, is among those that its Node reports, and is nobody else's. What a Node reports
// its kubelet writes, so that it is never enough. In a zero scope every request waits.
//
// Addresses are compared as such, names without regard to case. IPv4 in IPv6 in any form is
// refused, as are names that are not ASCII. Parts of names that begin with xn-- are refused
// except in a suffix of the scope, since they look like others to people.
type KubeletServing struct {
	ServingScope
}

// Name is "kubelet-serving".
func (KubeletServing) Name() string { return "kubelet-serving" }

// Decide denies what no kubelet may have, what is out of scope, and what is another's, before it
// waits for the Node to report the rest.
func (k KubeletServing) Decide(ctx context.Context, r Request, f Facts) (Decision, error) {
	if r.SignerName != certificates.KubeletServingSignerName || CheckKubeletServing(r) != nil {
		return Decision{}, nil
	}
	node := strings.TrimPrefix(r.CSR.Subject.CommonName, tokens.NodeUserPrefix)
	if r.User != r.CSR.Subject.CommonName || !slices.Contains(r.Groups, tokens.NodesGroup) {
		return Decision{
			Reason:   ReasonNotByNode,
			Message:  fmt.Sprintf("%q asks for the serving certificate of node %q, which only the node itself gets automatically; 'kubectl certificate approve' does", userName(r), foreign.Text(node, foreign.MaxName)),
			Evidence: []string{fmt.Sprintf("the requester is %q", userName(r))},
		}, nil
	}
	if k.IsZero() {
		return Decision{
			Verdict: Wait, Reason: ReasonScopeNotConfigured,
			Message: "no addresses or names are configured that kubelets may serve as (--serving-allowed-cidr, --serving-allowed-dns-suffix), so that a person has to approve",
		}, nil
	}
	names, refusal := k.parse(node, r)
	if refusal != nil {
		return *refusal, nil
	}
	if f == nil {
		return Decision{}, errors.New("no facts to ask for Nodes")
	}
	e := evidence{names: names, seen: []string{fmt.Sprintf("the requester is the node itself, %q", r.User)}}
	for _, n := range names {
		e.saw("%s is %s", n, n.allowed)
	}
	for _, ask := range []func(context.Context, string, Request, Facts, *evidence) (Decision, error){k.reserved, k.others, k.reported} {
		d, err := ask(ctx, node, r, f, &e)
		if d.Reason != "" {
			e.saw("%s", d.Message)
		}
		d.Evidence = e.seen
		if err != nil || d.Verdict != None || d.Reason != "" {
			return d, err
		}
	}
	return Decision{
		Verdict: Approve, Reason: ReasonAutoApproved, Evidence: e.seen,
		Message: fmt.Sprintf("Auto approving kubelet serving certificate: Node %s reports every name and address in it, and they are in the configured scope.", node),
	}, nil
}

// A servingName is one that is asked for.
type servingName struct {
	text    string     // canonical: an address, or a name in lower case
	address netip.Addr // not valid for a name
	allowed string     // by what, for people
}

func (n servingName) String() string { return n.text }

// evidence is what has been seen so far.
type evidence struct {
	names []servingName
	seen  []string
}

func (e *evidence) saw(format string, args ...any) {
	foreign.Args(args) // before a verb cuts them
	e.seen = append(e.seen, fmt.Sprintf(format, args...))
}

func (e *evidence) texts() []string {
	texts := make([]string, len(e.names))
	for i, n := range e.names {
		texts[i] = n.text
	}
	return texts
}

func deny(reason, format string, args ...any) *Decision {
	message := fmt.Sprintf(format, args...)
	return &Decision{Verdict: Deny, Reason: reason, Message: message, Evidence: []string{message}}
}

// parse gives the names and addresses of a request, or why it is denied whatever the world is
// like.
func (k KubeletServing) parse(node string, r Request) ([]servingName, *Decision) {
	if n := len(r.CSR.DNSNames) + len(r.CSR.IPAddresses); n > MaxServingNames {
		return nil, deny(ReasonTooManyNames, "%d names and addresses are asked for, at most %d are allowed", n, MaxServingNames)
	}
	if err := tokens.CheckNodeName(node); err != nil {
		return nil, deny(ReasonNameForbidden, "no Node can have this name: %v", err)
	}
	var names []servingName
	add := func(n servingName) {
		if !slices.ContainsFunc(names, func(o servingName) bool { return o.text == n.text }) {
			names = append(names, n)
		}
	}
	// What is forbidden is said before what is out of scope: no scope would help.
	for _, ip := range r.CSR.IPAddresses {
		a, refusal := checkAddress(ip)
		if refusal != nil {
			return nil, refusal
		}
		add(servingName{text: a.String(), address: a})
	}
	for _, text := range r.CSR.DNSNames {
		if err := checkDNSName(text); err != nil {
			return nil, deny(ReasonNameForbidden, "%v", err)
		}
		name := strings.ToLower(text)
		if kind := forbiddenName(name); kind != "" {
			return nil, deny(ReasonNameForbidden, "%s is a name of %s, which no kubelet may have", name, kind)
		}
		add(servingName{text: name})
	}
	for i := range names {
		if refusal := k.allow(node, &names[i]); refusal != nil {
			return nil, refusal
		}
	}
	return names, nil
}

// checkAddress takes the bytes of an address as they stand in the request: 16 of them are IPv6,
// also where they hold an IPv4 address, which net.IP would hide.
func checkAddress(ip net.IP) (netip.Addr, *Decision) {
	a, ok := netip.AddrFromSlice(ip)
	if !ok {
		return a, deny(ReasonNameForbidden, "an address of %d bytes is asked for, want 4 or 16", len(ip))
	}
	if kind := forbiddenAddress(a); kind != "" {
		return a, deny(ReasonNameForbidden, "%s is an address of kind %s, which no kubelet may have", a, kind)
	}
	return a, nil
}

// allow finds what in the scope allows a name.
func (k KubeletServing) allow(node string, n *servingName) *Decision {
	if n.address.IsValid() {
		p, ok := k.cidr(n.address)
		if !ok {
			return deny(ReasonNameOutOfScope, "%s is not in the configured ranges of addresses (--serving-allowed-cidr)", n)
		}
		n.allowed = fmt.Sprintf("in the configured range %s", p)
		return nil
	}
	suffix, below := k.suffix(n.text)
	label := strings.TrimSuffix(n.text, "."+suffix)
	switch {
	case strings.HasPrefix(label, "xn--"), strings.Contains(label, ".xn--"):
		return deny(ReasonNameForbidden, "%s has a part that begins with xn--, which may look like another name; only a configured DNS suffix may have such", n)
	case below:
		n.allowed = fmt.Sprintf("below the configured DNS suffix %s", suffix)
	case n.text == node:
		n.allowed = "the node's name"
	default:
		return deny(ReasonNameOutOfScope, "%s is neither the node's name nor below a configured DNS suffix (--serving-allowed-dns-suffix)", n)
	}
	return nil
}

// reserved denies what is the API server's or a Service's.
func (k KubeletServing) reserved(ctx context.Context, node string, _ Request, f Facts, e *evidence) (Decision, error) {
	reserved, err := f.Reserved(ctx)
	if err != nil {
		return Decision{}, fmt.Errorf("addresses of Services and of the API server: %w", err)
	}
	e.saw("reserved are %q for Services and %q for the API server (%s)", reserved.Prefixes, reserved.APIServer, reserved.Source)
	controlPlane := k.controlPlane(node)
	for _, n := range e.names {
		if i := slices.IndexFunc(reserved.Prefixes, func(p netip.Prefix) bool { return unmapped(p).Contains(n.address) }); i >= 0 {
			return *deny(ReasonNameReserved, "%s is in %s, the addresses of Services", n, reserved.Prefixes[i]), nil
		}
		for _, host := range reserved.APIServer {
			if reservedHost(host) != n.text {
				continue
			}
			if !controlPlane {
				return *deny(ReasonNameReserved, "%s is where the API server or kubejoin is reached; only a node whose name the operator reserves for the control plane (--reserved-node-names) may have it", n), nil
			}
			e.saw("%s is the API server's, and %s is a name reserved for the control plane", n, node)
			break
		}
	}
	return Decision{}, nil
}

// others denies what another Node reports, and another Node's name below a suffix, whether that
// reports it or not.
func (k KubeletServing) others(ctx context.Context, node string, _ Request, f Facts, e *evidence) (Decision, error) {
	asked := e.texts()
	for _, n := range e.names {
		asked = append(asked, slices.DeleteFunc(k.labels(n.text), func(label string) bool { return label == node })...)
	}
	reporters, err := f.Reporters(ctx, node, asked)
	if err != nil {
		return Decision{}, fmt.Errorf("who reports the same addresses: %w", err)
	}
	for _, address := range slices.Sorted(maps.Keys(reporters)) {
		nodes := reporters[address]
		if len(nodes) == 0 {
			continue
		}
		return *deny(ReasonNameOfOther, "Node %s has %s, too; if that machine is gone: kubectl delete node %s", nodes[0], address, nodes[0]), nil
	}
	e.saw("no other Node reports any of them")
	return Decision{}, nil
}

// reported waits until the Node reports everything, if it ever will.
func (k KubeletServing) reported(ctx context.Context, node string, r Request, f Facts, e *evidence) (Decision, error) {
	n, err := f.Node(ctx, r, node)
	if errors.Is(err, ErrNoNode) {
		return Decision{Verdict: Wait, Reason: ReasonNodeNotFound, Message: fmt.Sprintf("there is no Node %s: the request waits until there is", node)}, nil
	}
	if err != nil {
		return Decision{}, fmt.Errorf("node %s: %w", node, err)
	}
	known := n.Addresses[:min(len(n.Addresses), MaxServingNames)]
	if n.NoNodeObject {
		e.saw("the machine that asks has %.100q", known)
	} else {
		e.saw("Node %s (UID %s) reports %.100q", n.Name, n.UID, known)
	}
	reports := make(map[string]bool, len(n.Addresses))
	for _, address := range n.Addresses {
		reports[canonicalHost(address)] = true
	}
	for _, name := range e.names {
		if !reports[name.text] && n.NoNodeObject {
			from := ""
			if name.address.IsValid() {
				from = fmt.Sprintf("ask from %s, or ", name)
			}
			return Decision{Reason: ReasonAddressNotReported, Message: fmt.Sprintf("kubejoin knows of this machine only the address that it asks from and its name (%s), and %s is not among them: "+
				"%shave an operator sign it with 'kubejoin sign --signer %s'", strings.Join(known, ", "), name, from, certificates.KubeletServingSignerName)}, nil
		}
		if !reports[name.text] {
			return Decision{Verdict: Wait, Reason: ReasonAddressNotReported, Message: fmt.Sprintf("Node %s does not report %s among its %d addresses: the request waits until it does", node, name, len(n.Addresses))}, nil
		}
	}
	return Decision{}, nil
}

// canonicalHost writes a reported address as a servingName has it. An IPv4-mapped
// address stays one, as does what is neither an address nor a name: they equal nothing that can be
// asked for.
func canonicalHost(text string) string {
	if a, err := netip.ParseAddr(text); err == nil {
		return a.String()
	}
	if checkDNSName(text) != nil {
		return text
	}
	return strings.ToLower(text)
}

// reservedHost writes what is reserved as a servingName has it, however it is written: a final dot,
// IPv4 in IPv6 and a zone would make it reserve nothing.
func reservedHost(text string) string {
	text = strings.TrimSuffix(text, ".")
	if a, err := netip.ParseAddr(text); err == nil {
		return a.Unmap().WithZone("").String()
	}
	return canonicalHost(text)
}

// unmapped is the range of IPv4 addresses where one is written as IPv6.
func unmapped(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p
}

// CheckKubeletServing says why a request is not one for a kubelet's serving certificate, or nil:
// the subject of a node, at least one DNS or IP name, no other names, usages digital signature
// and server auth with or without key encipherment. These are kube-controller-manager's rules for
// signing it. The signer's name is not looked at.
func CheckKubeletServing(r Request) error {
	if err := CheckNodeSubject(r); err != nil {
		return err
	}
	switch {
	case len(r.CSR.DNSNames) == 0 && len(r.CSR.IPAddresses) == 0:
		return fmt.Errorf("no DNS or IP subject alternative name given, want at least one")
	case len(r.CSR.EmailAddresses) > 0:
		return fmt.Errorf("%d email subject alternative names given, want none", len(r.CSR.EmailAddresses))
	case len(r.CSR.URIs) > 0:
		return fmt.Errorf("%d URI subject alternative names given, want none", len(r.CSR.URIs))
	}
	return CheckUsages(r, certificates.UsageDigitalSignature, certificates.UsageServerAuth)
}
