package config_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/config"
	certificates "k8s.io/api/certificates/v1"
)

const policyHead = "apiVersion: kubejoin.io/v1alpha1\nkind: SignerPolicy\n"

func parsePolicy(t testing.TB, content string) (*config.Policy, error) {
	t.Helper()
	return config.ParsePolicy("policy.yaml", []byte(policyHead+content), signer.Fixed(newCA(t)))
}

func TestPolicyFindsRequesters(t *testing.T) {
	p := must.Value(parsePolicy(t, `
requesters:
- {name: a, uid: 0, rate: {qps: 0.5, burst: 3}, signers: [{name: kubernetes.io/kube-apiserver-client-kubelet, duration: {max: 24h}}]}
- {name: b, rate: {qps: 1, burst: 1}, signers: [{name: kubernetes.io/kube-apiserver-client-kubelet}]}
`))(t)
	if q, found := p.Named("a"); !found || q.QPS != 0.5 || q.Burst != 3 || q.Signers[certificates.KubeAPIServerClientKubeletSignerName].Profile().Max != 24*time.Hour {
		t.Errorf("a: got %+v, %t", q, found)
	}
	if q, found := p.Of(0); !found || q.Name != "a" {
		t.Errorf("uid 0: got %q, %t", q.Name, found)
	}
	for _, uid := range []int{-1, 1} { // b has no uid
		if q, found := p.Of(uid); found {
			t.Errorf("uid %d: got %q", uid, q.Name)
		}
	}
	if q, found := p.Named("c"); found {
		t.Errorf("c: got %q", q.Name)
	}
}

func TestLoadPolicy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if p, err := config.LoadPolicy(file, signer.Fixed(newCA(t))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: got %v, %v", p, err)
	}
	var unreadable *os.PathError
	if p, err := config.LoadPolicy(filepath.Dir(file), signer.Fixed(newCA(t))); !errors.As(err, &unreadable) {
		t.Errorf("folder: got %v, %v, want the read error", p, err)
	}
	must.OK(t, os.WriteFile(file, []byte(config.DefaultPolicy), 0o600))
	if p := must.Value(config.LoadPolicy(file, signer.Fixed(newCA(t))))(t); len(p.Requesters) != 1 {
		t.Errorf("got %d requesters, want the one of the default policy", len(p.Requesters))
	}
	must.OK(t, os.Chmod(file, 0o646))
	if p, err := config.LoadPolicy(file, signer.Fixed(newCA(t))); !errors.Is(err, signer.ErrExposed) || !strings.Contains(err.Error(), "want at most 0644") {
		t.Errorf("a file that every user may write: got %v, %v", p, err)
	}
}

func TestPolicyNamesMistakes(t *testing.T) {
	const kubelet = "signers: [{name: kubernetes.io/kube-apiserver-client-kubelet}]"
	const rate = "rate: {qps: 1, burst: 1}"
	for _, test := range []struct{ content, want string }{
		{"", "policy.yaml:1: requesters: missing"},
		{"requesters: []", "policy.yaml:3: requesters: the list is empty"},
		{"other: 1\nrequesters: [{name: a, " + rate + ", " + kubelet + "}]", `policy.yaml:3: unknown field "other"`},
		{"requesters: [{" + rate + ", " + kubelet + "}]", "requesters[0].name: missing"},
		{`requesters: [{name: "a\u0007", ` + rate + ", " + kubelet + "}]", `requesters[0].name: "a\a" given, want at most 300 printable characters`},
		{"requesters: [{name: a, " + rate + "}]", "requesters[0].signers: missing"},
		{"requesters: [{name: a, " + rate + ", signers: []}]", "requesters[0].signers: the list is empty"},
		{"requesters: [{name: a, " + kubelet + "}]", "requesters[0].rate: missing"},
		{"requesters: [{name: a, rate: {qps: 0, burst: 1}, " + kubelet + "}]", "requesters[0].rate.qps: \"0\" given"},
		{"requesters: [{name: a, rate: {qps: .nan, burst: 1}, " + kubelet + "}]", "requesters[0].rate.qps: \".nan\" given"},
		{"requesters: [{name: a, rate: {qps: 1001, burst: 1}, " + kubelet + "}]", "requesters[0].rate.qps: \"1001\" given"},
		{"requesters: [{name: a, rate: {qps: !x 1, burst: 1}, " + kubelet + "}]", "requesters[0].rate.qps: \"1\" given"},
		{"requesters: [{name: a, rate: {qps: '1', burst: 1}, " + kubelet + "}]", "requesters[0].rate.qps: \"1\" given"},
		{"requesters: [{name: a, rate: {qps: true, burst: 1}, " + kubelet + "}]", "requesters[0].rate.qps: \"true\" given"},
		{"requesters: [{name: a, rate: {qps: !!int x, burst: 1}, " + kubelet + "}]", "requesters[0].rate.qps: \"x\" given"},
		{"requesters: [{name: a, rate: {qps: 1, burst: 100001}, " + kubelet + "}]", "requesters[0].rate.burst: \"100001\" given"},
		{"requesters: [{name: a, rate: {qps: 1, burst: 0}, " + kubelet + "}]", "requesters[0].rate.burst: \"0\" given"},
		{"requesters: [{name: a, uid: 65534, " + rate + ", " + kubelet + "}]", "requesters[0].uid: 65534 given, want another user"},
		{"requesters: [{name: a, uid: !!int x, " + rate + ", " + kubelet + "}]", "requesters[0].uid: \"x\" given"},
		{"requesters: [{name: a, uid: -1, " + rate + ", " + kubelet + "}]", "requesters[0].uid: \"-1\" given"},
		{"requesters: [{name: a, " + rate + ", " + kubelet + "}, {name: a, " + rate + ", " + kubelet + "}]", `requesters[1].name: duplicate requester "a"`},
		{"requesters: [{name: a, uid: 5, " + rate + ", " + kubelet + "}, {name: b, uid: 5, " + rate + ", " + kubelet + "}]", `requesters[1].uid: user 5 is already that of requester "a"`},
		{"requesters: [{name: a, rate: {qps: 1000, burst: 100000}, " + kubelet + "}, {name: b, rate: {qps: 100, burst: 30144}, " + kubelet + "}, {name: c, rate: {qps: 0.1, burst: 1}, " + kubelet + "}]",
			"policy.yaml:3: requesters[2].rate: qps 0.1 and burst 1 bring all requesters to 262157 orders in 2m0s, want at most 262144 together (burst + 120 * qps each): lower the rates"},
		{"never: [10.0.0.1/8]\nrequesters: [{name: a, " + rate + ", " + kubelet + "}]", `policy.yaml:3: never[0]: "10.0.0.1/8" given, want 10.0.0.0/8`},
		{"never: [\"a\\u0007\"]\nrequesters: [{name: a, " + rate + ", " + kubelet + "}]", "never[0]: "},
		{"requesters: [{name: a, " + rate + ", signers: [{name: kubernetes.io/kube-apiserver-client-kubelet, approval: [nodeclient]}]}]", "signers[0].approval: not allowed in a policy"},
		{"requesters: [{name: a, " + rate + ", signers: [{name: kubernetes.io/kube-apiserver-client-kubelet, ca: {certFile: a, keyFile: a}}]}]", "signers[0].ca: not allowed in a policy"},
		{"requesters: [{name: a, " + rate + ", signers: [{name: kubernetes.io/kubelet-serving}]}]", "signers[0].names: missing"},
		{"requesters: [{name: a, " + rate + ", signers: [{name: kubernetes.io/kube-apiserver-client}]}]", "signers[0].subject: missing"},
		{`requesters: [{name: a, ` + rate + `, signers: [{name: kubeadm.kubejoin.io/super-admin.conf, usages: [client auth], subject: {commonNames: [kubernetes-super-admin], organizations: ["system:masters"]}}]}]`, "no certificate in group system:masters"},
		{"requesters: [{name: a, " + rate + ", signers: [{name: example.com/any}]}]", "signers[0].usages: missing"}, // as in a SignerConfiguration
	} {
		p, err := parsePolicy(t, test.content)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, %v, want %q", test.content, p, err, test.want)
		}
	}
}

// An item that is not a mapping is one error: kubejoin does not compare it with other requesters.
func TestRequesterThatIsNoMappingIsOneError(t *testing.T) {
	p, err := parsePolicy(t, "requesters: [x, x]")
	var errs config.Errors
	if !errors.As(err, &errs) || len(errs) != 2 {
		t.Errorf("got %v, %v, want two errors", p, err)
	}
}

// The sum of all rates is limited by the memory of the signer process. The first requester beyond the limit gets the
// error.
func TestPolicyLimitsSumOfRates(t *testing.T) {
	requesters := func(n int, rate string) string {
		text := "requesters:\n"
		for i := range n {
			text += fmt.Sprintf("- {name: r%d, rate: %s, signers: [{name: kubernetes.io/kube-apiserver-client-kubelet}]}\n", i, rate)
		}
		return text
	}
	for _, test := range []struct {
		n    int
		rate string
		bad  string // field of the only error; empty: none
	}{
		{1, "{qps: 1000, burst: 100000}", ""},
		{2, "{qps: 500, burst: 71072}", ""}, // 262,144
		{2, "{qps: 500, burst: 71073}", "requesters[1].rate: "},
		{3, "{qps: 100, burst: 100000}", "requesters[2].rate: "},
		{4, "{qps: 1, burst: 100000}", "requesters[2].rate: "},
		{90, "{qps: 20, burst: 500}", ""},
	} {
		_, err := parsePolicy(t, requesters(test.n, test.rate))
		if test.bad == "" {
			must.OK(t, err)
			continue
		}
		var errs config.Errors
		if !errors.As(err, &errs) || len(errs) != 1 || !strings.Contains(err.Error(), test.bad) {
			t.Errorf("%d requesters with rate %s: got %v, want one error for %s", test.n, test.rate, err, test.bad)
		}
	}
}

// The policy of a signer process decides by the contents of the certificate, not by its requester.
func TestPolicyLimitsCertificates(t *testing.T) {
	const kubelet, serving, client, own = certificates.KubeAPIServerClientKubeletSignerName, certificates.KubeletServingSignerName, certificates.KubeAPIServerClientSignerName, "kubejoin.io/serving"
	p := must.Value(parsePolicy(t, `
never: ["cp-*", api.example.com, 10.96.0.0/12, "*@secret"]
requesters:
- name: a
  rate: {qps: 1, burst: 1}
  signers:
  - {name: kubernetes.io/kube-apiserver-client-kubelet, subject: {commonNames: ["system:node:a*", "system:node:worker*", "system:node:cp*"], organizations: ["system:nodes"]}}
  - {name: kubernetes.io/kubelet-serving, names: {dns: ["*", "*.example.com"], ips: [10.0.0.0/8, "::/0"]}}
  - {name: kubernetes.io/kube-apiserver-client, subject: {commonNames: ["*@*"]}}
  - {name: kubejoin.io/serving, usages: [digital signature, server auth], subject: {commonNames: [kubejoin]}, names: {dns: ["*.example.com"], ips: ["::/0"]}}
`))(t)
	q, _ := p.Named("a")
	sign, clientAuth, serverAuth := certificates.UsageDigitalSignature, certificates.UsageClientAuth, certificates.UsageServerAuth
	node := csrtest.Node
	ip := func(texts ...string) (list []net.IP) {
		for _, text := range texts {
			list = append(list, net.ParseIP(text))
		}
		return list
	}
	mapped := net.ParseIP("10.96.0.1").To16() // ::ffff:10.96.0.1
	for _, test := range []struct {
		name, signer string
		csr          x509.CertificateRequest
		usages       []certificates.KeyUsage
		want         string // empty: signed
	}{
		{"node", kubelet, x509.CertificateRequest{Subject: node("worker-1")}, []certificates.KeyUsage{sign, clientAuth}, ""},
		{"node that is never signed", kubelet, x509.CertificateRequest{Subject: node("cp-1")}, []certificates.KeyUsage{sign, clientAuth}, `no certificate for "cp-1"`},
		{"node of another name", kubelet, x509.CertificateRequest{Subject: node("db-1")}, []certificates.KeyUsage{sign, clientAuth}, `"system:node:db-1" is not allowed`},
		{"invalid node name", kubelet, x509.CertificateRequest{Subject: node("worker_1")}, []certificates.KeyUsage{sign, clientAuth}, "node name"},
		{"masters", kubelet, x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:a", Organization: []string{"system:masters"}}}, []certificates.KeyUsage{sign, clientAuth}, "system:masters"},
		{"node and masters", kubelet, x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes", "system:masters"}}}, []certificates.KeyUsage{sign, clientAuth}, "system:masters"},
		{"another group", kubelet, x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes", "admins"}}}, []certificates.KeyUsage{sign, clientAuth}, "organization"},
		{"node with names", kubelet, x509.CertificateRequest{Subject: node("a"), DNSNames: []string{"a"}}, []certificates.KeyUsage{sign, clientAuth}, "alternative names"},
		{"node that serves", kubelet, x509.CertificateRequest{Subject: node("a")}, []certificates.KeyUsage{sign, clientAuth, serverAuth}, "usage"},

		{"serving", serving, x509.CertificateRequest{Subject: node("a"), DNSNames: []string{"a", "A.example.com"}, IPAddresses: ip("10.0.0.1", "2001:db9::1")}, []certificates.KeyUsage{sign, serverAuth}, ""},
		{"serving out of scope", serving, x509.CertificateRequest{Subject: node("a"), DNSNames: []string{"a.example.org"}}, []certificates.KeyUsage{sign, serverAuth}, "a.example.org"},
		{"serving address out of scope", serving, x509.CertificateRequest{Subject: node("a"), IPAddresses: ip("192.0.2.1")}, []certificates.KeyUsage{sign, serverAuth}, "192.0.2.1"},
		{"serving as the API server", serving, x509.CertificateRequest{Subject: node("a"), DNSNames: []string{"API.example.com"}}, []certificates.KeyUsage{sign, serverAuth}, "api.example.com"},
		{"serving as kubernetes", serving, x509.CertificateRequest{Subject: node("a"), DNSNames: []string{"kubernetes"}}, []certificates.KeyUsage{sign, serverAuth}, "name of the API server"},
		{"serving as localhost", serving, x509.CertificateRequest{Subject: node("a"), DNSNames: []string{"localhost"}}, []certificates.KeyUsage{sign, serverAuth}, "local machine"},
		{"serving as a Service", serving, x509.CertificateRequest{Subject: node("a"), IPAddresses: ip("10.96.0.1")}, []certificates.KeyUsage{sign, serverAuth}, "no certificate for 10.96.0.1"},
		{"serving at a link-local address", serving, x509.CertificateRequest{Subject: node("a"), IPAddresses: ip("fe80::1")}, []certificates.KeyUsage{sign, serverAuth}, "fe80::1 is not in any allowed range within fe80::/10"},
		{"serving by another user", serving, x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane", Organization: []string{"system:nodes"}}, DNSNames: []string{"a"}}, []certificates.KeyUsage{sign, serverAuth}, "common name"},

		{"user", client, x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane@example.com"}}, []certificates.KeyUsage{clientAuth}, ""},
		{"user of the system", client, x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:kube-controller-manager"}}, []certificates.KeyUsage{clientAuth}, "common name"},
		{"user that is never signed", client, x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane@secret"}}, []certificates.KeyUsage{clientAuth}, "no certificate for"},
		{"user in a group", client, x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane@example.com", Organization: []string{"kubeadm:cluster-admins"}}}, []certificates.KeyUsage{clientAuth}, "organization"},

		{"own certificate", own, x509.CertificateRequest{Subject: pkix.Name{CommonName: "kubejoin"}, DNSNames: []string{"join.example.com"}}, []certificates.KeyUsage{sign, serverAuth}, ""},
		{"own certificate as the API server", own, x509.CertificateRequest{Subject: pkix.Name{CommonName: "kubejoin"}, DNSNames: []string{"api.example.com"}}, []certificates.KeyUsage{sign, serverAuth}, "no certificate for"},
		{"own certificate at a Service in IPv6 form", own, x509.CertificateRequest{Subject: pkix.Name{CommonName: "kubejoin"}, IPAddresses: []net.IP{mapped}}, []certificates.KeyUsage{sign, serverAuth}, "no certificate for 10.96.0.1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			authority := signer.Authority{Unthrottled: true}
			r := request(t, test.signer, test.csr, test.usages...)
			if test.name == "own certificate at a Service in IPv6 form" {
				r.CSR.IPAddresses = []net.IP{mapped}
			}
			certificate, err := authority.SignOrder(t.Context(), q.Signers[test.signer], signer.Order{Request: r, Made: time.Now(), NotAfter: time.Now().Add(time.Hour)})
			if test.want == "" {
				must.OK(t, err)
				decode(t, certificate)
			} else if no := approval.Refused(err); no == nil || !strings.Contains(no.Message, test.want) || len(certificate) > 0 {
				t.Errorf("got %q, %v, want a refusal with %q", certificate, err, test.want)
			}
		})
	}
}

// The default policy allows the certificate of a node. The examples in its comments are also valid.
func TestDefaultPolicy(t *testing.T) {
	for _, content := range []string{config.DefaultPolicy, strings.NewReplacer("  # - name", "  - name", "  #   ", "    ").Replace(config.DefaultPolicy)} {
		p := must.Value(config.ParsePolicy("policy.yaml", []byte(content), signer.Fixed(newCA(t))))(t)
		q, _ := p.Named("kubejoin")
		if _, found := q.Signers[certificates.KubeAPIServerClientKubeletSignerName]; !found {
			t.Errorf("requester %+v has no signer for nodes", q)
		}
	}
	p := must.Value(config.ParsePolicy("policy.yaml", []byte(config.DefaultPolicy), signer.Fixed(newCA(t))))(t)
	if q, _ := p.Named("kubejoin"); len(q.Signers) != 1 {
		t.Errorf("the default policy has signers %v, want that of nodes alone", q.Signers)
	}
}

// A wildcard could stand for a name that is never signed.
func TestNeverCoversWildcards(t *testing.T) {
	for _, test := range []struct {
		never, wildcard string
		refused         bool
	}{
		{"api.example.com", "*.example.com", true},
		{"api.example.com", "*.EXAMPLE.com", true},
		{"api.example.com", "*.node.example.com", false},
		{"api.example.com", "*.ample.com", false},
		{"*.example.com", "*.example.com", true},
		{"api.*.example.com", "*.eu.example.com", true},
		{"cp-*", "*.example.com", true}, // cp-1.example.com
		{"cp-*.internal", "*.example.com", false},
	} {
		p := must.Value(parsePolicy(t, `
never: ["`+test.never+`"]
requesters: [{name: a, rate: {qps: 1, burst: 1}, signers: [
  {name: example.com/server, usages: [digital signature, server auth], names: {wildcards: ["`+strings.ToLower(test.wildcard)+`"]}}]}]
`))(t)
		q, _ := p.Named("a")
		authority := signer.Authority{Unthrottled: true}
		r := request(t, "example.com/server", x509.CertificateRequest{DNSNames: []string{test.wildcard}}, certificates.UsageDigitalSignature, certificates.UsageServerAuth)
		_, err := authority.SignOrder(t.Context(), q.Signers["example.com/server"], signer.Order{Request: r, Made: time.Now(), NotAfter: time.Now().Add(time.Hour)})
		if refused := err != nil && strings.Contains(err.Error(), "the policy signs no certificate for"); refused != test.refused || err != nil && !refused {
			t.Errorf("%s with never %s: got %v, want a refusal: %t", test.wildcard, test.never, err, test.refused)
		}
	}
}

func TestPolicyWarnings(t *testing.T) {
	for _, test := range []struct{ never, signer, want string }{
		{"10.0.1.1", "{name: kubernetes.io/kubelet-serving, names: {ips: [10.0.0.0/16]}}", ""},
		{"10.1.1.1", "{name: kubernetes.io/kubelet-serving, names: {ips: [10.0.0.0/16]}}", "no address of 10.0.0.0/16 is in never"},
		{"10.1.1.1", "{name: kubernetes.io/kubelet-serving, names: {ips: [10.0.0.5]}}", ""},
		{"x", `{name: example.com/a, usages: [server auth], names: {ips: ["::/0"]}}`, "no address of ::/0 is in never"},
		{"x", `{name: example.com/a, usages: [client auth], names: {ips: ["::/0"]}}`, ""},
		{"x", `{name: kubernetes.io/kube-apiserver-client, subject: {commonNames: ["system:kube-*"]}}`, `"system:kube-*" allows names`},
		{"x", `{name: kubernetes.io/kube-apiserver-client, subject: {commonNames: [a], organizations: ["kubeadm:x"]}}`, `"kubeadm:x" allows names`},
		{"x", `{name: kubernetes.io/kube-apiserver-client, subject: {commonNames: [a], organizations: ["*"]}}`, `"*" allows names`},
		{"x", `{name: kubernetes.io/kube-apiserver-client, subject: {commonNames: ["*@example.com"], organizations: [dev]}}`, ""},
		{"x", `{name: kubernetes.io/kube-apiserver-client-kubelet, subject: {commonNames: ["system:node:a*"], organizations: ["system:nodes"]}}`, ""},
	} {
		p := must.Value(parsePolicy(t, "never: ["+test.never+"]\nrequesters: [{name: a, rate: {qps: 1, burst: 1}, signers: ["+test.signer+"]}]"))(t)
		got := p.Warnings()
		if test.want == "" && len(got) > 0 || test.want != "" && (len(got) != 1 || !strings.Contains(got[0], test.want)) {
			t.Errorf("never %s, %s: got %q, want %q", test.never, test.signer, got, test.want)
		}
	}
}
