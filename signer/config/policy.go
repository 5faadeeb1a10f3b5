package config

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/remote"
	"github.com/kubejoin/kubejoin/tokens"
	"go.yaml.in/yaml/v3"
	certificates "k8s.io/api/certificates/v1"
)

// PolicyKind is the kind of a file for 'kubejoin signer --policy'.
const PolicyKind = "SignerPolicy"

// Bounds of a rate in a policy.
const (
	maxQPS   = 1000
	maxBurst = 100_000
)

// MaxOrders is how many orders all requesters of a policy together can send within ordersWithin. The signer process keeps
// the hash of each of them for as long as the order is valid.
const (
	MaxOrders    = 1 << 18
	ordersWithin = 2 * remote.MaxSkew
)

// OverflowUID is the user that Linux reports by default for every user without a number in a user namespace. So it names
// nobody.
const OverflowUID = 65534

// A Policy says who gets which certificates from a signer process. [LoadPolicy] makes one. It must not be changed.
type Policy struct {
	Requesters []Requester
	never      never
}

// A Requester is a client of a signer process.
type Requester struct {
	// Name is the common name of its client certificate.
	Name string
	// UID is the user that it runs as, for a Unix socket; -1 if there is none.
	UID int
	// QPS and Burst limit its requests.
	QPS   float64
	Burst int
	// Signers are what it may have signed, by signer name.
	Signers map[string]signer.Signer

	defined []Signer
	line    int
}

// LoadPolicy reads a policy, whose signers all use ca. An [Errors] holds the mistakes in it. Any other error means that the
// file could not be read, or wraps [signer.ErrExposed] because every user may write it.
func LoadPolicy(file string, ca func() (*signer.CA, error)) (*Policy, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); mode&0o002 != 0 {
		return nil, fmt.Errorf("%s: %w: mode is %04o, want at most %04o", file, signer.ErrExposed, mode, mode&^0o002)
	}
	content, err := read(file)
	if err != nil {
		return nil, err
	}
	return ParsePolicy(file, content, ca)
}

// ParsePolicy is [LoadPolicy] for the content of a file.
func ParsePolicy(file string, content []byte, ca func() (*signer.CA, error)) (*Policy, error) {
	p, r := &Policy{}, &yamlReader{file: file}
	if document := r.document(content, PolicyKind); document != nil {
		r.policy(document, p, ca)
	}
	if err := r.errs.asError(); err != nil {
		return nil, err
	}
	return p, nil
}

// Named returns the requester with a client certificate of that common name.
func (p *Policy) Named(name string) (Requester, bool) {
	return p.find(func(q Requester) bool { return q.Name == name })
}

// Of returns the requester that runs as a user.
func (p *Policy) Of(uid int) (Requester, bool) {
	return p.find(func(q Requester) bool { return q.UID == uid && uid >= 0 })
}

func (p *Policy) find(is func(Requester) bool) (Requester, bool) {
	i := slices.IndexFunc(p.Requesters, is)
	if i < 0 {
		return Requester{}, false
	}
	return p.Requesters[i], true
}

// orders returns how many orders the rates allow within ordersWithin.
func (p *Policy) orders() (sum float64) {
	for _, q := range p.Requesters {
		sum += float64(q.Burst) + q.QPS*ordersWithin.Seconds()
	}
	return sum
}

// Warnings returns what a valid policy allows that may be dangerous: certificates of servers that could be the API server,
// and of users with names that Kubernetes or kubeadm reserves.
func (p *Policy) Warnings() (all []string) {
	for _, q := range p.Requesters {
		for _, s := range q.defined {
			if s.Names != nil && (s.Name == certificates.KubeletServingSignerName || slices.Contains(s.Usages, certificates.UsageServerAuth)) {
				for _, ip := range s.Names.IPs {
					if !ip.IsSingleIP() && !slices.ContainsFunc(p.never.ips, ip.Overlaps) {
						all = append(all, fmt.Sprintf("requester %s, signer %s: no address of %s is in never; add the addresses there that are those of API servers and Services", quoted(q.Name), s.Name, ip))
					}
				}
			}
			if s.Subject == nil {
				continue
			}
			for _, pattern := range slices.Concat(s.Subject.CommonNames, s.Subject.Organizations) {
				if reservedPattern(pattern) {
					all = append(all, fmt.Sprintf("requester %s, signer %s: %s allows names that Kubernetes or kubeadm reserves; some of them have full access to the cluster", quoted(q.Name), s.Name, quoted(pattern)))
				}
			}
		}
	}
	return all
}

// reservedPattern reports whether a pattern allows a name of [approval.SystemName].
func reservedPattern(pattern string) bool {
	if pattern == tokens.NodesGroup || strings.HasPrefix(pattern, tokens.NodeUserPrefix) {
		return false
	}
	return strings.HasPrefix(pattern, tokens.SystemPrefix) || strings.HasPrefix(pattern, kubeadmPrefix) ||
		tokens.MatchNodeName(pattern, kubeadmPrefix+"cluster-admins")
}

// kubeadmPrefix begins the names of kubeadm's groups.
const kubeadmPrefix = "kubeadm:"

func (r *yamlReader) policy(n *yaml.Node, p *Policy, ca func() (*signer.CA, error)) {
	r.mapping(n, "", r.fixed("apiVersion", APIVersion), r.fixed("kind", PolicyKind),
		field{"never", false, func(n *yaml.Node, path string) { r.never(n, path, &p.never) }},
		field{"requesters", true, func(n *yaml.Node, path string) {
			if n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
				r.fail(n.Line, path, "the list is empty, want at least one item")
			}
			r.list(n, path, "requesters", maxItems, func(n *yaml.Node, path string) {
				q := Requester{UID: -1, line: n.Line}
				if !r.requester(n, path, &q, &p.never, ca) {
					return
				}
				if other, found := p.Named(q.Name); found {
					r.fail(q.line, path+".name", "duplicate requester %s, first defined in line %d", quoted(q.Name), other.line)
				}
				if other, found := p.Of(q.UID); found {
					r.fail(q.line, path+".uid", "user %d is already that of requester %s in line %d", q.UID, quoted(other.Name), other.line)
				}
				before := p.orders()
				p.Requesters = append(p.Requesters, q)
				if sum := p.orders(); sum > MaxOrders && before <= MaxOrders {
					r.fail(q.line, path+".rate", "qps %g and burst %d bring all requesters to %.0f orders in %s, want at most %d together (burst + %g * qps each): lower the rates",
						q.QPS, q.Burst, math.Ceil(sum), ordersWithin, MaxOrders, ordersWithin.Seconds())
				}
			})
		}})
}

func (r *yamlReader) requester(n *yaml.Node, path string, q *Requester, no *never, ca func() (*signer.CA, error)) bool {
	return r.mapping(n, path,
		field{"name", true, func(n *yaml.Node, path string) {
			var ok bool
			if q.Name, ok = r.text(n, path, "the common name of a client certificate"); ok {
				if err := checkText(q.Name); err != nil || len(q.Name) > safetext.MaxName {
					r.fail(n.Line, path, "%s given, want at most %d printable characters", quoted(q.Name), safetext.MaxName)
				}
			}
		}},
		field{"uid", false, func(n *yaml.Node, path string) {
			const want = "the number of a user, such as 998"
			if id, ok := r.number(n, path, want); ok && (id < 0 || id > math.MaxUint32-1) {
				r.fail(n.Line, path, "%d given, want %s", id, want)
			} else if ok && id == OverflowUID {
				r.fail(n.Line, path, "%d given, want another user: Linux reports this one for every user of another user namespace", id)
			} else if ok {
				q.UID = id
			}
		}},
		field{"rate", true, func(n *yaml.Node, path string) {
			r.mapping(n, path,
				field{"qps", true, func(n *yaml.Node, path string) {
					if n.Kind != yaml.ScalarNode || !slices.Contains([]string{"!!int", "!!float"}, n.ShortTag()) || n.Decode(&q.QPS) != nil || !(q.QPS > 0 && q.QPS <= maxQPS) {
						r.fail(n.Line, path, "%s given, want a number of certificates a second, more than 0 and at most %d", describe(n), maxQPS)
					}
				}},
				field{"burst", true, func(n *yaml.Node, path string) {
					var ok bool
					if q.Burst, ok = r.number(n, path, "a number of certificates"); ok && (q.Burst < 1 || q.Burst > maxBurst) {
						r.fail(n.Line, path, "%d given, want 1 to %d certificates at once", q.Burst, maxBurst)
					}
				}})
		}},
		field{"signers", true, func(n *yaml.Node, path string) {
			c := Configuration{file: r.file, Signers: r.signers(n, path)}
			for i := range c.Signers {
				r.restrict(&c.Signers[i], no)
			}
			q.defined = c.Signers
			var errs Errors
			q.Signers, errs = c.build(Defaults{CA: ca})
			r.errs = append(r.errs, errs...)
		}})
}

// restrict applies what a policy requires of a signer beyond a SignerConfiguration. Its requester decides and may lie about
// who the request is from, so only the contents of the certificate count.
func (r *yamlReader) restrict(s *Signer, no *never) {
	fail := func(name, format string, args ...any) {
		r.fail(s.at(name), s.path+"."+name, format, args...)
		s.wrong[name] = true
	}
	for _, name := range []string{"ca", "approval"} {
		if s.lines[name] > 0 {
			fail(name, "not allowed in a policy: the signer process has one CA and approves nothing")
		}
	}
	check := func(approval.Request) error { return nil }
	switch {
	case s.isWrong("name"):
	case s.Name == approval.SuperAdminSigner:
		fail("name", "%s given, want another signer: a policy allows no certificate in group %s", s.Name, tokens.MastersGroup)
	case s.Name == certificates.KubeAPIServerClientKubeletSignerName:
		check = func(r approval.Request) error {
			return tokens.CheckNodeName(strings.TrimPrefix(r.CSR.Subject.CommonName, tokens.NodeUserPrefix))
		}
	case s.Name == certificates.KubeletServingSignerName:
		check = func(r approval.Request) error { return approval.CheckServingNames(r, s.Names.IPs) }
		if s.Names == nil {
			fail("names", "missing, want the DNS names and address ranges of machines, such as {dns: [\"*.node.example.com\"], ips: [10.0.0.0/16]}")
		}
	case s.Name == certificates.KubeAPIServerClientSignerName:
		if s.Subject == nil {
			fail("subject", "missing, want the users that may get a client certificate, such as {commonNames: [\"*@example.com\"]}")
		}
	}
	s.policy = func(r approval.Request) error { return cmp.Or(no.check(r), check(r)) }
}

// never are names and addresses in no certificate.
type never struct {
	names []string // patterns in lower case
	ips   []netip.Prefix
}

func (r *yamlReader) never(n *yaml.Node, path string, to *never) {
	r.list(n, path, "names and addresses", maxItems, func(n *yaml.Node, path string) {
		text, ok := r.text(n, path, "a name, a pattern such as cp-*, an address or a range such as 10.96.0.0/12")
		if !ok {
			return
		}
		prefix, err := parsePrefix(text)
		switch {
		case err == nil:
			to.ips = append(to.ips, prefix)
		case strings.ContainsAny(text, "/ "):
			r.fail(n.Line, path, "%v", err)
		case checkText(text) != nil:
			r.fail(n.Line, path, "%v", checkText(text))
		default:
			to.names = append(to.names, strings.ToLower(text))
		}
	})
}

// check compares the common name, the node name in it, DNS names and addresses.
func (v *never) check(r approval.Request) error {
	common := r.CSR.Subject.CommonName
	names := append([]string{common, strings.TrimPrefix(common, tokens.NodeUserPrefix)}, r.CSR.DNSNames...)
	for _, name := range names {
		name = strings.ToLower(strings.TrimSuffix(name, "."))
		if slices.ContainsFunc(v.names, func(p string) bool { return tokens.MatchNodeName(p, name) || coveredBy(name, p) }) {
			return fmt.Errorf("the policy signs no certificate for %.100q", safetext.Redact(name))
		}
	}
	for _, ip := range r.CSR.IPAddresses {
		addr, _ := netip.AddrFromSlice(ip) // the zero Addr is in no range
		if slices.ContainsFunc(v.ips, func(p netip.Prefix) bool { return p.Contains(addr.Unmap()) }) {
			return fmt.Errorf("the policy signs no certificate for %s", ip)
		}
	}
	return nil
}

// coveredBy reports whether a wildcard such as *.example.com could stand for a name that matches a pattern.
func coveredBy(wildcard, pattern string) bool {
	suffix, found := strings.CutPrefix(wildcard, "*")
	if !found {
		return false
	}
	last := pattern[strings.LastIndex(pattern, "*")+1:]
	return strings.HasSuffix(last, suffix) || last != pattern && strings.HasSuffix(suffix, last)
}
