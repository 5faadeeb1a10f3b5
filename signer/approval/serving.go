package approval

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/internal/dnsname"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	netutils "k8s.io/utils/net"
)

// MaxNames is how many subject alternative names a certificate may have. Kubernetes sets no limit. A kubelet requests
// all addresses that its Node reports, which can be more than a hundred.
const MaxNames = 500

// Reasons of [KubeletServing].
const (
	// ReasonNotByNode is given with None: the requester is not the node itself.
	ReasonNotByNode = "NotRequestedByNode"
	// ReasonScopeNotConfigured is given with Wait: the operator has not configured the names and addresses that
	// kubelets may have.
	ReasonScopeNotConfigured = "ServingScopeNotConfigured"
	// ReasonTooManyNames is given with Deny: the request has more than [MaxNames] names and addresses.
	// [ServingScope.LeaveAlone] can turn this and the next two reasons into None.
	ReasonTooManyNames = "ServingTooManyNames"
	// ReasonNameForbidden is given with Deny: no kubelet may have this address or name.
	ReasonNameForbidden = "ServingNameForbidden"
	// ReasonNameReserved is given with Deny: the name or address belongs to the API server, kubejoin or a Service.
	ReasonNameReserved = "ServingNameReserved"
	// ReasonNameOutOfScope is given with None: the operator has not allowed the name or address.
	ReasonNameOutOfScope = "ServingNameOutOfScope"
	// ReasonNameOfOther is given with None: another Node reports the name or address, or it is the name of another
	// Node.
	ReasonNameOfOther = "ServingNameOfAnotherNode"
	// ReasonNodeNotFound is given with Wait: the Node does not exist now.
	ReasonNodeNotFound = "NodeNotFound"
	// ReasonAddressNotReported is given with Wait: the Node does not report the name or address now. Without Node
	// objects ([Node.NoNodeObject]) it is given with None, because waiting does not help.
	ReasonAddressNotReported = "AddressNotReported"
)

// KubeletServing approves the first serving certificate of a kubelet and each renewal, if all of these hold: The node
// itself requests it. Every name and address is in the scope that the operator configured. The Node reports each of
// them, and no other Node does. A kubelet writes its own Node, so the report alone is never enough. With a zero scope
// every request waits.
//
// KubeletServing denies a request only for a name or address that no kubelet may have. It returns None, and does not
// deny, if LeaveAlone lists the reason, or if an operator or a person could still allow the name. It compares addresses
// by value, and names without regard to case and a final dot. It denies IPv4 addresses in any IPv6 form. Labels that
// begin with xn-- are out of scope, because people may mistake them for another name. Only a suffix of the scope may
// have such labels.
//
// [NewKubeletServing] makes one. The zero KubeletServing has the zero scope.
type KubeletServing struct{ scope ServingScope } // whose suffixes have no leading dot

// NewKubeletServing returns the rule with a scope. The error is the error of [ServingScope.Check].
func NewKubeletServing(scope ServingScope) (KubeletServing, error) {
	if err := scope.Check(); err != nil {
		return KubeletServing{}, err
	}
	scope.CIDRs, scope.DNSSuffixes = slices.Clone(scope.CIDRs), slices.Clone(scope.DNSSuffixes)
	for i, suffix := range scope.DNSSuffixes {
		scope.DNSSuffixes[i] = strings.TrimPrefix(suffix, ".")
	}
	return KubeletServing{scope}, nil
}

// Name returns "kubelet-serving".
func (KubeletServing) Name() string { return "kubelet-serving" }

// Decide first denies names and addresses that no kubelet may have. Then it returns None for a name or address that
// belongs to another Node or is outside the scope. Then it waits for the Node to report all names and addresses.
func (k KubeletServing) Decide(ctx context.Context, r Request, f Facts) (Decision, error) {
	if r.SignerName != certificates.KubeletServingSignerName || CheckKubeletServing(r) != nil {
		return Decision{}, nil
	}
	node := strings.TrimPrefix(r.CSR.Subject.CommonName, tokens.NodeUserPrefix)
	if r.User != r.CSR.Subject.CommonName || !slices.Contains(r.Groups, tokens.NodesGroup) {
		return Decision{
			Reason:   ReasonNotByNode,
			Message:  fmt.Sprintf("%q requests the serving certificate of node %q, but kubejoin approves it automatically only for the node itself; check its names, then %s", userName(r), safetext.Text(node, safetext.MaxName), byHand(r)),
			Evidence: []string{fmt.Sprintf("the requester is %q", userName(r))},
		}, nil
	}
	if k.scope.IsZero() {
		remedy := "or check its names and approve it by hand" // without the command to approve, because the names were not checked
		if r.Name == "" {
			remedy = byHand(r)
		}
		return Decision{
			Verdict: Wait, Reason: ReasonScopeNotConfigured,
			Message: "kubejoin approves no serving certificates of kubelets: set --serving-allowed-cidr or --serving-allowed-dns-suffix; " + remedy,
		}, nil
	}
	names, refusal := parseServing(node, r)
	if refusal != nil {
		return k.orLeave(*refusal, r), nil
	}
	if f == nil {
		return Decision{}, errors.New("cannot look up Nodes: want Facts")
	}
	e := evidence{names: names, seen: []string{fmt.Sprintf("the requester is the node itself, %q", r.User)}}
	for _, ask := range []func(context.Context, string, Request, Facts, *evidence) (Decision, error){k.ofCluster, k.others, k.scoped, k.reported} {
		d, err := ask(ctx, node, r, f, &e)
		if d.Reason != "" {
			e.saw("%s", d.Message)
		}
		d.Evidence = e.seen
		if err != nil || d.Verdict != None || d.Reason != "" {
			return k.orLeave(d, r), err
		}
	}
	return Decision{
		Verdict: Approve, Reason: ReasonAutoApproved, Evidence: e.seen,
		Message: fmt.Sprintf("Auto approving kubelet serving certificate: Node %s reports every name and address in it, and they are in the configured scope.", node),
	}, nil
}

// orLeave returns None in place of a denial whose reason the operator has listed in LeaveAlone.
func (k KubeletServing) orLeave(d Decision, r Request) Decision {
	if d.Verdict == Deny && slices.Contains(k.scope.LeaveAlone, d.Reason) {
		d.Verdict, d.Message = None, d.Message+"; "+byHand(r)
	}
	return d
}

// A servingName is a requested name or address.
type servingName struct {
	text    string     // as Host returns it
	address netip.Addr // not valid for a name
}

func (n servingName) String() string { return n.text }

// evidence has the facts that the rule has found so far.
type evidence struct {
	names []servingName
	seen  []string
}

func (e *evidence) saw(format string, args ...any) {
	safetext.Args(args) // redact first: a verb such as %.100q may cut a token
	e.seen = append(e.seen, fmt.Sprintf(format, args...))
}

// deny returns a denial. Use it only if the machine has to change its request.
func deny(reason, format string, args ...any) *Decision {
	message := fmt.Sprintf(format, args...) + "; remove it on the machine, and restart its kubelet, which then requests another certificate"
	return &Decision{Verdict: Deny, Reason: reason, Message: message, Evidence: []string{message}}
}

// CheckServingNames returns an error if a request for a serving certificate has a name or an address that no kubelet
// may have, regardless of the scope. It also returns an error for an address that no range in ranges would allow in
// [ServingScope.CIDRs].
func CheckServingNames(r Request, ranges []netip.Prefix) error {
	names, refusal := parseServing(strings.TrimPrefix(r.CSR.Subject.CommonName, tokens.NodeUserPrefix), r)
	if refusal != nil {
		return errors.New(refusal.Message)
	}
	for _, n := range names {
		if _, ok := (ServingScope{CIDRs: ranges}).cidr(n.address); n.address.IsValid() && !ok {
			return fmt.Errorf("address %s is not in any allowed range%s", n, within(n.address))
		}
	}
	return nil
}

// within returns the part of a message that says which kind of range could allow an address.
func within(a netip.Addr) string {
	if linkLocal.Contains(a) {
		return " within " + linkLocal.String()
	}
	return ""
}

// parseServing returns the names and addresses of a request, or a denial if no kubelet may have one of them.
func parseServing(node string, r Request) ([]servingName, *Decision) {
	if n := len(r.CSR.DNSNames) + len(r.CSR.IPAddresses); n > MaxNames {
		return nil, deny(ReasonTooManyNames, "the request has %d names and addresses, want at most %d", n, MaxNames)
	}
	if err := tokens.CheckNodeName(node); err != nil {
		return nil, deny(ReasonNameForbidden, "invalid subject: %v", err)
	}
	var names []servingName
	add := func(n servingName) {
		if !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	for _, ip := range r.CSR.IPAddresses {
		// Treat 16 bytes as an IPv6 address, even if they hold an IPv4 address. net.IP would not distinguish the two.
		a, ok := netip.AddrFromSlice(ip)
		if !ok {
			return nil, deny(ReasonNameForbidden, "the request has an IP address of %d bytes, want 4 or 16", len(ip))
		}
		if kind := forbiddenAddress(a); kind != "" {
			return nil, deny(ReasonNameForbidden, "no kubelet may have address %s (%s)", a, kind)
		}
		add(servingName{text: a.String(), address: a})
	}
	for _, text := range r.CSR.DNSNames {
		// Check this before the conversion to lower case, which turns the Kelvin sign into an ASCII letter.
		if strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c == '*' || c >= 0x7f }) {
			return nil, deny(ReasonNameForbidden, "no kubelet may have DNS name %.300q: want printable ASCII characters and no wildcard", text)
		}
		name := strings.ToLower(strings.TrimSuffix(text, "."))
		if kind := forbiddenName(name); kind != "" {
			return nil, deny(ReasonNameForbidden, "no kubelet may have DNS name %.300q: it is a name of %s", name, kind)
		}
		if netutils.ParseIPSloppy(name) != nil || dnsname.IsHost(name) && (name != node && dnsname.EndsInNumber(name) || isNumbers(name)) {
			return nil, deny(ReasonNameForbidden, "no kubelet may have DNS name %.300q: it looks like an IP address", name)
		}
		add(servingName{text: name})
	}
	return names, nil
}

// isNumbers reports whether some clients take the name for an IPv4 address. A single number is no address to people:
// Kubernetes allows a Node named 12345, or rack.7.
func isNumbers(name string) bool {
	labels := strings.Split(name, ".")
	return len(labels) > 1 && !slices.ContainsFunc(labels, func(label string) bool { return !dnsname.EndsInNumber(label) })
}

// A message about names that are out of scope lists at most maxOutside names, with maxReason bytes for each. A longer
// message would be truncated, without the command at its end.
const maxOutside, maxReason = 3, 200

// scoped returns None if the request has a name or an address that the operator has not allowed.
func (k KubeletServing) scoped(_ context.Context, node string, r Request, _ Facts, e *evidence) (Decision, error) {
	var outside []string
	for _, n := range e.names {
		if allowed, err := k.allows(node, n); err != nil {
			outside = append(outside, safetext.Text(err.Error(), maxReason))
		} else {
			e.saw("%s is %s", n, allowed)
		}
	}
	if len(outside) == 0 {
		return Decision{}, nil
	}
	if more := len(outside) - maxOutside; more > 0 {
		outside = append(outside[:maxOutside], fmt.Sprintf("and %d more", more))
	}
	return Decision{Reason: ReasonNameOutOfScope, Message: strings.Join(outside, "; ") + "; " + byHand(r)}, nil
}

// allows returns the part of the scope that allows a name or address, in words for people.
func (k KubeletServing) allows(node string, n servingName) (string, error) {
	if n.address.IsValid() {
		p, ok := k.scope.cidr(n.address)
		if !ok {
			return "", fmt.Errorf("address %s is not in any allowed range%s (--serving-allowed-cidr)", n, within(n.address))
		}
		return fmt.Sprintf("in the configured range %s", p), nil
	}
	if err := checkDNSName(n.text); err != nil && n.text != node { // a Node name need not be a host name
		return "", err
	}
	label, suffix := n.text, ""
	for _, l := range k.scope.labels(n.text) { // use the longest suffix
		if len(l) < len(label) {
			label, suffix = l, n.text[len(l)+1:]
		}
	}
	switch {
	case strings.HasPrefix(label, "xn--"), strings.Contains(label, ".xn--"):
		return "", fmt.Errorf("DNS name %s has a label that begins with xn-- and may look like another name; such labels are allowed only in a configured DNS suffix", n)
	case suffix != "":
		return fmt.Sprintf("below the configured DNS suffix %s", suffix), nil
	case n.text == node:
		return "the node's name", nil
	}
	return "", fmt.Errorf("DNS name %s is neither the node's name nor below an allowed DNS suffix (--serving-allowed-dns-suffix)", n)
}

// ofCluster denies addresses and names of the API server and of Services.
func (k KubeletServing) ofCluster(ctx context.Context, node string, _ Request, f Facts, e *evidence) (Decision, error) {
	reserved, err := f.ClusterAddresses(ctx)
	if err != nil {
		return Decision{}, fmt.Errorf("read addresses of Services and the API server: %w", err)
	}
	e.saw("reserved addresses: %q for Services, %q for the API server (source: %s)", reserved.Prefixes, reserved.APIServer, reserved.Source)
	controlPlane := k.scope.controlPlane(node)
	for _, n := range e.names {
		if i := slices.IndexFunc(reserved.Prefixes, func(p netip.Prefix) bool { return unmapped(p).Contains(n.address) }); i >= 0 {
			return *deny(ReasonNameReserved, "address %s is in %s, an address range of Services", n, reserved.Prefixes[i]), nil
		}
		for _, host := range reserved.APIServer {
			if Host(host) != n.text {
				continue
			}
			if !controlPlane {
				return *deny(ReasonNameReserved, "%s is a name or address of the API server or kubejoin; only nodes whose names are reserved for the control plane (--reserved-node-names) may have it", n), nil
			}
			e.saw("%s belongs to the API server, and node name %s is reserved for the control plane", n, node)
			break
		}
	}
	return Decision{}, nil
}

// others returns None for a name or address that another Node reports, until that Node is deleted. It also returns None
// for another Node's name below a suffix, even if that Node does not report it.
func (k KubeletServing) others(ctx context.Context, node string, r Request, f Facts, e *evidence) (Decision, error) {
	var asked []string
	for _, n := range e.names {
		asked = append(append(asked, n.text), slices.DeleteFunc(k.scope.labels(n.text), func(label string) bool { return label == node })...)
	}
	reporters, err := f.Reporters(ctx, node, asked)
	if err != nil {
		return Decision{}, fmt.Errorf("look up other Nodes with these addresses: %w", err)
	}
	for _, address := range slices.Sorted(maps.Keys(reporters)) {
		nodes := reporters[address]
		if len(nodes) == 0 {
			continue
		}
		return Decision{Reason: ReasonNameOfOther, Message: fmt.Sprintf("Node %s already has %s; if that machine no longer exists: kubectl delete node %s", nodes[0], address, nodes[0])}, nil
	}
	e.saw("no other Node has any of these names and addresses")
	return Decision{}, nil
}

// reported waits until the Node reports every name and address. It does not wait if Node.NoNodeObject is set.
func (k KubeletServing) reported(ctx context.Context, node string, r Request, f Facts, e *evidence) (Decision, error) {
	n, err := f.Node(ctx, r, node)
	if errors.Is(err, ErrNoNode) {
		return Decision{Verdict: Wait, Reason: ReasonNodeNotFound, Message: fmt.Sprintf("the request waits until Node %s exists", node)}, nil
	}
	if err != nil {
		return Decision{}, fmt.Errorf("node %s: %w", node, err)
	}
	known := n.Addresses[:min(len(n.Addresses), MaxNames)]
	if n.NoNodeObject {
		e.saw("the requesting machine has %.100q", known)
	} else {
		e.saw("Node %s (UID %s) reports %.100q", n.Name, n.UID, known)
	}
	reports := make(map[string]bool, len(n.Addresses))
	for _, address := range n.Addresses {
		reports[Host(address)] = true
	}
	for _, name := range e.names {
		if !reports[name.text] && n.NoNodeObject {
			from := ""
			if name.address.IsValid() {
				from = fmt.Sprintf("send the request from %s, or ", name)
			}
			return Decision{Reason: ReasonAddressNotReported, Message: fmt.Sprintf("kubejoin knows only the client address and the names of this machine (%s), and %s is not one of them; "+
				"%shave an operator sign it with: kubejoin sign --signer %s", strings.Join(known, ", "), name, from, certificates.KubeletServingSignerName)}, nil
		}
		if !reports[name.text] {
			return Decision{Verdict: Wait, Reason: ReasonAddressNotReported, Message: fmt.Sprintf("the request waits until Node %s reports %s; it now reports %d addresses", node, name, len(n.Addresses))}, nil
		}
	}
	return Decision{}, nil
}

// Host returns one form for all spellings of a reported address or name: an address as a kubelet reads it, without a
// zone, and a name in lower case without a final dot.
func Host(text string) string {
	text = strings.TrimSuffix(strings.ToLower(text), ".")
	address, _, _ := strings.Cut(text, "%")
	// A kubelet accepts leading zeros, and an IPv4 address in IPv6 form. It requests the plain IPv4 address for both.
	if a, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(address)); ok {
		return a.Unmap().String()
	}
	return text
}

// unmapped returns an IPv4-mapped IPv6 range as the IPv4 range, and other ranges unchanged.
func unmapped(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p
}

// CheckKubeletServing returns an error unless a request is for a kubelet's serving certificate:
//
//   - the subject of a node,
//   - at least one DNS name or IP address, no email addresses and no URIs,
//   - usages digital signature and server auth, with or without key encipherment.
//
// These are kube-controller-manager's rules for signing it. CheckKubeletServing does not check the signer name.
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
