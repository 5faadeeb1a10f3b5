package differential

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"math"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"testing"

	cryptorand "crypto/rand"

	"github.com/kubejoin/kubejoin/internal/testing/crafted"
	certificates "k8s.io/api/certificates/v1"
)

// A generated is a request that the test sends to both clusters.
type generated struct {
	name  string
	about []string // the unusual properties of the request
	who   requester
	spec  certificates.CertificateSigningRequestSpec
	csr   *x509.CertificateRequest // nil if the request is malformed
}

func (g *generated) String() string {
	expiration := "none"
	if g.spec.ExpirationSeconds != nil {
		expiration = fmt.Sprint(*g.spec.ExpirationSeconds)
	}
	return fmt.Sprintf("%s: %s by %s %q, usages %q, expiration %s: %s\n%s", g.name, g.spec.SignerName, g.who.user, g.who.groups,
		g.spec.Usages, expiration, strings.Join(g.about, ", "), g.spec.Request)
}

// A requester is a user who may create requests.
type requester struct {
	user   string
	groups []string
}

var bootstrappers = []string{"system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token", "system:authenticated"}

func byToken(id string) requester { return requester{"system:bootstrap:" + id, bootstrappers} }

func byNode(name string) requester {
	return requester{"system:node:" + name, []string{"system:nodes", "system:authenticated"}}
}

// The requesters. [newTestCluster] creates their tokens and Nodes.
var (
	tokenUnlimited = byToken("abc123")
	tokenLimited   = byToken("lim100") // for 1000 nodes whose names begin with n-
	tokenSpent     = byToken("spent1") // for one node; node taken-0 has used up the limit
	tokenGone      = byToken("gone00") // does not exist
	machineUser    = requester{"kubelet-bootstrap", bootstrappers}
	stranger       = requester{"jane", []string{"askers", "system:authenticated"}} // may create requests, but has no right that leads to approval
	nobody         = requester{"nobody", []string{"system:authenticated"}}
	knownNode      = byNode("w-1")
	ghostNode      = byNode("ghost") // has no Node
)

var requesters = []requester{tokenUnlimited, tokenLimited, tokenSpent, tokenGone, machineUser, stranger, nobody, knownNode, ghostNode}

// A generator creates requests. The same seed gives the same requests except for keys and signatures.
type generator struct {
	*mathrand.Rand
	keys map[string]crypto.Signer
	made int
}

func newGenerator(t *testing.T, seed uint64) *generator {
	t.Helper()
	g := &generator{Rand: mathrand.New(mathrand.NewPCG(seed, 0)), keys: map[string]crypto.Signer{}}
	keep := func(name string, key crypto.Signer, err error) {
		if err != nil {
			t.Fatal(err)
		}
		g.keys[name] = key
	}
	for name, bits := range map[string]int{"RSA 1024": 1024, "RSA 2047": 2047, "RSA 2048": 2048, "RSA 3072": 3072, "RSA 4096": 4096} {
		key, err := rsa.GenerateKey(cryptorand.Reader, bits)
		keep(name, key, err)
	}
	for _, curve := range []elliptic.Curve{elliptic.P224(), elliptic.P256(), elliptic.P384(), elliptic.P521()} {
		key, err := ecdsa.GenerateKey(curve, cryptorand.Reader)
		keep(curve.Params().Name, key, err)
	}
	_, key, err := ed25519.GenerateKey(cryptorand.Reader)
	keep("Ed25519", key, err)
	return g
}

// draft is a request before it is encoded.
type draft struct {
	*generator
	about   []string
	who     requester
	signer  string
	key     string
	subject [][]crafted.Attribute
	names   []asn1.RawValue
	more    []pkix.Extension
	usages  []certificates.KeyUsage
	seconds *int32
	wrap    func(pem []byte) []byte
}

func pick[T any](g *generator, from ...T) T { return from[g.IntN(len(from))] }

func printable(oid asn1.ObjectIdentifier, v string) crafted.Attribute {
	return crafted.Text(oid, asn1.TagPrintableString, v)
}

func one(a crafted.Attribute) []crafted.Attribute { return []crafted.Attribute{a} }

// next creates a request. byHand means that a person will approve the request in any case.
func (g *generator) next(t *testing.T, byHand bool) *generated {
	t.Helper()
	g.made++
	d := &draft{generator: g, who: tokenUnlimited, key: elliptic.P256().Params().Name}
	kinds := []func(*draft){(*draft).kubelet, (*draft).kubelet, (*draft).kubelet, (*draft).renewal, (*draft).serving}
	if byHand {
		kinds = []func(*draft){(*draft).kubelet, (*draft).renewal, (*draft).serving, (*draft).serving, (*draft).user, (*draft).user, (*draft).user}
	}
	pick(g, kinds...)(d)
	changes := 0
	for changes < 4 && g.IntN(5) < 3 { // two in five stay unchanged
		changes++
	}
	for range changes {
		c := pick(g, mutations...)
		c.change(d)
		d.about = append(d.about, c.name)
	}
	var extensions []pkix.Extension
	if len(d.names) > 0 {
		extensions = append(extensions, crafted.SAN(d.names...))
	}
	der, err := crafted.Request(g.keys[d.key], crafted.MultiValued(d.subject...), append(extensions, d.more...)...)
	if err != nil {
		t.Fatalf("%s: %v", d.about, err)
	}
	data := crafted.PEM(der)
	if d.wrap != nil {
		data = d.wrap(data)
	}
	made := &generated{
		name: fmt.Sprintf("r-%05d", g.made), about: append(d.about, d.key), who: d.who,
		spec: certificates.CertificateSigningRequestSpec{Request: data, SignerName: d.signer, Usages: d.usages, ExpirationSeconds: d.seconds},
	}
	if block, _ := pem.Decode(data); block != nil {
		made.csr, _ = x509.ParseCertificateRequest(block.Bytes) // parse it as the API server does
	}
	return made
}

func (d *draft) node(name string) {
	d.subject = [][]crafted.Attribute{one(printable(crafted.Organization, "system:nodes")), one(printable(crafted.CommonName, "system:node:"+name))}
}

// kubelet drafts the request of a new node.
func (d *draft) kubelet() {
	d.signer = certificates.KubeAPIServerClientKubeletSignerName
	d.usages = []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth}
	d.node(fmt.Sprintf("n-%d", d.made))
	d.who = pick(d.generator, tokenUnlimited, tokenUnlimited, tokenUnlimited, tokenLimited, machineUser, stranger)
}

// renewal drafts the request of a node for itself.
func (d *draft) renewal() {
	d.kubelet()
	d.who = knownNode
	d.node("w-1")
}

// serving drafts the request of a kubelet for a serving certificate.
func (d *draft) serving() {
	d.signer = certificates.KubeletServingSignerName
	d.usages = []certificates.KeyUsage{certificates.UsageServerAuth, certificates.UsageDigitalSignature}
	d.who = knownNode
	d.node("w-1")
	d.names = []asn1.RawValue{crafted.DNSName("w-1"), crafted.IPName([]byte{192, 0, 2, 1})}
}

// user drafts the request of a human user.
func (d *draft) user() {
	d.signer = certificates.KubeAPIServerClientSignerName
	d.usages = []certificates.KeyUsage{certificates.UsageClientAuth}
	d.who = pick(d.generator, stranger, machineUser, machineUser)
	d.subject = [][]crafted.Attribute{one(crafted.UTF8(crafted.Organization, "dev")), one(crafted.UTF8(crafted.CommonName, "jane"))}
}

// commonName applies change to the common names.
func (d *draft) commonName(change func(*crafted.Attribute)) {
	for _, part := range d.subject {
		for i := range part {
			if part[i].Type.Equal(crafted.CommonName) {
				change(&part[i])
			}
		}
	}
}

// rename replaces the common name.
func (d *draft) rename(tag int, name func(string) string) {
	d.commonName(func(a *crafted.Attribute) { *a = crafted.Text(a.Type, tag, name(string(a.Value.Bytes))) })
}

func (d *draft) add(a ...crafted.Attribute) { d.subject = append(d.subject, a) }

func (d *draft) lasts(seconds int32) { d.seconds = &seconds }

// A mutation changes one thing in a request. It may undo another mutation.
type mutation struct {
	name   string
	change func(*draft)
}

var mutations = slices.Concat(requesterMutations, keyMutations, usageMutations, subjectMutations, nodeNameMutations, nameMutations, extensionMutations, encodingMutations)

var requesterMutations = []mutation{
	{"another requester", func(d *draft) { d.who = pick(d.generator, requesters...) }},
	{"on a spent token", func(d *draft) { d.who = tokenSpent }},
	{"a fourth key for a claim", func(d *draft) { d.who = tokenSpent; d.node("taken-0") }},
	{"on a token that is gone", func(d *draft) { d.who = tokenGone }},
	{"on a limited token", func(d *draft) { d.who = tokenLimited }},
	{"by a node without a Node", func(d *draft) { d.who = ghostNode; d.node("ghost") }},
	{"another signer", func(d *draft) {
		d.signer = pick(d.generator, certificates.KubeAPIServerClientKubeletSignerName, certificates.KubeletServingSignerName,
			certificates.KubeAPIServerClientSignerName, "kubernetes.io/legacy-unknown", "kubernetes.io/unknown", "example.com/etcd-peer", "none")
	}},
	{"a lifetime", func(d *draft) {
		d.lasts(pick[int32](d.generator, 600, 601, 3600, 8*3600-1, 8*3600, 8*3600+1, 1000*3600-1, 1000*3600, 1000*3600+1, 365*86400, math.MaxInt32))
	}},
	{"a lifetime that is refused", func(d *draft) { d.lasts(pick[int32](d.generator, 599, 0, -1, math.MinInt32)) }},
}

var keyMutations = func() (all []mutation) {
	for _, key := range []string{"RSA 1024", "RSA 2047", "RSA 2048", "RSA 3072", "RSA 4096", "P-224", "P-384", "P-521", "Ed25519"} {
		all = append(all, mutation{"key", func(d *draft) { d.key = key }})
	}
	return all
}()

var usageMutations = []mutation{
	{"key encipherment", func(d *draft) { d.usages = append(slices.Clone(d.usages), certificates.UsageKeyEncipherment) }},
	{"usages in another order", func(d *draft) { d.usages = slices.Clone(d.usages); slices.Reverse(d.usages) }},
	{"a usage twice", func(d *draft) { d.usages = append(slices.Clone(d.usages), d.usages[:min(1, len(d.usages))]...) }},
	{"a usage less", func(d *draft) { d.usages = d.usages[min(1, len(d.usages)):] }},
	{"a usage more", func(d *draft) {
		d.usages = append(slices.Clone(d.usages), pick(d.generator, certificates.UsageServerAuth, certificates.UsageClientAuth, certificates.UsageAny, certificates.UsageSigning,
			certificates.UsageDigitalSignature, certificates.UsageCertSign, certificates.UsageCRLSign, certificates.UsageCodeSigning, certificates.UsageEmailProtection, certificates.UsageKeyAgreement))
	}},
	{"a usage that there is none of", func(d *draft) { d.usages = append(slices.Clone(d.usages), "root") }},
	{"no usages", func(d *draft) { d.usages = nil }},
}

var subjectMutations = []mutation{
	{"another organization", func(d *draft) {
		d.add(crafted.UTF8(crafted.Organization, pick(d.generator, "dev", "system:masters", "system:nodes", "müller")))
	}},
	{"a look-alike organization", func(d *draft) {
		d.add(crafted.UTF8(crafted.Organization, pick(d.generator, "system:masters ", "System:Masters", "ѕystem:masters", "system:\u200bmasters", "ｓystem：masters")))
	}},
	{"another common name", func(d *draft) {
		d.add(crafted.UTF8(crafted.CommonName, pick(d.generator, "jane", "system:node:w-2", "system:admin")))
	}},
	{"two serial numbers", func(d *draft) {
		d.add(printable(crafted.SerialNumber, "1"))
		d.add(printable(crafted.SerialNumber, "2"))
	}},
	{"no organization", func(d *draft) { d.subject = d.subject[max(0, len(d.subject)-1):] }},
	{"no subject", func(d *draft) { d.subject = nil }},
	{"nothing at all", func(d *draft) { d.subject, d.names = nil, nil }},
	{"one relative name", func(d *draft) { d.subject = [][]crafted.Attribute{slices.Concat(d.subject...)} }},
	{"subject in another order", func(d *draft) { slices.Reverse(d.subject) }},
	{"all attributes", func(d *draft) {
		for i, value := range []string{"7", "DE", "Köln", "NRW", "Street 1", "", "unit"} {
			if value != "" { // not the organization: the subject has one already
				d.add(crafted.UTF8(asn1.ObjectIdentifier{2, 5, 4, 5 + i}, value))
			}
		}
		d.add(crafted.UTF8(asn1.ObjectIdentifier{2, 5, 4, 17}, "50667"))
	}},
	{"an email attribute", func(d *draft) { d.add(crafted.Text(crafted.Email, asn1.TagIA5String, "a@example.com")) }},
	{"an email attribute beside a street", func(d *draft) {
		d.add(crafted.Text(crafted.Email, asn1.TagIA5String, "a@example.com"))
		d.add(crafted.UTF8(asn1.ObjectIdentifier{2, 5, 4, 9}, "Street 1"))
	}},
	{"an unknown attribute", func(d *draft) {
		d.add(crafted.UTF8(pick(d.generator, asn1.ObjectIdentifier{2, 5, 4, 12}, asn1.ObjectIdentifier{1, 2, 3}), "x"))
	}},
	{"a UID attribute", func(d *draft) { d.add(crafted.UTF8(pick(d.generator, crafted.KubernetesUID, crafted.UserID), "0")) }},
	{"an empty attribute", func(d *draft) { d.add(crafted.UTF8(asn1.ObjectIdentifier{2, 5, 4, 11}, "")) }},
	{"a number as attribute", func(d *draft) {
		d.add(crafted.Attribute{Type: pick(d.generator, crafted.CommonName, crafted.Organization), Value: asn1.RawValue{Tag: asn1.TagInteger, Bytes: []byte{1}}})
	}},
	{"a UniversalString", func(d *draft) { d.add(crafted.Text(crafted.Organization, crafted.TagUniversalString, "\x00\x00\x00a")) }},
	{"another type of string", func(d *draft) {
		d.rename(pick(d.generator, asn1.TagUTF8String, asn1.TagIA5String, crafted.TagT61String, crafted.TagBMPString), func(s string) string { return s })
	}},
	{"Latin-1", func(d *draft) {
		d.add(crafted.Text(asn1.ObjectIdentifier{2, 5, 4, 11}, crafted.TagT61String, "K\xf6ln"))
	}},
	{"a control character", func(d *draft) {
		d.rename(asn1.TagUTF8String, func(s string) string { return s + pick(d.generator, "\x00", "\n", "\x7f", "\u0085") })
	}},
	{"spaces", func(d *draft) { d.rename(asn1.TagUTF8String, func(s string) string { return s + " " }) }},
	{"a long name", func(d *draft) {
		d.rename(asn1.TagUTF8String, func(s string) string { return s + strings.Repeat("x", 100) })
	}},
}

var nodeNameMutations = []mutation{
	{"an empty node name", func(d *draft) { d.node("") }},
	{"an impossible node name", func(d *draft) {
		d.commonName(func(a *crafted.Attribute) {
			*a = crafted.UTF8(a.Type, "system:node:"+pick(d.generator, "W-1", "w_1", "w-1.", "-w", strings.Repeat("x.", 127)+"x", "a/b"))
		})
	}},
	{"a look-alike node name", func(d *draft) {
		d.commonName(func(a *crafted.Attribute) {
			*a = crafted.UTF8(a.Type, pick(d.generator, "system:node:w\u043erker", "system:node:\uff57-1", "system:node:w\u200b-1", "System:node:w-1", "ѕystem:node:w-1"))
		})
	}},
	{"a node that exists", func(d *draft) { d.node(pick(d.generator, "w-1", "w-2")) }},
	{"a node name that is claimed", func(d *draft) { d.node("taken-0") }},
	{"a node name that is reserved", func(d *draft) { d.node(fmt.Sprintf("cp-%d", d.made)) }},
	{"no node", func(d *draft) { d.rename(asn1.TagUTF8String, func(string) string { return "jane" }) }},
}

func mapped(a, b, c, e byte) []byte {
	return append(append(make([]byte, 10), 0xff, 0xff), a, b, c, e)
}

var nameMutations = []mutation{
	{"DNS names", func(d *draft) {
		d.names = append(d.names, crafted.DNSName("a.example.com"), crafted.DNSName("*.example.com"))
	}},
	{"a DNS name in upper case", func(d *draft) { d.names = append(d.names, crafted.DNSName("W-1.Example.COM")) }},
	{"a DNS name with an underscore", func(d *draft) { d.names = append(d.names, crafted.DNSName("_w_1")) }},
	{"addresses", func(d *draft) {
		d.names = append(d.names, crafted.IPName([]byte{10, 96, 0, 1}), crafted.IPName(append([]byte{0x20, 1, 0xd, 0xb8}, make([]byte, 12)...)))
	}},
	{"an IPv4 address as IPv6", func(d *draft) { d.names = append(d.names, crafted.IPName(mapped(10, 96, 0, 1))) }},
	{"an email name", func(d *draft) { d.names = append(d.names, crafted.EmailName("a@example.com")) }},
	{"a URI", func(d *draft) { d.names = append(d.names, crafted.URIName("spiffe://example.com/ns/a")) }},
	{"other kinds of names", func(d *draft) {
		d.names = append(d.names, pick(d.generator, crafted.OtherName("a@example.com"), crafted.Name(8, []byte{42, 3}),
			asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: 4, IsCompound: true, Bytes: crafted.Subject(crafted.UTF8(crafted.CommonName, "w-2"))}))
	}},
	{"an empty name", func(d *draft) {
		d.names = append(d.names, pick(d.generator, crafted.DNSName(""), crafted.EmailName("")))
	}},
	{"NUL or a space in a name", func(d *draft) {
		d.names = append(d.names, pick(d.generator, crafted.DNSName("w-1\x00.example.com"), crafted.DNSName("w 1")))
	}},
	{"a DNS name of 254 characters", func(d *draft) { d.names = append(d.names, crafted.DNSName(strings.Repeat("a.", 126)+"aa")) }},
	{"501 names", func(d *draft) {
		for i := range 501 {
			d.names = append(d.names, crafted.DNSName(fmt.Sprintf("w-%d", i)))
		}
	}},
	{"no names", func(d *draft) { d.names = nil }},
	{"a name twice", func(d *draft) { d.names = append(d.names, d.names[:min(1, len(d.names))]...) }},
}

func extension(critical bool, value []byte, oid ...int) mutation {
	return mutation{fmt.Sprintf("extension %v", oid), func(d *draft) {
		d.more = append(d.more, pkix.Extension{Id: oid, Critical: critical, Value: value})
	}}
}

var extensionMutations = []mutation{
	{"CA", func(d *draft) { d.more = append(d.more, crafted.BasicConstraints()) }},
	extension(true, []byte{0x30, 0}, 2, 5, 29, 19),
	extension(false, []byte{0x30, 9}, 2, 5, 29, 19),
	extension(true, []byte{3, 2, 1, 6}, 2, 5, 29, 15),
	extension(true, []byte{0x30, 5, 0xa0, 3, 0x30, 1, 0}, 2, 5, 29, 30),
	extension(false, []byte{0x30, 6, 6, 4, 0x55, 0x1d, 0x25, 0}, 2, 5, 29, 37),
	extension(false, []byte{4, 1, 1}, 2, 5, 29, 14),
	extension(true, []byte{1, 1, 255}, 1, 2, 3),
	extension(false, []byte{5, 0}, 1, 3, 6, 1, 4, 1, 44363, 44),
}

var encodingMutations = []mutation{
	{"text before PEM", func(d *draft) { d.wrap = func(p []byte) []byte { return append([]byte("request\n"), p...) } }},
	{"text after PEM", func(d *draft) { d.wrap = func(p []byte) []byte { return append(p, "request\n"...) } }},
	{"white space around PEM", func(d *draft) {
		d.wrap = func(p []byte) []byte { return slices.Concat([]byte("\n \n"), p, []byte("\n\n")) }
	}},
	{"two PEM blocks", func(d *draft) { d.wrap = func(p []byte) []byte { return slices.Concat(p, p) } }},
	{"a PEM header", func(d *draft) {
		d.wrap = func(p []byte) []byte { return bytes.Replace(p, []byte("-----\n"), []byte("-----\na: b\n\n"), 1) }
	}},
	{"another type of PEM", func(d *draft) {
		d.wrap = func(p []byte) []byte {
			return bytes.ReplaceAll(p, []byte("CERTIFICATE REQUEST"), []byte("NEW CERTIFICATE REQUEST"))
		}
	}},
	{"a wrong signature", func(d *draft) {
		d.wrap = func(p []byte) []byte {
			block, _ := pem.Decode(p)
			block.Bytes[len(block.Bytes)-1] ^= 1
			return pem.EncodeToMemory(block)
		}
	}},
	{"data after DER", func(d *draft) {
		d.wrap = func(p []byte) []byte {
			block, _ := pem.Decode(p)
			return crafted.PEM(append(block.Bytes, 0))
		}
	}},
}
