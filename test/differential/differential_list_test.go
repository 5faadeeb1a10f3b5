package differential

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/kubejoin/kubejoin/internal/testing/crafted"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

// A difference is an intended one: kube-controller-manager issues a certificate, and kubejoin does not. The docs have the
// same list, with a reason for each difference.
type difference struct {
	doc   string // name of the difference in docs/migrate-from-kube-controller-manager.md
	match func(*generated) bool
	says  string // pattern of the message that kubejoin writes to the request
	waits bool   // kubejoin writes nothing, even to an approved request
	alone bool   // kubejoin writes nothing to an unapproved request
}

// Decisions that kube-controller-manager leaves to a person.
const (
	servingApproved = "approves serving certificates of kubelets"
	servingDenied   = "denies a serving certificate with a name or address that no kubelet may have"
)

// servingDifference returns the name of the difference that applies to a serving certificate, or "".
func servingDifference(g *generated, ours outcome) string {
	switch {
	case g.spec.SignerName != certificates.KubeletServingSignerName:
	case ours.verdict == "denied" && ours.said != "":
		return servingDenied
	case ours.certificate != nil && strings.Contains(ours.verdict, "Node w-1 reports every name and address in it") && g.who.user == knownNode.user:
		return servingApproved
	}
	return ""
}

var differences = []difference{
	{doc: "RSA key below 2048 bits", match: keyIs(func(k *rsa.PublicKey) bool { return k.N.BitLen() < 2048 }), says: `the RSA key has \d+ bits`},
	{doc: "ECDSA key on P-224", match: keyIs(func(k *ecdsa.PublicKey) bool { return k.Curve == elliptic.P224() }), says: `on curve P-224`},
	{doc: "or ask for a CA", match: constraints(0x30, 3, 1, 1, 0xff), says: `is for a CA certificate`},
	{doc: "basic constraints that are malformed", match: constraints(0x30, 9), says: `basic constraints in the certificate request are malformed`},
	{doc: "UID attribute", match: func(g *generated) bool { return count(g, crafted.UserID)+count(g, crafted.KubernetesUID) > 0 }, says: `has a UID attribute`},
	{doc: "empty attribute", match: anyText(func(v string) bool { return v == "" }), says: `attribute [0-9.]+ is empty`},
	{doc: "attribute that is no text", match: anyAttribute(func(v any) bool { _, text := v.(string); return !text }), says: `attribute [0-9.]+ is not text`},
	{doc: "control character in the subject", match: anyText(func(v string) bool { return strings.ContainsFunc(v, unicode.IsControl) }), says: `has a control character`},
	{doc: "two common names or serial numbers", match: func(g *generated) bool {
		return count(g, crafted.CommonName) > 1 || count(g, crafted.SerialNumber) > 1
	}, says: `more than once`},
	{doc: "looks like a name of Kubernetes", match: func(g *generated) bool {
		return slices.ContainsFunc(g.about, func(a string) bool { return strings.HasPrefix(a, "a look-alike") || a == "spaces" })
	}, says: `which looks like "system:`},
	{doc: "email or unknown attribute beside a street or postal code", match: func(g *generated) bool {
		return len(g.csr.Subject.StreetAddress)+len(g.csr.Subject.PostalCode) > 0 && slices.ContainsFunc(g.csr.Subject.Names, func(a pkix.AttributeTypeAndValue) bool {
			return !slices.Contains([]int{3, 5, 6, 7, 8, 9, 10, 11, 17}, a.Type[len(a.Type)-1]) || len(a.Type) != 4
		})
	}, says: `together with a street or postal code`},
	{doc: "neither subject nor names", match: func(g *generated) bool { return len(g.csr.Subject.ToRDNSequence()) == 0 && len(g.csr.DNSNames) == 0 }, says: `neither a subject nor subject alternative names`},
	{doc: "names of other kinds", match: about("other kinds of names"), says: `is of kind (otherName|registeredID|directoryName)`},
	{doc: "empty or invisible names", match: about("an empty name", "NUL or a space in a name"), says: `(and empty|not printable ASCII)$`},
	{doc: "DNS name above 253 characters", match: about("a DNS name of 254 characters"), says: `has 254 characters`},
	{doc: "IPv4 address in 16 bytes", match: about("an IPv4 address as IPv6"), says: `want the IPv4 address in 4 bytes`},
	{doc: "more than 500 names", match: about("501 names"), says: `more than 500 subject alternative names`},
	{doc: "more than one PEM block", match: about("text before PEM", "text after PEM", "two PEM blocks", "a PEM header"), says: `PEM block`, alone: true},
	{doc: "empty node name", match: func(g *generated) bool { return g.csr.Subject.CommonName == "system:node:" }, says: `the node name is empty`, alone: true},
	{doc: "name that no Node can have", match: func(g *generated) bool {
		name, found := strings.CutPrefix(g.csr.Subject.CommonName, "system:node:")
		return found && tokens.CheckNodeName(name) != nil
	}, says: `invalid subject`},
	{doc: "NodeExists", match: newNode("w-1", "w-2"), says: `^Node w-\d already exists`},
	{doc: "NodeNameClaimed", match: newNode("taken-0"), says: `was claimed with token spent1`},
	{doc: "NodeNameReserved", match: func(g *generated) bool { return strings.HasPrefix(g.csr.Subject.CommonName, "system:node:cp-") }, says: `is reserved for the control plane`},
	{doc: "NodeNameNotAllowed", match: by(tokenLimited), says: `^token lim100 does not allow node name `},
	{doc: "TokenSpent", match: by(tokenSpent), says: `^(as many|token spent1)`},
	{doc: "TooManyKeys", match: by(tokenSpent), says: `and 3 other keys`},
	{doc: "TokenRevoked", match: by(tokenGone), says: `gone00`},
	{doc: "NotForBootstrapToken", match: func(g *generated) bool { return strings.HasPrefix(g.who.user, "system:bootstrap:") }, says: `a bootstrap token is only for client certificates of nodes`},
	{doc: "NodeNotFound", match: by(ghostNode), waits: true},
}

func keyIs[K any](is func(K) bool) func(*generated) bool {
	return func(g *generated) bool { k, ok := g.csr.PublicKey.(K); return ok && is(k) }
}

func constraints(value ...byte) func(*generated) bool {
	return func(g *generated) bool {
		for _, e := range g.csr.Extensions {
			if e.Id.Equal(asn1.ObjectIdentifier{2, 5, 29, 19}) {
				return string(e.Value) == string(value)
			}
		}
		return false
	}
}

func count(g *generated, oid asn1.ObjectIdentifier) (n int) {
	for _, a := range g.csr.Subject.Names {
		if a.Type.Equal(oid) {
			n++
		}
	}
	return n
}

func anyAttribute(is func(any) bool) func(*generated) bool {
	return func(g *generated) bool {
		for _, a := range g.csr.Subject.Names {
			if is(a.Value) {
				return true
			}
		}
		return false
	}
}

func anyText(is func(string) bool) func(*generated) bool {
	return anyAttribute(func(v any) bool { text, ok := v.(string); return ok && is(text) })
}

func about(what ...string) func(*generated) bool {
	return func(g *generated) bool {
		return slices.ContainsFunc(what, func(w string) bool { return slices.Contains(g.about, w) })
	}
}

func by(who ...requester) func(*generated) bool {
	return func(g *generated) bool {
		return slices.ContainsFunc(who, func(w requester) bool { return w.user == g.who.user })
	}
}

// newNode matches a request for the client certificate of one of these nodes by another user than the node.
func newNode(names ...string) func(*generated) bool {
	return func(g *generated) bool {
		name, found := strings.CutPrefix(g.csr.Subject.CommonName, "system:node:")
		return found && slices.Contains(names, name) && g.who.user != g.csr.Subject.CommonName &&
			g.spec.SignerName != certificates.KubeletServingSignerName
	}
}

// explained returns the listed difference that explains kubejoin's refusal, or nil.
func explained(g *generated, said string, byHand bool) *difference {
	if g.csr == nil {
		return nil
	}
	for i, d := range differences {
		if !d.match(g) {
			continue
		}
		if said == "" && (d.waits || d.alone && !byHand) || said != "" && d.says != "" && regexp.MustCompile(d.says).MatchString(said) {
			return &differences[i]
		}
	}
	return nil
}

// certificateDifferences returns the fields in which two certificates for the same request differ. It reports the
// subject key identifier, which only kubejoin adds, separately.
func certificateDifferences(ours, theirs *x509.Certificate) (differ []string, keyIdentifier bool) {
	check := func(same bool, what string) {
		if !same {
			differ = append(differ, what)
		}
	}
	check(ours.Version == theirs.Version, "version")
	check(string(ours.RawSubject) == string(theirs.RawSubject), "subject")
	check(string(ours.RawIssuer) == string(theirs.RawIssuer), "issuer")
	check(string(ours.RawSubjectPublicKeyInfo) == string(theirs.RawSubjectPublicKeyInfo), "public key")
	check(ours.SignatureAlgorithm == theirs.SignatureAlgorithm, "signature algorithm")
	check(ours.NotAfter.Sub(ours.NotBefore) == theirs.NotAfter.Sub(theirs.NotBefore), "lifetime")
	for _, c := range []*x509.Certificate{ours, theirs} {
		check(c.SerialNumber.Sign() > 0 && c.SerialNumber.BitLen() <= 128 && c.SerialNumber.BitLen() > 64, "serial number")
	}
	var ourExtensions []string
	for _, e := range ours.Extensions {
		if e.Id.Equal(asn1.ObjectIdentifier{2, 5, 29, 14}) {
			keyIdentifier = !e.Critical && len(ours.SubjectKeyId) == 20
			continue
		}
		ourExtensions = append(ourExtensions, showExtension(e))
	}
	var theirExtensions []string
	for _, e := range theirs.Extensions {
		theirExtensions = append(theirExtensions, showExtension(e))
	}
	slices.Sort(ourExtensions)
	slices.Sort(theirExtensions)
	check(slices.Equal(ourExtensions, theirExtensions), "extensions "+strings.Join(ourExtensions, " ")+" and "+strings.Join(theirExtensions, " "))
	return differ, keyIdentifier
}
