package config_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/config"
)

// whole is a configuration file with every field.
const whole = `apiVersion: kubejoin.io/v1alpha1
kind: SignerConfiguration
signers:
- name: kubernetes.io/kube-apiserver-client-kubelet
  approval: [selfnodeclient, nodeclient]
- name: kubernetes.io/kubelet-serving
  duration: {min: 1h, default: 720h, max: 2160h}
  approval: [kubelet-serving]
- name: example.com/etcd-peer
  ca: {certFile: etcd/ca.crt, keyFile: /etc/etcd/ca.key, passphraseFile: etcd/passphrase}
  duration: {min: 10m, default: 24h, max: 720h}
  usages: [digital signature, key encipherment, server auth, client auth]
  subject: {commonNames: ["etcd-*"], organizations: [etcd]}
  names: {dns: ["*.etcd.example.com"], wildcards: ["*.apps.example.com"], ips: [10.0.0.0/8, "2001:db8::1"], emails: ["*@example.com"], uris: ["spiffe://example.com/*"]}
  keys: {rsa: {min: 3072, max: 4096}, ecdsa: [P-256, P-384], ed25519: true}
  approval: [may-sign]
`

func TestParseReadsEveryField(t *testing.T) {
	c := must.Value(config.Parse("/etc/kubejoin/signers.yaml", []byte(whole)))(t)
	if len(c.Signers) != 3 || c.Signers[2].CA != (config.CAFiles{CertFile: "/etc/kubejoin/etcd/ca.crt", KeyFile: "/etc/etcd/ca.key", PassphraseFile: "/etc/kubejoin/etcd/passphrase"}) {
		t.Errorf("%+v", c)
	}
	if want := []string{"/etc/kubejoin/etcd/ca.crt", "/etc/etcd/ca.key", "/etc/kubejoin/etcd/passphrase"}; !slices.Equal(c.Files(), want) {
		t.Errorf("got files %q, want %q", c.Files(), want)
	}
	if got := config.KeyPolicy(c.Signers[2].Keys).String(); got != "RSA 3072 to 4096 bits, ECDSA P-256, ECDSA P-384, Ed25519" {
		t.Errorf("got keys %q", got)
	}
}

// The default configuration that kubejoin prints must give the same signers as no file.
func TestDefaultFileMatchesDefaults(t *testing.T) {
	c := must.Value(config.Parse("default.yaml", []byte(config.Default)))(t)
	ca := newCA(t)
	signers := must.Value(c.Build(config.Defaults{CA: signer.Fixed(ca)}))(t)
	want := must.Get(signer.KubernetesSigners(signer.Fixed(ca), 0))
	if len(signers) != len(want) {
		t.Errorf("%v", signers)
	}
	for name, s := range want {
		if !reflect.DeepEqual(signers[name].Profile(), s.Profile()) {
			t.Errorf("%s: got profile %+v, want %+v", name, signers[name].Profile(), s.Profile())
		}
	}
}

func TestErrorsNameFileLineAndField(t *testing.T) {
	const head = "apiVersion: kubejoin.io/v1alpha1\nkind: SignerConfiguration\nsigners:\n"
	const durationRules = "want a duration such as 720h, from 3m to 2562047h"
	const dnsRules = "want a DNS name of at most 253 characters: labels of [a-z0-9-] separated by dots, other letters in xn-- form, the last one not a number"
	const known = head + "- name: kubernetes.io/kube-apiserver-client\n  " // the next line is line 5
	const custom = head + "- name: example.com/x\n  subject: {commonNames: [x]}\n  usages: [server auth]\n  "
	for _, test := range []struct {
		name, file string
		want       []string // without the file name
	}{
		{"empty", "", []string{": the file is empty, want a SignerConfiguration"}},
		{"comment", "# nothing\n", []string{": the file is empty, want a SignerConfiguration"}},
		{"null", "~\n", []string{":1: nothing given, want the fields apiVersion, kind, signers"}},
		{"list", "- a\n", []string{":1: a list given, want the fields apiVersion, kind, signers"}},
		{"no YAML", "a: [\n", []string{`:1: invalid YAML: did not find expected node content`}},
		{"tab", "a:\n\tb: c\n", []string{`:2: invalid YAML: found character that cannot start any token`}},
		{"too long", strings.Repeat("#\n", config.MaxSize/2) + "\n", []string{": the file is larger than 65536 bytes"}},
		{"two documents", head + "- name: kubernetes.io/kubelet-serving\n---\na: b\n", []string{":5: a second YAML document begins here, want only one"}},
		{"anchor", head + "- &a\n  name: kubernetes.io/kubelet-serving\n", []string{":4: YAML anchors (&) and aliases (*) are not supported: repeat the value, and put a value that begins with * in quotes"}},
		{"alias", head + "- name: &x kubernetes.io/kubelet-serving\n- name: *x\n", []string{":4: YAML anchors (&) and aliases (*) are not supported: repeat the value, and put a value that begins with * in quotes"}},
		{"no quotes", custom + "names: {dns: [*.example.com]}\n", []string{`:7: invalid YAML: did not find expected alphabetic or numeric character: put a value that begins with * in quotes`}},
		{"no quotes at all", custom + "names: {dns: [*example]}\n", []string{`:7: invalid YAML: unknown anchor 'example' referenced: put a value that begins with * in quotes`}},
		{"merge", known + "<<: {approval: []}\n", []string{`:5: signers[0]: unknown field "<<", want one of name, ca, duration, usages, subject, names, keys, approval`}},
		{"missing", "kind: SignerConfiguration\n", []string{":1: apiVersion: missing", ":1: signers: missing"}},
		{"other kind", "apiVersion: v1\nkind: Secret\nsigners: []\n", []string{
			`:1: apiVersion: "v1" given, want kubejoin.io/v1alpha1`, `:2: kind: "Secret" given, want SignerConfiguration`, ":3: signers: the list is empty, want at least one item"}},
		{"unknown field", known + "usage: [client auth]\n", []string{`:5: signers[0]: unknown field "usage", want one of name, ca, duration, usages, subject, names, keys, approval`}},
		{"unknown field within", known + "duration:\n    minimum: 1h\n", []string{`:6: signers[0].duration: unknown field "minimum", want one of min, default, max`}},
		{"key that is no text", known + "1: x\n", []string{`:5: signers[0]: unknown field "1", want one of name, ca, duration, usages, subject, names, keys, approval`}},
		{"repeated field", known + "approval: []\n  keys: {ed25519: true}\n  approval: [may-sign]\n", []string{":7: signers[0].approval: duplicate field, first in line 5"}},
		{"nothing", known + "duration:\n", []string{":5: signers[0].duration: nothing given, want the fields min, default, max"}},
		{"no list", known + "approval: may-sign\n", []string{`:5: signers[0].approval: "may-sign" given, want a list of rules`}},
		{"mapping for a text", known + "approval: [{a: b}]\n", []string{`:5: signers[0].approval[0]: a mapping given, want the name of a rule`}},
		{"mapping of another tag", known + "duration: !x {max: 1h}\n", []string{`:5: signers[0].duration: a mapping given, want the fields min, default, max`}},
		{"text tagged as a mapping", known + "duration: !!map 1h\n", []string{`:5: signers[0].duration: "1h" given, want the fields min, default, max`}},
		{"list for a key", known + "? [approval]\n  : []\n", []string{`:5: signers[0]: unknown field a list, want one of name, ca, duration, usages, subject, names, keys, approval`}},
		{"key of another tag", known + "!x approval: []\n", []string{`:5: signers[0]: unknown field "approval", want one of name, ca, duration, usages, subject, names, keys, approval`}},
		{"mapping tagged as a text", known + "approval: [!!str {a: b}]\n", []string{`:5: signers[0].approval[0]: a mapping given, want the name of a rule`}},
		{"text tagged as a number", known + "keys: {rsa: {min: !!int x}}\n", []string{`:5: signers[0].keys.rsa.min: "x" given, want a number of bits from 2048 to 8192`}},
		{"list tagged as a number", known + "keys: {rsa: {min: !!int [2048]}}\n", []string{`:5: signers[0].keys.rsa.min: a list given, want a number of bits from 2048 to 8192`}},
		{"text for a signer", head + "- x\n", []string{`:4: signers[0]: "x" given, want the fields name, ca, duration, usages, subject, names, keys, approval`}},
		{"duration of another tag", known + "duration: {max: !x 1h}\n", []string{`:5: signers[0].duration.max: "1h" given, ` + durationRules}},
		{"list for a duration", known + "duration: {max: [1h]}\n", []string{`:5: signers[0].duration.max: a list given, ` + durationRules}},
		{"list for a range", known + "names: {ips: [[10.0.0.0/8], !x 10.0.0.0/8]}\n", []string{
			`:5: signers[0].names.ips[0]: a list given, want an address or a range such as 10.0.0.0/8`, `:5: signers[0].names.ips[1]: "10.0.0.0/8" given, want an address or a range such as 10.0.0.0/8`}},
		{"own tag", known + "approval: !x []\n", []string{`:5: signers[0].approval: a list given, want a list of rules`}},

		{"no name", head + "- approval: []\n- approval: []\n", []string{":4: signers[0].name: missing", ":5: signers[1].name: missing"}},
		{"number for a name", head + "- name: 5\n", []string{`:4: signers[0].name: "5" given, want DOMAIN/NAME`}},
		{"no domain", head + "- name: etcd\n", []string{`:4: signers[0].name: "etcd" given, want DOMAIN/NAME such as example.com/etcd-peer: a lower-case domain with a dot, labels of at most 63 characters, and a name of [a-z0-9.-]`}},
		{"legacy", head + "- name: kubernetes.io/legacy-unknown\n", []string{":4: signers[0].name: kubernetes.io/legacy-unknown is not supported, because its certificates are valid for every purpose; use a signer in your own domain"}},
		{"of Kubernetes", head + "- name: kubernetes.io/mine\n", []string{`:4: signers[0].name: "kubernetes.io/mine" given, want one of kubernetes.io/kube-apiserver-client, kubernetes.io/kube-apiserver-client-kubelet, kubernetes.io/kubelet-serving, or a signer in your own domain`}},
		{"name twice", known + "approval: []\n- name: kubernetes.io/kube-apiserver-client\n", []string{":6: signers[1].name: duplicate signer kubernetes.io/kube-apiserver-client, first defined in line 4"}},

		{"half a CA", known + "ca: {certFile: ca.crt}\n", []string{":5: signers[0].ca.keyFile: missing"}},
		{"a key for its path", known + "ca:\n    certFile: ca.crt\n    keyFile: |\n      -----BEGIN PRIVATE KEY-----\n      c2VjcmV0\n", []string{":7: signers[0].ca.keyFile: a text of 37 bytes given, want the path of a file"}},
		{"a key in one line", known + "ca: {certFile: ca.crt, keyFile: '-----BEGIN EC PRIVATE KEY-----c2VjcmV0'}\n", []string{":5: signers[0].ca.keyFile: a text of 38 bytes given, want the path of a file"}},
		{"a key for a mapping", known + "ca: '-----BEGIN EC PRIVATE KEY-----c2VjcmV0'\n", []string{":5: signers[0].ca: a text of 38 bytes given, want the fields certFile, keyFile, passphraseFile"}},

		{"duration", known + "duration:\n    max: 3y\n    min: 2\n", []string{`:6: signers[0].duration.max: "3y" given, ` + durationRules, `:7: signers[0].duration.min: "2" given, ` + durationRules}},
		{"short", known + "duration: {min: 2m}\n", []string{`:5: signers[0].duration.min: "2m" given, ` + durationRules}},
		{"huge", known + "duration: {max: 999999999h}\n", []string{`:5: signers[0].duration.max: "999999999h" given, ` + durationRules}},
		{"default above max", known + "duration: {default: 48h, max: 24h}\n", []string{":5: signers[0].duration: default duration of certificates is 48h, want at most the longest duration 24h"}},
		{"default below min", known + "duration:\n    min: 1h\n    default: 5m\n    max: 2h\n", []string{":5: signers[0].duration: default duration of certificates is 5m, want at least the shortest duration 1h"}},
		{"min above max", known + "duration: {min: 48h, max: 24h}\n", []string{":5: signers[0].duration: shortest duration of certificates is 48h, want at most the longest duration 24h"}},

		{"usage", known + "usages: [client auth, clientAuth]\n", []string{`:5: signers[0].usages[1]: "clientAuth" given, want a usage that a certificate can have, such as "server auth"`}},
		{"cert sign", known + "usages: [cert sign]\n", []string{`:5: signers[0].usages[0]: "cert sign" given, want a usage that a certificate can have, such as "server auth"`}},
		{"number for a usage", known + "usages: [5]\n", []string{`:5: signers[0].usages[0]: "5" given, want a usage such as "server auth"`}},
		{"no usages", known + "usages: []\n", []string{":5: signers[0].usages: the list is empty, want at least one item"}},
		{"wider", known + "usages: [client auth, server auth]\n", []string{`:5: signers[0].usages: "server auth" given, want some of digital signature, key encipherment and client auth, the usages of signer kubernetes.io/kube-apiserver-client`}},
		{"too narrow", known + "usages: [digital signature]\n", []string{`:5: signers[0].usages: "client auth" is missing, but every request for signer kubernetes.io/kube-apiserver-client needs it`}},
		{"no usages of a custom signer", head + "- name: example.com/x\n  names: {dns: [x]}\n", []string{":4: signers[0].usages: missing"}},
		{"good for everything", head + "- name: example.com/x\n  names: {dns: [x]}\n  usages: [digital signature]\n", []string{`:6: signers[0].usages: digital signature given, want at least one extended key usage such as "server auth": without one, a certificate is valid for every purpose`}},
		{"any", head + "- name: example.com/x\n  names: {dns: [x]}\n  usages: [any, server auth]\n", []string{`:6: signers[0].usages: "any" given, want specific usages: with it, a certificate is valid for every purpose`}},

		{"nobody", head + "- name: example.com/x\n  usages: [server auth]\n  names: {dns: []}\n", []string{":4: signers[0].subject: neither subject.commonNames nor names given, want one of them: otherwise a certificate identifies nobody"}},
		{"masters", custom + "subject: {}\n", []string{":7: signers[0].subject: duplicate field, first in line 5"}},
		{"system:masters", known + "subject: {organizations: ['system:masters']}\n", []string{`:5: signers[0].subject.organizations[0]: "system:masters" is not allowed: permissions of this group cannot be revoked`}},
		{"control character", known + "subject: {commonNames: [\"a\\tb\"]}\n", []string{`:5: signers[0].subject.commonNames[0]: "a\tb" given, want only printable characters`}},
		{"empty pattern", custom + "names: {dns: ['']}\n", []string{`:7: signers[0].names.dns[0]: "" given, want one of DNS names`}},

		// TestRefusesInvalidPatterns tests more patterns.
		{"DNS", custom + "names: {dns: ['**.example.com']}\n", []string{`:7: signers[0].names.dns[0]: "**.example.com" given, want * instead of **: a * matches characters of one label`}},
		{"wildcards", custom + "names: {wildcards: [x, '*.com']}\n", []string{
			`:7: signers[0].names.wildcards[0]: "x" given, want a name such as *.example.com`, `:7: signers[0].names.wildcards[1]: "*.com" given, want a name such as *.example.com`}},
		{"emails", custom + "names: {emails: ['a@**']}\n", []string{`:7: signers[0].names.emails[0]: "**" given, want * instead of **: a * matches characters of one label`}},
		{"URIs", custom + "names: {uris: ['https://u@x/']}\n", []string{`:7: signers[0].names.uris[0]: "u@x" given, ` + dnsRules}},
		{"addresses", custom + "names:\n    ips:\n    - 10.0.0.1/8\n    - ::ffff:10.0.0.0/104\n    - fe80::1%eth0\n    - 10.0.0.0/33\n    - etcd-0\n", []string{
			`:9: signers[0].names.ips[0]: "10.0.0.1/8" given, want 10.0.0.0/8, or 10.0.0.1 for the single address`,
			`:10: signers[0].names.ips[1]: "::ffff:10.0.0.0/104" given, want IPv4 addresses in IPv4 notation`,
			`:11: signers[0].names.ips[2]: "fe80::1%eth0" given, want an address or a range such as 10.0.0.0/8`,
			`:12: signers[0].names.ips[3]: "10.0.0.0/33" given, want an address or a range such as 10.0.0.0/8`,
			`:13: signers[0].names.ips[4]: "etcd-0" given, want an address or a range such as 10.0.0.0/8`,
		}},
		{"many", custom + "names: {dns: [" + strings.Repeat("x,", 101) + "]}\n", []string{":7: signers[0].names.dns: 101 items given, want at most 100"}},

		{"no keys", known + "keys: {}\n", []string{":5: signers[0].keys: no key type is allowed, want at least one of rsa, ecdsa and ed25519; leave out keys to allow all of them"}},
		{"keys", known + "keys:\n    rsa: {min: 1024, max: 3e3}\n    ecdsa: [P-224]\n    ed25519: yes please\n", []string{
			`:6: signers[0].keys.rsa.min: "1024" given, want a number of bits from 2048 to 8192`,
			`:6: signers[0].keys.rsa.max: "3e3" given, want a number of bits from 2048 to 8192`,
			`:7: signers[0].keys.ecdsa[0]: "P-224" given, want P-256 or P-384 or P-521`,
			`:8: signers[0].keys.ed25519: "yes please" given, want true or false`,
		}},
		{"keys the wrong way round", known + "keys: {rsa: {min: 4096, max: 3072}}\n", []string{":5: signers[0].keys: RSA key sizes are 4096 to 3072 bits, want a range within 2048 to 8192"}},

		{"rule", known + "approval: [may-sign, everybody]\n", []string{`:5: signers[0].approval: "everybody" given, want may-sign for this signer`}},
		{"rule twice", known + "approval: [may-sign, may-sign]\n", []string{`:5: signers[0].approval: approval rule may-sign is listed twice: want each of selfnodeclient, nodeclient, kubelet-serving, may-sign at most once`}},
		{"rule of another signer", known + "approval: [kubelet-serving]\n", []string{`:5: signers[0].approval: "kubelet-serving" given, want may-sign for this signer`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, _, err := config.Compile("dir/signers.yaml", []byte(test.file), config.Defaults{CA: noCA})
			if err == nil {
				t.Fatal("got no error")
			}
			want := strings.Join(prefixed("dir/signers.yaml", test.want), "\n")
			if err.Error() != want {
				t.Errorf("got\n%s\nwant\n%s", err, want)
			}
			if strings.Contains(err.Error(), "c2Vj") {
				t.Error("the error contains a key")
			}
			var first *config.Error
			if !errors.As(err, &first) || first.File != "dir/signers.yaml" {
				t.Errorf("got %T, want a *config.Error", err)
			}
		})
	}
}

func noCA() (*signer.CA, error) { return nil, errors.New("no CA") }

func prefixed(prefix string, lines []string) []string {
	var all []string
	for _, line := range lines {
		all = append(all, prefix+line)
	}
	return all
}

// Catches an error that names a value that the file cannot have.
func TestAcceptsWhatErrorsName(t *testing.T) {
	ca := signer.Fixed(newCA(t))
	const kubelet, own = "{name: kubernetes.io/kubelet-serving, ", "{name: example.com/x, usages: [server auth], "
	const limit = "kind: TokenLimits\nrules: [{name: a, "
	const requester = "kind: SignerPolicy\nrequesters: [{name: a, signers: [{name: kubernetes.io/kube-apiserver-client-kubelet}], "
	list := func(signer string) string { return "kind: SignerConfiguration\nsigners: [" + signer + "}]" }
	for _, test := range []struct {
		file, wrong string // @ is the value
		values      []string
	}{
		{"kind: @\nsigners: [{name: kubernetes.io/kubelet-serving}]", "x", []string{"SignerConfiguration"}},
		{list("{name: @"), "kubernetes.io/x", []string{"kubernetes.io/kube-apiserver-client", "kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving"}},
		{list("{name: @, usages: [server auth], names: {dns: [x]}"), "x", []string{"example.com/etcd-peer"}},
		{list(kubelet + "duration: {max: @}"), "x", []string{"720h", "3m", "2562047h"}},
		{list(kubelet + "duration: {min: @}"), "x", []string{"720h", "3m"}},
		{list("{name: example.com/x, names: {dns: [x]}, usages: [@]"), "x", []string{"server auth"}},
		{list("{name: example.com/x, names: {dns: [x]}, usages: [@]"), "[]", []string{"server auth"}},
		{list("{name: example.com/x, names: {dns: [x]}, usages: [@]"), "digital signature", []string{"server auth"}},
		{list(kubelet + "usages: [digital signature, server auth, @]"), "client auth", []string{"key encipherment", "digital signature", "server auth"}},
		{list(own + "names: {dns: [x]}, approval: [@]"), "nodeclient", []string{"may-sign"}},
		{list(own + "names: {ips: ['@']}"), "x", []string{"10.0.0.0/8"}},
		{list(own + "names: {ips: ['@']}"), "10.0.0.1/8", []string{"10.0.0.0/8", "10.0.0.1"}},
		{list(own + "names: {wildcards: ['@']}"), "x", []string{"*.example.com"}},
		{list(own + "names: {emails: ['@']}"), "x", []string{"*@example.com"}},
		{list(own + "names: {uris: ['@']}"), "x", []string{"spiffe://example.com/ns/*/sa/*"}},
		{list(kubelet + "keys: {rsa: {min: @}}"), "1", []string{"2048", "8192"}},
		{list(kubelet + "keys: {rsa: {max: @}}"), "9999", []string{"2048", "8192"}},
		{list(kubelet + "keys: {ecdsa: [@]}"), "x", []string{"P-256", "P-384", "P-521"}},
		{list(kubelet + "keys: {rsa: {}, ed25519: @}"), "x", []string{"true", "false"}},
		{list(kubelet + "approval: [@]"), "x", []string{"kubelet-serving", "may-sign"}},
		{list("{name: kubernetes.io/kube-apiserver-client-kubelet, approval: [@]"), "x", []string{"selfnodeclient", "nodeclient", "may-sign"}},
		{requester + "rate: {qps: @, burst: 1}}]", "0", []string{"1000"}},
		{requester + "rate: {qps: 1000, burst: @}}]", "0", []string{"1", "100000"}},
		{requester + "rate: {qps: 1, burst: 1}, uid: @}]", "x", []string{"998"}},
		{requester + "rate: {qps: 1, burst: 1}}]\nnever: [@]", "[]", []string{"cp-*", "10.96.0.0/12"}},
		{limit + "role: @}]", "x", []string{"worker"}},
		{limit + "rejoin: @}]", "x", []string{"deny"}},
		{limit + "maxNodes: @}]", "x", []string{"1", "1000"}},
		{limit + "nodeNames: [@]}]", "[]", []string{"rack7-*"}},
		{limit + "certificateDuration: @}]", "x", []string{"720h", "10m", "876000h"}},
		{limit + "maxNodes: 1, match: {groups: [@]}}]", "[]", []string{"system:bootstrappers:rack-7"}},
		{limit + "maxNodes: 1, match: {labels: @}}]", "x", []string{"{app: scaler}"}},
		{"kind: TokenLimits\nrules: [{name: @, maxNodes: 1}]", "X", []string{"cluster-api"}},
	} {
		parse := func(value string) (err error) {
			switch content := []byte("apiVersion: kubejoin.io/v1alpha1\n" + strings.ReplaceAll(test.file, "@", value)); {
			case strings.Contains(test.file, "SignerPolicy"):
				_, err = config.ParsePolicy("f", content, ca)
			case strings.Contains(test.file, "TokenLimits"):
				_, err = config.ParseTokenLimits("f", content)
			default:
				_, _, err = config.Compile("f", content, config.Defaults{CA: ca})
			}
			return err
		}
		_, want, _ := strings.Cut(fmt.Sprint(parse(test.wrong)), "want ")
		for _, value := range test.values {
			if err := parse(value); err != nil || !strings.Contains(want, value) {
				t.Errorf("%s: %q gives %v; the error of %q wants %q", test.file, value, err, test.wrong, want)
			}
		}
	}
}

// One error must not hide another one. No error is reported twice or follows from a part that could not be read.
func TestReportsIndependentErrorsOnce(t *testing.T) {
	const content = `apiVersion: kubejoin.io/v1alpha1
kind: SignerConfiguration
extra: 1
signers:
- name: kubernetes.io/kube-apiserver-client
  usage: [client auth]
  duration: {default: 48h, max: 24h}
  ca: {certFile: none.crt, keyFile: none.key}
- name: kubernetes.io/kubelet-serving
  usages: [serving]
  keys: {rsa: {min: 5}}
  duration: {default: 1m, min: 2h}
  approval: [nodeclient, 5]
- nome: example.com/x
  ca: {certFile: none.crt}
  usages: [any]
- name: example.com/y
  usages: [server auth]
  subject: {commonName: [y]}
  duration: {min: 2h}
- name: example.com/z
  names: {dns: [z]}
  approval: [selfnodeclient]
`
	want := []string{
		`f:3: unknown field "extra", want one of apiVersion, kind, signers`,
		`f:6: signers[0]: unknown field "usage", want one of name, ca, duration, usages, subject, names, keys, approval`,
		`f:7: signers[0].duration: default duration of certificates is 48h, want at most the longest duration 24h`,
		`f:8: signers[0].ca: CA certificate: open none.crt: no such file or directory`,
		`f:10: signers[1].usages[0]: "serving" given, want a usage that a certificate can have, such as "server auth"`,
		`f:11: signers[1].keys.rsa.min: "5" given, want a number of bits from 2048 to 8192`,
		`f:12: signers[1].duration.default: "1m" given, want a duration such as 720h, from 3m to 2562047h`,
		`f:13: signers[1].approval[1]: "5" given, want the name of a rule`,
		`f:14: signers[2]: unknown field "nome", want one of name, ca, duration, usages, subject, names, keys, approval`,
		`f:14: signers[2].name: missing`,
		`f:15: signers[2].ca.keyFile: missing`,
		`f:19: signers[3].subject: unknown field "commonName", want one of commonNames, organizations`,
		`f:20: signers[3].duration: shortest duration of certificates is 2h, want at most the longest duration 1h`,
		`f:21: signers[4].usages: missing`,
		`f:23: signers[4].approval: "selfnodeclient" given, want may-sign for this signer`,
	}
	_, _, err := config.Compile("f", []byte(content), config.Defaults{CA: noCA, Duration: time.Hour})
	if got := strings.Split(fmt.Sprint(err), "\n"); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Parse reports at most 100 errors and how many more there are.
func TestLimitsNumberOfErrors(t *testing.T) {
	_, err := config.Parse("x", []byte("a: 1\n"+strings.Repeat("b: 2\n", 10_000)))
	if lines := strings.Count(err.Error(), "\n") + 1; lines != 101 || !strings.HasSuffix(err.Error(), "more errors") {
		t.Errorf("got %d lines, want 101", lines)
	}
}

func TestOpenReportsUnreadableFiles(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "signers.yaml")
	open := func(file string) error {
		_, _, err := config.Open(file, config.Defaults{CA: noCA})
		return err
	}
	if err := open(file); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	var unreadable *os.PathError
	if err := open(dir); !errors.As(err, &unreadable) {
		t.Errorf("Open of a directory = %v, want the read error", err)
	}
	must.OK(t, os.WriteFile(file, make([]byte, 10*config.MaxSize), 0o600))
	if err := open(file); err == nil || !strings.Contains(err.Error(), "the file is larger than 65536 bytes") {
		t.Error(err)
	}
	must.OK(t, os.WriteFile(file, []byte(config.Default), 0o600))
	must.OK(t, open(file))
}
