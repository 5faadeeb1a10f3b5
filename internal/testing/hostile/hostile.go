// Package hostile contains certificate requests that kubejoin must refuse, each with a part of the expected error.
// Only tests use it.
package hostile

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/crafted"
	certificates "k8s.io/api/certificates/v1"
)

// CustomSigner is the name of a signer without additional checks. The test configures it.
const CustomSigner = "example.com/etcd-peer"

// A Case is a request that must never get a certificate, even if someone approves it.
type Case struct {
	Name     string
	Signer   string
	PEM      []byte
	Usages   []certificates.KeyUsage
	Duration time.Duration // zero means that no duration is requested
	Want     string        // part of the refusal
}

// Corpus returns all cases.
func Corpus() []Case {
	const kubelet, serving, user = certificates.KubeAPIServerClientKubeletSignerName, certificates.KubeletServingSignerName, certificates.KubeAPIServerClientSignerName
	key := newKey(elliptic.P256())
	request := func(subject []byte, extensions ...pkix.Extension) []byte {
		return crafted.PEM(must(crafted.Request(key, subject, extensions...)))
	}
	cn, o := crafted.CommonName, crafted.Organization
	node := func(name string) []byte {
		return crafted.Subject(crafted.UTF8(o, "system:nodes"), crafted.UTF8(cn, "system:node:"+name))
	}
	jane := func(more ...crafted.Attribute) []byte {
		return crafted.Subject(append([]crafted.Attribute{crafted.UTF8(cn, "jane")}, more...)...)
	}
	named := func(names ...asn1.RawValue) []byte { return request(node("worker-1"), crafted.SAN(names...)) }
	der := func(data []byte) []byte { return bytes.Clone(data) }
	good := must(crafted.Request(key, node("worker-1")))
	forged := der(good)
	forged[len(forged)-1] ^= 1
	var many, tooMany []asn1.RawValue
	for i := range 10_000 {
		many = append(many, crafted.DNSName(fmt.Sprintf("%02x", i%256)))
		tooMany = append(tooMany, crafted.DNSName(fmt.Sprintf("worker-%d.example.com", i)))
	}
	corpus := []Case{
		{Name: "CA", PEM: request(jane(), crafted.BasicConstraints()), Want: "is for a CA certificate"},
		{Name: "two common names", PEM: request(jane(crafted.UTF8(cn, "admin"))), Want: "attribute 2.5.4.3 more than once"},
		{Name: "two common names of a node", Signer: kubelet, Want: "attribute 2.5.4.3 more than once",
			PEM: request(crafted.Subject(crafted.UTF8(o, "system:nodes"), crafted.UTF8(cn, "system:node:worker-2"), crafted.UTF8(cn, "system:node:worker-1")))},
		{Name: "two common names in one relative name", Want: "attribute 2.5.4.3 more than once",
			PEM: request(crafted.MultiValued([]crafted.Attribute{crafted.UTF8(cn, "jane"), crafted.UTF8(cn, "admin")}))},
		{Name: "two serial numbers", PEM: request(jane(crafted.UTF8(crafted.SerialNumber, "1"), crafted.UTF8(crafted.SerialNumber, "2"))), Want: "attribute 2.5.4.5 more than once"},
		{Name: "several organizations of a node", Signer: kubelet, Want: `subject organization is ["system:nodes" "dev"]`,
			PEM: request(crafted.Subject(crafted.UTF8(o, "system:nodes"), crafted.UTF8(o, "dev"), crafted.UTF8(cn, "system:node:worker-1")))},
		{Name: "several organizations of a server", Signer: serving, Want: `subject organization is ["dev" "system:nodes"]`,
			PEM: request(crafted.Subject(crafted.UTF8(o, "dev"), crafted.UTF8(o, "system:nodes"), crafted.UTF8(cn, "system:node:worker-1")), crafted.SAN(crafted.DNSName("worker-1")))},
		{Name: "user ID", PEM: request(jane(crafted.UTF8(crafted.KubernetesUID, "0"))), Want: "UID attribute (1.3.6.1.4.1.57683.2)"},
		{Name: "user ID of LDAP", PEM: request(jane(crafted.UTF8(crafted.UserID, "0"))), Want: "UID attribute (0.9.2342.19200300.100.1.1)"},
		{Name: "empty node name", Signer: kubelet, PEM: request(node("")), Want: "the node name is empty"},
		{Name: "empty node name of a server", Signer: serving, PEM: request(node(""), crafted.SAN(crafted.DNSName("worker-1"))), Want: "the node name is empty"},
		{Name: "no names at all", PEM: request(nil), Want: "neither a subject nor subject alternative names"},
		{Name: "empty attribute", PEM: request(jane(crafted.UTF8(o, ""))), Want: "attribute 2.5.4.10 is empty"},
		{Name: "NUL in the common name", PEM: request(crafted.Subject(crafted.UTF8(cn, "jane\x00.example.com"))), Want: `control character: "jane\x00.example.com"`},
		{Name: "NUL in a node name", Signer: kubelet, PEM: request(node("worker-1\x00")), Want: "control character"},
		{Name: "a new line in the organization", PEM: request(jane(crafted.UTF8(o, "dev\nops"))), Want: "control character"},
		{Name: "a common name that is a number", PEM: request(crafted.Subject(crafted.Attribute{Type: cn, Value: asn1.RawValue{Tag: asn1.TagInteger, Bytes: []byte{1}}})), Want: "attribute 2.5.4.3 is not text"},
		{Name: "a common name as UniversalString", PEM: request(crafted.Subject(crafted.Text(cn, crafted.TagUniversalString, "\x00\x00\x00j"))), Want: "attribute 2.5.4.3 is not text"},
		{Name: "other name", Signer: kubelet, PEM: named(crafted.OtherName("admin@example.com")), Want: "name 1 is of kind otherName"},
		{Name: "other name after a good one", Signer: serving, PEM: named(crafted.DNSName("worker-1"), crafted.OtherName("admin@example.com")), Want: "name 2 is of kind otherName"},
		{Name: "directory name", Signer: serving, Want: "name 2 is of kind directoryName",
			PEM: named(crafted.DNSName("worker-1"), asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: 4, IsCompound: true, Bytes: node("worker-2")})},
		{Name: "registered ID", Signer: serving, PEM: named(crafted.DNSName("worker-1"), crafted.Name(8, []byte{42, 3})), Want: "name 2 is of kind registeredID"},
		{Name: "email of a node", Signer: kubelet, PEM: named(crafted.EmailName("a@example.com")), Want: "1 email subject alternative names given, want none"},
		{Name: "URI of a node", Signer: kubelet, PEM: named(crafted.URIName("spiffe://example.com/a")), Want: "1 URI subject alternative names given, want none"},
		{Name: "DNS name of a node", Signer: kubelet, PEM: named(crafted.DNSName("worker-1")), Want: "1 DNS subject alternative names given, want none"},
		{Name: "address of a node", Signer: kubelet, PEM: named(crafted.IPName([]byte{192, 0, 2, 1})), Want: "1 IP subject alternative names given, want none"},
		{Name: "email of a server", Signer: serving, PEM: named(crafted.DNSName("worker-1"), crafted.EmailName("a@example.com")), Want: "1 email subject alternative names given, want none"},
		{Name: "URI of a server", Signer: serving, PEM: named(crafted.DNSName("worker-1"), crafted.URIName("https://worker-1")), Want: "1 URI subject alternative names given, want none"},
		{Name: "server without names", Signer: serving, PEM: request(node("worker-1")), Want: "no DNS or IP subject alternative name given"},
		{Name: "NUL in a DNS name", Signer: serving, PEM: named(crafted.DNSName("worker-1\x00.example.com")), Want: "not printable ASCII"},
		{Name: "empty DNS name", Signer: serving, PEM: named(crafted.DNSName("")), Want: "is of kind DNS and empty"},
		{Name: "DNS name of 254 characters", Signer: serving, PEM: named(crafted.DNSName(strings.Repeat("a.", 126) + "aa")), Want: "is of kind DNS and has 254 characters"},
		{Name: "IPv4 address as IPv6", Signer: serving, PEM: named(crafted.IPName([]byte("\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x0a\x60\x00\x01"))), Want: "IPv4-mapped IPv6 address"},
		{Name: "10,000 names", Signer: serving, PEM: named(many...), Want: "more than 500 subject alternative names"},
		{Name: "10,000 longer names", Signer: serving, PEM: named(tooMany...), Want: "bytes, want at most 65536"},
		{Name: "duplicate extensions", PEM: request(jane(), crafted.SAN(crafted.DNSName("a")), crafted.SAN(crafted.DNSName("b"))), Want: "duplicate"},
		{Name: "RSA 512", PEM: crafted.PEM(crafted.RSA(512, jane())), Want: "the RSA key has 512 bits"},
		{Name: "RSA 16384", PEM: crafted.PEM(crafted.RSA(16384, jane())), Want: "the RSA key has 16384 bits"},
		{Name: "P-224", PEM: crafted.PEM(must(crafted.Request(newKey(elliptic.P224()), jane()))), Want: "on curve P-224"},
		{Name: "ML-DSA-65", Signer: kubelet, PEM: crafted.PEM(crafted.MLDSA65(node("worker-1"))), Want: "the key has the algorithm 2.16.840.1.101.3.4.3.18, want RSA, ECDSA or Ed25519"},
		{Name: "wrong signature", Signer: kubelet, PEM: crafted.PEM(forged), Want: "not signed by its own key"},
		{Name: "trailing data in DER", PEM: crafted.PEM(append(der(good), 0)), Want: "cannot be parsed"},
		{Name: "trailing data in PEM", PEM: append(crafted.PEM(good), "and more"...), Want: "data around the PEM block"},
		{Name: "data before PEM", PEM: append([]byte("Certificate Request:\n"), crafted.PEM(good)...), Want: "data around the PEM block"},
		{Name: "two PEM blocks", PEM: append(crafted.PEM(good), crafted.PEM(good)...), Want: "there are 2 PEM blocks"},
		{Name: "10 MB", PEM: bytes.Repeat([]byte("A"), 10<<20), Want: "10485760 bytes, want at most 65536"},
		{Name: "10 MB of PEM", PEM: crafted.PEM(make([]byte, 10<<20)), Want: "bytes, want at most 65536"},
		{Name: "10 MB of PEM blocks", PEM: bytes.Repeat(crafted.PEM(good), (10<<20)/len(crafted.PEM(good))), Want: "bytes, want at most 65536"},
		{Name: "no usages", PEM: request(jane()), Usages: []certificates.KeyUsage{}, Want: `usages are none, want client auth`},
		{Name: "usages of a server for a node", Signer: kubelet, PEM: request(node("worker-1")), Want: `want digital signature and client auth`,
			Usages: []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageServerAuth}},
		{Name: "one usage too many for a server", Signer: serving, PEM: named(crafted.DNSName("worker-1")), Want: `want digital signature and server auth`,
			Usages: []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageServerAuth, certificates.UsageClientAuth}},
		{Name: "usage any for a user", PEM: request(jane()), Usages: []certificates.KeyUsage{certificates.UsageClientAuth, certificates.UsageAny}, Want: `usage "any" is not allowed`},
		{Name: "usage of a CA", PEM: request(jane()), Usages: []certificates.KeyUsage{certificates.UsageClientAuth, certificates.UsageCertSign}, Want: `usage "cert sign" is not allowed`},
		{Name: "usage that there is none of", PEM: request(jane()), Signer: CustomSigner, Usages: []certificates.KeyUsage{"root"}, Want: `usage "root" is not allowed`},
		{Name: "negative duration", PEM: request(jane()), Duration: -time.Hour, Want: "lifetime of -1h"},
	}
	for _, signerName := range []string{kubelet, serving, user, CustomSigner} {
		for encoding, subject := range mastersSubjects() {
			corpus = append(corpus, Case{
				Name: "masters/" + signerName + "/" + encoding, Signer: signerName, PEM: request(subject, crafted.SAN(crafted.DNSName("worker-1"))), Want: "system:masters",
			})
		}
	}
	for what, name := range map[string]string{
		"upper case": "Worker-1", "Cyrillic": "w\u043erker-1", "fullwidth": "\uff57orker-1", "zero width": "wor\u200bker-1", "underscore": "worker_1", "dot": "worker-1.",
		"254 characters": strings.Repeat("a.", 126) + "aa", "slash": "../worker-1", "accent": "w\u00f6rker-1",
	} {
		for _, signerName := range []string{kubelet, serving} {
			h := Case{Name: "node name/" + signerName + "/" + what, Signer: signerName, PEM: request(node(name)), Want: "invalid subject: node name"}
			if signerName == serving {
				h.PEM = request(node(name), crafted.SAN(crafted.DNSName("worker-1")))
			}
			if slices.ContainsFunc([]byte(name), func(b byte) bool { return b > 0x7f }) {
				h.Want = `the subject has name "system:node:w`
				if what == "fullwidth" {
					h.Want = `the subject has name "system:node:\uff57orker-1", which looks like "system:node:worker-1"`
				}
			}
			corpus = append(corpus, h)
		}
	}
	for i := range corpus {
		r := &corpus[i]
		if r.Signer == "" {
			r.Signer = user
		}
		if r.Usages == nil {
			r.Usages = []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth}
			if r.Signer == serving {
				r.Usages[1] = certificates.UsageServerAuth
			}
		}
	}
	return corpus
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func newKey(curve elliptic.Curve) crypto.Signer { return must(ecdsa.GenerateKey(curve, rand.Reader)) }

// mastersSubjects returns subjects that are in group system:masters, or look like it, by name.
func mastersSubjects() map[string][]byte {
	const group = "system:masters"
	cn, o := crafted.UTF8(crafted.CommonName, "jane"), crafted.Organization
	subjects := map[string][]byte{
		"second":       crafted.Subject(cn, crafted.UTF8(o, "dev"), crafted.UTF8(o, group)),
		"multi-valued": crafted.MultiValued([]crafted.Attribute{cn, crafted.UTF8(o, group)}),
		"of a node":    crafted.Subject(crafted.UTF8(o, "system:nodes"), crafted.UTF8(o, group), crafted.UTF8(crafted.CommonName, "system:node:worker-1")),
	}
	for name, tag := range map[string]int{"PrintableString": asn1.TagPrintableString, "UTF8String": asn1.TagUTF8String, "IA5String": asn1.TagIA5String, "BMPString": crafted.TagBMPString, "T61String": crafted.TagT61String} {
		subjects[name] = crafted.Subject(cn, crafted.Text(o, tag, group))
	}
	for name, value := range map[string]string{
		"trailing space": group + " ", "leading space": " " + group, "upper case": "System:Masters", "fullwidth": "ｓｙｓｔｅｍ：ｍａｓｔｅｒｓ",
		"Cyrillic": "ѕуѕtеm:mаstеrs", "Greek": "system:mαsters", "zero width": "system:\u200bmasters", "soft hyphen": "sys\u00adtem:masters", "accent": "system:m\u0301asters",
		"no-break space": "system:masters\u00a0", "mathematical": "𝘀𝘆𝘀𝘁𝗲𝗺:masters", "other colon": "system\ua789masters", "small capitals": "ꜱʏꜱᴛᴇᴍ:ᴍᴀꜱᴛᴇʀꜱ",
	} {
		subjects[name] = crafted.Subject(cn, crafted.UTF8(o, value))
	}
	subjects["with NUL"] = crafted.Subject(cn, crafted.UTF8(o, group+"\x00"))
	return subjects
}
