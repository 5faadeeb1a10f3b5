package signer_test

import (
	"crypto"
	"crypto/elliptic"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
	"github.com/kubejoin/kubejoin/signer"
)

// CheckTrust must agree with crypto/x509 and OpenSSL about a certificate that the CA really issues.
func TestCheckTrustAgreesWithClients(t *testing.T) {
	permit := func(names ...string) func(*x509.Certificate) {
		return func(c *x509.Certificate) {
			c.PermittedDNSDomainsCritical = true
			for _, name := range names {
				if _, n, err := net.ParseCIDR(name); err == nil {
					c.PermittedIPRanges = append(c.PermittedIPRanges, n)
				} else {
					c.PermittedDNSDomains = append(c.PermittedDNSDomains, name)
				}
			}
		}
	}
	for _, test := range []struct {
		name         string
		root, middle func(*x509.Certificate) // changes of the CAs; the middle CA signs, if there is one
		hosts        []string
		want         string // part of the error; empty: no error
	}{
		{name: "no limit", hosts: []string{"worker-1", "10.0.0.5"}},
		{name: "unusual names", hosts: []string{"12345", "rack.7", "fe80::1"}},
		{name: "an intermediate", middle: func(*x509.Certificate) {}, hosts: []string{"worker-1"}},
		{name: "name permitted", root: permit("example.com"), hosts: []string{"worker-1.example.com", "10.0.0.5"}},
		{name: "all permitted", root: permit("example.com", "10.0.0.0/8"), hosts: []string{"worker-1.example.com", "10.0.0.5"}},
		{name: "name not permitted", root: permit("example.com"), hosts: []string{"worker-1.example.com", "worker-1"}, want: `"worker-1" is not permitted`},
		{name: "address not permitted", root: permit("10.0.0.0/8"), hosts: []string{"worker-1", "192.0.2.1"}, want: "192.0.2.1"},
		{name: "IPv6 address not permitted", root: permit("10.0.0.0/8"), hosts: []string{"2001:db8::1"}, want: "2001:db8::1"},
		{name: "name excluded", root: func(c *x509.Certificate) { c.ExcludedDNSDomains = []string{"example.com"} }, hosts: []string{"worker-1.example.com"}, want: "is excluded"},
		{name: "limit of the intermediate", middle: permit("example.com"), hosts: []string{"worker-1"}, want: "is not permitted"},
		{name: "limit of the root", root: permit("example.com"), middle: func(*x509.Certificate) {}, hosts: []string{"worker-1"}, want: "is not permitted"},
		{name: "limits and no names", root: permit("example.com", "10.0.0.0/8")}, // a client certificate of a node
		{name: "path too long", root: func(c *x509.Certificate) { c.MaxPathLenZero = true }, middle: func(*x509.Certificate) {}, want: "too many intermediates"},
		{name: "path long enough", root: func(c *x509.Certificate) { c.MaxPathLen = 1 }, middle: func(*x509.Certificate) {}},
		{name: "critical extension", root: nil, middle: func(c *x509.Certificate) {
			c.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 2, 3, 4}, Critical: true, Value: []byte{5, 0}}}
		}, want: "critical extension"},
	} {
		t.Run(test.name, func(t *testing.T) {
			rootKey, key := crypto.Signer(csrtest.ECDSA(elliptic.P256())), crypto.Signer(csrtest.ECDSA(elliptic.P256()))
			root := caCertificate(t, "root", rootKey, nil, nil, test.root)
			bundle := []*x509.Certificate{root}
			if test.middle != nil {
				bundle = append(bundle, caCertificate(t, "middle", key, root, rootKey, test.middle))
			} else {
				key = rootKey
			}
			ca := must.Get(signer.NewCA(bundle, key))
			wantTrust(t, "CheckTrust", test.want, signer.CheckTrust(ca.Certificate(), ca.Bundle(), []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}, test.hosts))

			template := &x509.CertificateRequest{Subject: csrtest.Node("w")}
			usages := clientUsages
			for _, host := range test.hosts {
				usages = servingUsages
				if ip := net.ParseIP(host); ip != nil {
					template.IPAddresses = append(template.IPAddresses, ip)
				} else {
					template.DNSNames = append(template.DNSNames, host)
				}
			}
			chain, err := must.Get(signer.NewProfile(signer.ProfileConfig{Usages: usages})).Issue(ca, signer.Template{CSR: csrtest.New(t, template, nil), Usages: usages}, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			certs := decode(t, chain)
			roots, between := x509.NewCertPool(), x509.NewCertPool()
			roots.AddCert(root)
			for _, cert := range certs[1:] {
				between.AddCert(cert)
			}
			_, err = certs[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
			wantTrust(t, "crypto/x509", test.want, err)

			dir := t.TempDir()
			for name, certs := range map[string][]*x509.Certificate{"root": {root}, "rest": certs[1:], "leaf": certs[:1]} {
				var data []byte
				for _, cert := range certs {
					data = append(data, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})...)
				}
				must.OK(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
			}
			need.Programs(t, "openssl")
			verify := exec.Command("openssl", "verify", "-CAfile", "root", "-untrusted", "rest", "leaf")
			verify.Dir = dir
			if len(certs) == 1 {
				verify.Args = append(verify.Args[:4], "leaf")
			}
			if output, err := verify.CombinedOutput(); (err != nil) != (test.want != "") {
				t.Errorf("openssl verify: %v: %s, want an error: %t", err, output, test.want != "")
			}
		})
	}
}

// NewCA refuses these CAs. 'kubejoin doctor' has only the certificate.
func TestCheckTrustFindsWhatIsNoCA(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*x509.Certificate)
		want   string
	}{
		"no certificate signing": {func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageCRLSign }, "parent certificate cannot sign"},
		"not a CA":               {func(c *x509.Certificate) { c.IsCA = false }, "parent certificate cannot sign"},
		"client auth only":       {func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }, "incompatible key usage"},
		"server auth only":       {func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }, "incompatible key usage"},
		"both": {func(c *x509.Certificate) {
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
		}, ""},
	} {
		ca := caCertificate(t, "ca", csrtest.ECDSA(elliptic.P256()), nil, nil, test.change)
		wantTrust(t, name, test.want, signer.CheckTrust(ca, []*x509.Certificate{ca}, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}, nil))
	}
}

func wantTrust(t *testing.T, who, want string, err error) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("%s: got %v, want an error with %q", who, err, want)
	}
}
