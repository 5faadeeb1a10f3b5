package config_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/config"
	certificates "k8s.io/api/certificates/v1"
)

const peer = "example.com/etcd-peer"

// build compiles signers after it has added the head of a configuration file.
func build(t testing.TB, signers string, d config.Defaults) map[string]signer.Signer {
	t.Helper()
	c := must.Value(config.Parse(filepath.Join(t.TempDir(), "signers.yaml"), []byte("apiVersion: kubejoin.io/v1alpha1\nkind: SignerConfiguration\nsigners:\n"+signers)))(t)
	if d.CA == nil {
		d.CA = signer.Fixed(newCA(t))
	}
	return must.Value(c.Build(d))(t)
}

func request(t testing.TB, name string, template x509.CertificateRequest, usages ...certificates.KeyUsage) approval.Request {
	t.Helper()
	key := must.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	der := must.Value(x509.CreateCertificateRequest(rand.Reader, &template, key))(t)
	csr := must.Value(x509.ParseCertificateRequest(der))(t)
	return approval.Request{SignerName: name, User: "etcd", CSR: csr, Usages: usages}
}

func uri(text string) *url.URL {
	u, err := url.Parse(text)
	if err != nil {
		panic(err)
	}
	return u
}

// A custom signer issues only certificates with the subjects, names and usages that its file allows.
func TestCustomSignerLimitsRequests(t *testing.T) {
	authority := signer.Authority{Signers: signer.FixedSigners(build(t, `
- name: example.com/etcd-peer
  usages: [digital signature, server auth, client auth]
  subject: {commonNames: ["etcd-*", "system:etcd:*"], organizations: [etcd, "team:*", "*:admins", "system:etcd", "system:m*"]}
  names:
    dns: ["*.etcd.example.com", "etcd-*.example.com", plain]
    wildcards: ["*.apps.example.com"]
    ips: [10.0.0.0/8, "2001:db8::/64", 192.0.2.1]
    emails: ["*@example.com"]
    uris: ["spiffe://example.com/ns/*/sa/etcd-*"]
- name: example.com/bare
  usages: [server auth]
  names: {dns: [bare]}
`, config.Defaults{}))}
	both := []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageServerAuth}
	name := func(cn string, organizations ...string) x509.CertificateRequest {
		return x509.CertificateRequest{Subject: pkix.Name{CommonName: cn, Organization: organizations}}
	}
	dns := func(names ...string) x509.CertificateRequest { return x509.CertificateRequest{DNSNames: names} }
	ip := func(text string) x509.CertificateRequest {
		return x509.CertificateRequest{IPAddresses: []net.IP{net.ParseIP(text)}}
	}
	email := func(text string) x509.CertificateRequest {
		return x509.CertificateRequest{EmailAddresses: []string{text}}
	}
	at := func(text string) x509.CertificateRequest { return x509.CertificateRequest{URIs: []*url.URL{uri(text)}} }
	for _, test := range []struct {
		what     string
		template x509.CertificateRequest
		want     string // part of the refusal; empty: issued
	}{
		{"common name", name("etcd-0"), ""},
		{"and organization", name("etcd-0", "etcd"), ""},
		{"two organizations", name("etcd-0", "etcd", "team:a"), ""},
		{"other common name", name("etcd"), `common name "etcd" is not allowed, want one of ["etcd-*" "system:etcd:*"]`},
		{"other organization", name("etcd-0", "etcd", "ops"), `subject organization "ops"`},
		{"masters", name("etcd-0", "system:masters"), `system:masters, and kubejoin issues no certificates for this group`},
		{"reserved, by its prefix", name("system:etcd:0", "system:etcd"), ""},
		{"reserved, by a pattern", name("etcd-0", "system:admins"), `subject organization "system:admins"`},
		{"reserved, of a node", name("system:node:a", "system:nodes"), `common name "system:node:a"`},
		{"unit", x509.CertificateRequest{Subject: pkix.Name{CommonName: "etcd-0", OrganizationalUnit: []string{"x"}}}, "attribute 2.5.4.11"},
		{"email attribute", x509.CertificateRequest{Subject: pkix.Name{CommonName: "etcd-0", ExtraNames: []pkix.AttributeTypeAndValue{
			{Type: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 1}, Value: "a@example.com"}}}}, "attribute 1.2.840.113549.1.9.1"},
		{"only an organization", x509.CertificateRequest{Subject: pkix.Name{Organization: []string{"etcd"}}}, "the request has no name"},

		{"DNS", dns("a.etcd.example.com", "etcd-1.example.com", "plain"), ""},
		{"DNS, one of many", dns("plain", "other"), `DNS name "other"`},
		{"wildcard by a pattern", dns("*.etcd.example.com"), `DNS name "*.etcd.example.com" is not allowed`},
		{"wildcard as listed", dns("*.apps.example.com"), ""},
		{"wildcard as listed is no pattern", dns("a.apps.example.com"), "DNS name"},

		{"address", ip("10.1.2.3"), ""},
		{"single address", ip("192.0.2.1"), ""},
		{"IPv6", ip("2001:db8::5"), ""},
		{"other IPv6", ip("2001:db8:0:1::5"), "address"},
		{"other address", ip("192.0.2.2"), `address "192.0.2.2" is not allowed, want one of`},

		{"email", email("ada@example.com"), ""},
		{"email, other domain", email("ada@example.org"), "email address"},

		{"URI", at("spiffe://example.com/ns/db/sa/etcd-1"), ""},
		{"URI, other trust domain", at("spiffe://example.org/ns/db/sa/etcd-1"), "URI"},
	} {
		t.Run(test.what, func(t *testing.T) {
			_, err := authority.Sign(t.Context(), request(t, peer, test.template, both...))
			wantError(t, err, test.want)
		})
	}
	t.Run("usage", func(t *testing.T) {
		r := request(t, peer, name("etcd-0"), certificates.UsageDigitalSignature)
		_, err := authority.Sign(t.Context(), r)
		wantError(t, err, "valid for every purpose")
		r.Usages = []certificates.KeyUsage{certificates.UsageCodeSigning}
		_, err = authority.Sign(t.Context(), r)
		wantError(t, err, `usage "code signing" is not allowed`)
	})
	t.Run("what is not given is not allowed", func(t *testing.T) {
		for _, template := range []x509.CertificateRequest{name("bare"), ip("10.0.0.1"), dns("bare", "other")} {
			if _, err := authority.Sign(t.Context(), request(t, "example.com/bare", template, certificates.UsageServerAuth)); err == nil {
				t.Errorf("%+v: got no error, want a refusal", template)
			}
		}
		if _, err := authority.Sign(t.Context(), request(t, "example.com/bare", dns("bare"), certificates.UsageServerAuth)); err != nil {
			t.Error(err)
		}
	})
	t.Run("what is not in the file", func(t *testing.T) {
		if _, ok := authority.Signer(certificates.KubeAPIServerClientSignerName); ok {
			t.Error("got a signer that the file does not name")
		}
	})
}

// A file can only restrict the Kubernetes signers, never extend them.
func TestFileOnlyRestrictsKubernetesSigners(t *testing.T) {
	authority := signer.Authority{Signers: signer.FixedSigners(build(t, `
- name: kubernetes.io/kubelet-serving
  names: {dns: ["*.nodes.example.com"]}
- name: kubernetes.io/kube-apiserver-client
  subject: {commonNames: ["*"], organizations: ["dev:*"]}
`, config.Defaults{}))}
	serving := []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageServerAuth}
	client := []certificates.KeyUsage{certificates.UsageClientAuth}
	node := pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}}
	for _, test := range []struct {
		what string
		r    approval.Request
		want string
	}{
		{"name", request(t, certificates.KubeletServingSignerName, x509.CertificateRequest{Subject: node, DNSNames: []string{"a.nodes.example.com"}}, serving...), ""},
		{"other name", request(t, certificates.KubeletServingSignerName, x509.CertificateRequest{Subject: node, DNSNames: []string{"a.example.com"}}, serving...), `DNS name "a.example.com"`},
		{"address", request(t, certificates.KubeletServingSignerName, x509.CertificateRequest{Subject: node, IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1)}}, serving...), `address "10.0.0.1"`},
		{"no node", request(t, certificates.KubeletServingSignerName, x509.CertificateRequest{Subject: pkix.Name{CommonName: "a"}, DNSNames: []string{"a.nodes.example.com"}}, serving...), "system:nodes"},
		{"group", request(t, certificates.KubeAPIServerClientSignerName, x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane", Organization: []string{"dev:a"}}}, client...), ""},
		{"other group", request(t, certificates.KubeAPIServerClientSignerName, x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane", Organization: []string{"ops"}}}, client...), `"ops"`},
		{"reserved", request(t, certificates.KubeAPIServerClientSignerName, x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:kube-scheduler"}}, client...), `"system:kube-scheduler"`},
	} {
		t.Run(test.what, func(t *testing.T) {
			_, err := authority.Sign(t.Context(), test.r)
			wantError(t, err, test.want)
		})
	}
}

func TestDurationStaysWithinBoundsOfSigner(t *testing.T) {
	const day = 24 * time.Hour
	for _, test := range []struct {
		file      string
		requested time.Duration
		want      time.Duration
	}{
		{"", 0, 90 * day}, // default of the cluster
		{"", 365 * day, 90 * day},
		{"duration: {min: 1h, default: 24h, max: 720h}", 0, day},
		{"duration: {min: 1h, default: 24h, max: 720h}", 10 * time.Minute, time.Hour},
		{"duration: {min: 1h, default: 24h, max: 720h}", 48 * time.Hour, 48 * time.Hour},
		{"duration: {min: 1h, default: 24h, max: 720h}", 365 * day, 720 * time.Hour},
		{"duration: {default: 24h}", 48 * time.Hour, day},
		{"duration: {max: 48h}", 0, 48 * time.Hour},
		{"duration: {max: 48h}", time.Second, 10 * time.Minute},
		{"duration: {max: 2400h}", 0, 2400 * time.Hour}, // longer than the default of the cluster
		{"duration: {min: 1h}", 0, 90 * day},
		{"duration: {min: 1h}", time.Minute, time.Hour},
		{"duration: {max: 5m}", time.Hour, 5 * time.Minute},
	} {
		t.Run(test.file+" "+test.requested.String(), func(t *testing.T) {
			authority := signer.Authority{Signers: signer.FixedSigners(build(t, "- name: example.com/etcd-peer\n  usages: [server auth]\n  subject: {commonNames: [etcd]}\n  "+test.file+"\n",
				config.Defaults{Duration: 90 * day}))}
			r := request(t, peer, x509.CertificateRequest{Subject: pkix.Name{CommonName: "etcd"}}, certificates.UsageServerAuth)
			r.Expiration = test.requested
			now := time.Now()
			authority.Now = func() time.Time { return now }
			chain := must.Value(authority.Sign(t.Context(), r))(t)
			certs := decode(t, chain)
			got := certs.NotAfter.Sub(now.Truncate(time.Second))
			if test.want >= 8*time.Hour {
				got += 5 * time.Minute
			}
			if got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

// Some errors can only be found when CAs and defaults are known.
func TestBuildReportsErrorsOfCAsAndDefaults(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "signers.yaml")
	must.OK(t, os.WriteFile(filepath.Join(dir, "text"), []byte("no certificate"), 0o600))
	c, err := config.Parse(file, []byte(`apiVersion: kubejoin.io/v1alpha1
kind: SignerConfiguration
signers:
- name: kubernetes.io/kubelet-serving
- name: kubernetes.io/kube-apiserver-client
  ca:
    certFile: text
    keyFile: text
- name: example.com/x
  ca: {certFile: none, keyFile: none}
  usages: [server auth]
  subject: {commonNames: [x]}
  duration: {min: 48h}
`))
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Build(config.Defaults{Duration: 24 * time.Hour})
	want := strings.ReplaceAll(`FILE:4: signers[0].ca: missing, and no cluster CA is configured: set ca here, or --cluster-signing-cert-file and --cluster-signing-key-file
FILE:6: signers[1].ca: CA certificate DIR/text: no certificate found: want a PEM block of type CERTIFICATE
FILE:10: signers[2].ca: CA certificate: open DIR/none: no such file or directory
FILE:13: signers[2].duration: shortest duration of certificates is 48h, want at most the longest duration 24h`, "DIR", dir)
	if want = strings.ReplaceAll(want, "FILE", file); err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
	for i := range c.Signers { // a caller may replace CAs
		c.Signers[i].CA = config.CAFiles{}
	}
	for name, s := range must.Value(c.Build(config.Defaults{CA: signer.Fixed(newCA(t))}))(t) {
		if _, err := s.CA(); err != nil {
			t.Errorf("%s after a second Build: %v", name, err)
		}
	}
}

// A refusal shortens long names. It must contain no part of a token secret, regardless of where the name is cut.
func TestRefusedNamesHoldNoPartOfAToken(t *testing.T) {
	const token = "8w4usg.qwertzuiopasdfgh"
	c := must.Value(config.Parse("f", []byte(`apiVersion: kubejoin.io/v1alpha1
kind: SignerConfiguration
signers:
- name: example.com/etcd-peer
  usages: [server auth]
  subject: {commonNames: [etcd], organizations: [etcd]}
  names: {dns: [etcd], emails: ["*@example.com"], uris: ["https://*.example.com"]}
`)))(t)
	for n := range 110 {
		text := strings.Repeat("-", n) + token
		for about, template := range map[string]x509.CertificateRequest{
			"common name":          {Subject: pkix.Name{CommonName: text}},
			"subject organization": {Subject: pkix.Name{CommonName: "etcd", Organization: []string{text}}},
			"DNS name":             {Subject: pkix.Name{CommonName: "etcd"}, DNSNames: []string{text}},
			"email address":        {Subject: pkix.Name{CommonName: "etcd"}, EmailAddresses: []string{text}},
			"URI":                  {Subject: pkix.Name{CommonName: "etcd"}, URIs: []*url.URL{{Scheme: "spiffe", Host: "x", Path: "/" + text}}},
		} {
			err := config.Check(&c.Signers[0], request(t, peer, template, certificates.UsageServerAuth))
			if err == nil || !strings.HasPrefix(err.Error(), about+" ") || strings.Contains(err.Error(), "8w4usg.q") {
				t.Fatalf("%s after %d: got %v", about, n, err)
			}
		}
	}
}
