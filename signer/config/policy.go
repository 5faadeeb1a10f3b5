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
	certificates "k8s.io/api/certificates/v1"
)

// PolicyKind is the kind of a file for 'kubejoin signer --policy'.
const PolicyKind = "SignerPolicy"

// Bounds of a rate in a policy.
const (
	maxQPS   = 1000
	maxBurst = 100_000
)

// MaxOrders is how many orders all requesters of a policy together can send within ordersWithin. The signer process
// keeps the hash of each order for as long as the order is valid.
const (
	MaxOrders    = 1 << 18
	ordersWithin = 2 * remote.MaxSkew
)

// OverflowUID is the user that Linux reports by default for every user without a number in a user namespace. So it
// identifies no user.
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
	// UID is the user ID of its process, for a Unix socket; -1 if there is none.
	UID int
	// QPS and Burst limit its requests.
	QPS   float64
	Burst int
	// Signers are the signers that the requester may use, by signer name.
	Signers map[string]signer.Signer

	defined []Signer
	line    int
}

// A policyFile is the content of a policy.
type policyFile struct {
	APIVersion string   `yaml:"apiVersion" only:"kubejoin.io/v1alpha1"`
	Kind       string   `yaml:"kind" only:"SignerPolicy"`
	Never      []string `yaml:"never,omitempty" list:"names and addresses" want:"a name, a pattern such as cp-*, an address or a range such as 10.96.0.0/12"`
	Requesters []struct {
		Name string `yaml:"name" want:"the common name of a client certificate"`
		UID  *uid   `yaml:"uid,omitempty"`
		Rate struct {
			QPS   qps   `yaml:"qps"`
			Burst burst `yaml:"burst"`
		} `yaml:"rate"`
		Signers []Signer `yaml:"signers" list:"signers"`
	} `yaml:"requesters" list:"requesters"`
}

// LoadPolicy reads a policy, whose signers all use ca. An [Errors] holds the mistakes in it. Any other error means that the
// file could not be read, or wraps [signer.ErrExposed] because every user may write it.
func LoadPolicy(file string, ca func() (*signer.CA, error)) (*Policy, error) {
	content, err := read(file)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); mode&0o002 != 0 {
		return nil, fmt.Errorf("%s: %w: mode is %04o, want at most %04o", file, signer.ErrExposed, mode, mode&^0o002)
	}
	return ParsePolicy(file, content, ca)
}

// ParsePolicy is [LoadPolicy] for the content of a file.
func ParsePolicy(file string, content []byte, ca func() (*signer.CA, error)) (*Policy, error) {
	var f policyFile
	d := newDocument(file, PolicyKind, content, &f)
	return result(d.policy(&f, ca), d.errs)
}

// Named returns the requester whose client certificate has that common name.
func (p *Policy) Named(name string) (Requester, bool) {
	return p.find(func(q Requester) bool { return q.Name == name })
}

// Of returns the requester whose process runs as the user uid.
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

// Warnings returns the permissions of a valid policy that may be dangerous: for certificates of servers that could be
// the API server, and of users with names that Kubernetes or kubeadm reserves.
func (p *Policy) Warnings() (all []string) {
	for _, q := range p.Requesters {
		for _, s := range q.defined {
			subject, names := cmp.Or(s.Subject, &Subject{}), cmp.Or(s.Names, &Names{})
			if s.Name == certificates.KubeletServingSignerName || slices.Contains(s.Usages, certificates.UsageServerAuth) {
				for _, ip := range names.IPs {
					if !ip.IsSingleIP() && !slices.ContainsFunc(p.never.ips, ip.Overlaps) {
						all = append(all, fmt.Sprintf("requester %s, signer %s: no address of %s is in never; add the addresses there that are those of API servers and Services", quoted(q.Name), s.Name, ip))
					}
				}
			}
			for _, pattern := range slices.Concat(subject.CommonNames, subject.Organizations) {
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
	return pattern != tokens.NodesGroup && !strings.HasPrefix(pattern, tokens.NodeUserPrefix) &&
		(strings.HasPrefix(pattern, tokens.SystemPrefix) || strings.HasPrefix(pattern, "kubeadm:") || tokens.MatchNodeName(pattern, "kubeadm:cluster-admins"))
}

func (d *document) policy(f *policyFile, ca func() (*signer.CA, error)) *Policy {
	p := &Policy{}
	d.each("never", f.Never, func(text string) error {
		prefix, err := parsePrefix(text)
		if err != nil && !strings.ContainsAny(text, "/ ") {
			p.never.names = append(p.never.names, strings.ToLower(text))
			return checkText(text)
		}
		p.never.ips = append(p.never.ips, prefix)
		return err
	})
	for i, from := range f.Requesters {
		path := fmt.Sprintf("requesters[%d]", i)
		if from.Name == "" && !d.wrong[path+".name"] {
			continue // not a mapping
		}
		if checkText(from.Name) != nil || len(from.Name) > safetext.MaxName {
			d.fail(path+".name", "%s given, want at most %d printable characters", quoted(from.Name), safetext.MaxName)
		}
		q := Requester{Name: from.Name, UID: -1, QPS: float64(from.Rate.QPS), Burst: int(from.Rate.Burst), line: d.lines[path]}
		if from.UID != nil {
			q.UID = int(*from.UID)
		}
		q.defined = d.signers(path+".signers", from.Signers)
		for i := range q.defined {
			d.restrict(&q.defined[i], &p.never)
		}
		q.Signers = d.build(q.defined, Defaults{CA: ca})
		if other, found := p.Named(q.Name); found {
			d.fail(path+".name", "duplicate requester %s, first defined in line %d", quoted(q.Name), other.line)
		}
		if other, found := p.Of(q.UID); found {
			d.fail(path+".uid", "user %d is already that of requester %s in line %d", q.UID, quoted(other.Name), other.line)
		}
		before := p.orders()
		p.Requesters = append(p.Requesters, q)
		if sum := p.orders(); sum > MaxOrders && before <= MaxOrders {
			d.fail(path+".rate", "qps %g and burst %d bring all requesters to %.0f orders in %s, want at most %d together (burst + %g * qps each): lower the rates",
				q.QPS, q.Burst, math.Ceil(sum), ordersWithin, MaxOrders, ordersWithin.Seconds())
		}
	}
	return p
}

// restrict applies the additional requirements of a policy on a signer. The requester decides about requests, and may
// lie about who sent a request. So the policy restricts only the contents of the certificate.
func (d *document) restrict(s *Signer, no *never) {
	at := s.path + "."
	for _, name := range []string{"ca", "approval"} {
		if d.lines[at+name] > 0 {
			d.fail(at+name, "not allowed in a policy: the signer process has one CA and approves nothing")
		}
	}
	s.policy = no.check
	switch {
	case s.Name == approval.SuperAdminSigner:
		d.fail(at+"name", "%s given, want another signer: a policy allows no certificate in group %s", s.Name, tokens.MastersGroup)
	case s.Name == certificates.KubeAPIServerClientKubeletSignerName:
		s.policy = func(r approval.Request) error {
			return cmp.Or(no.check(r), tokens.CheckNodeName(strings.TrimPrefix(r.CSR.Subject.CommonName, tokens.NodeUserPrefix)))
		}
	case s.Name == certificates.KubeletServingSignerName && s.Names == nil:
		d.fail(at+"names", "missing, want the DNS names and address ranges of machines, such as {dns: [\"*.node.example.com\"], ips: [10.0.0.0/16]}")
	case s.Name == certificates.KubeletServingSignerName:
		s.policy = func(r approval.Request) error { return cmp.Or(no.check(r), approval.CheckServingNames(r, s.Names.IPs)) }
	case s.Name == certificates.KubeAPIServerClientSignerName && s.Subject == nil:
		d.fail(at+"subject", "missing, want the users that may get a client certificate, such as {commonNames: [\"*@example.com\"]}")
	}
}

// never are names and addresses that no certificate may contain.
type never struct {
	names []string // patterns in lower case
	ips   []netip.Prefix
}

// check returns an error if the common name, the node name in it, a DNS name or an address is forbidden.
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
