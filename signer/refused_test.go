package signer_test

import (
	"crypto"
	"crypto/elliptic"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/fuzzing"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
)

// attribute returns a subject attribute that has no field in pkix.Name.
func attribute(value any, oid ...int) pkix.AttributeTypeAndValue {
	return pkix.AttributeTypeAndValue{Type: oid, Value: value}
}

func basicConstraints(t *testing.T, value []byte) pkix.Extension {
	t.Helper()
	return pkix.Extension{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Value: value}
}

func TestIssueRefusesInvalidKeysAndExtensions(t *testing.T) {
	ca := newCA(t)
	profile := must.Get(signer.NewProfile(signer.ProfileConfig{Usages: clientUsages}))
	named := func(more ...pkix.AttributeTypeAndValue) *x509.CertificateRequest {
		return &x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane", ExtraNames: more}}
	}
	extended := func(e ...pkix.Extension) *x509.CertificateRequest {
		return &x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane"}, ExtraExtensions: e}
	}
	street := named(attribute("a@b", 1, 2, 840, 113549, 1, 9, 1))
	street.Subject.StreetAddress = []string{"Main Street"}
	for _, test := range []struct {
		name     string
		template *x509.CertificateRequest
		key      crypto.Signer
		want     string // part of the refusal; empty: issued
	}{
		{name: "P-256", template: named()},
		{name: "P-384", template: named(), key: csrtest.ECDSA(elliptic.P384())},
		{name: "P-521", template: named(), key: csrtest.ECDSA(elliptic.P521())},
		{name: "Ed25519", template: named(), key: csrtest.Ed25519()},
		{name: "RSA 2048", template: named(), key: csrtest.RSA2048()},
		{name: "RSA 1024", template: named(), key: csrtest.RSA1024(), want: "1024 bits"},
		{name: "P-224", template: named(), key: csrtest.ECDSA(elliptic.P224()), want: "P-224"},
		{name: "CA", template: extended(basicConstraints(t, []byte{0x30, 3, 1, 1, 0xff})), want: "CA certificate"},
		{name: "CA with path length", template: extended(basicConstraints(t, []byte{0x30, 6, 1, 1, 0xff, 2, 1, 0})), want: "CA certificate"},
		{name: "no CA", template: extended(basicConstraints(t, []byte{0x30, 0}))},
		{name: "malformed constraints", template: extended(basicConstraints(t, []byte{0x30, 9})), want: "malformed"},
		{name: "constraints with trailing data", template: extended(basicConstraints(t, []byte{0x30, 0, 0})), want: "malformed"},
		{name: "user ID of Kubernetes", template: named(attribute("0", 1, 3, 6, 1, 4, 1, 57683, 2)), want: "UID"},
		{name: "user ID of LDAP", template: named(attribute("0", 0, 9, 2342, 19200300, 100, 1, 1)), want: "UID"},
		{name: "email in the subject is dropped", template: named(attribute("a@b", 1, 2, 840, 113549, 1, 9, 1))},
		{name: "email in the subject with a street", template: street, want: "street"},
		{name: "empty attribute", template: &x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane", Organization: []string{""}}}, want: "empty"},
		{name: "other extensions are dropped", template: extended(
			pkix.Extension{Id: asn1.ObjectIdentifier{2, 5, 29, 15}, Value: []byte{3, 2, 1, 6}},           // key usage cert sign
			pkix.Extension{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 44363, 44}, Value: []byte{5, 0}},  // delegated credentials
			pkix.Extension{Id: asn1.ObjectIdentifier{1, 2, 3}, Critical: true, Value: []byte{1, 1, 255}}, // anything
		)},
	} {
		t.Run(test.name, func(t *testing.T) {
			csr := csrtest.New(t, test.template, test.key)
			answer, err := profile.Issue(ca, signer.Template{CSR: csr, Usages: clientUsages}, time.Now())
			if test.want != "" {
				var refused *approval.Error
				if !errors.As(err, &refused) || refused.Verdict != approval.Deny || !strings.Contains(err.Error(), test.want) || answer != nil {
					t.Errorf("error is %v, want a refusal with %q", err, test.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			cert := decode(t, answer)[0]
			if got := cert.Subject.String(); got != "CN=jane" {
				t.Errorf("got subject %s, want CN=jane", got)
			}
			if cert.IsCA || cert.KeyUsage != x509.KeyUsageDigitalSignature || len(cert.Extensions) != 5 {
				t.Errorf("got CA %v, key usage %b, %d extensions", cert.IsCA, cert.KeyUsage, len(cert.Extensions))
			}
		})
	}
}

// Each CSR is either issued or refused. Any other error would make the controller retry it forever.
func FuzzParseCSR(f *testing.F) {
	ca := newCA(f)
	profile := must.Get(signer.NewProfile(signer.ProfileConfig{Usages: clientUsages}))
	for _, template := range []*x509.CertificateRequest{
		{Subject: csrtest.Node("worker-1")},
		{Subject: pkix.Name{CommonName: "jane", Organization: []string{"a", "b"}, StreetAddress: []string{"s"}, Country: []string{"XX"}}},
		{Subject: pkix.Name{CommonName: "jane", ExtraNames: []pkix.AttributeTypeAndValue{attribute("a@b", 1, 2, 840, 113549, 1, 9, 1)}}},
		{DNSNames: []string{"a", "*.b"}, EmailAddresses: []string{"a@b"}, IPAddresses: nil},
	} {
		block, _ := pem.Decode(csrtest.PEM(f, template, csrtest.Ed25519()))
		f.Add(block.Bytes)
	}
	f.Add([]byte{0x30, 0x80})
	f.Add(hugeKey(f))
	f.Fuzz(func(t *testing.T, der []byte) {
		fuzzing.RunWithinLimit(t, func() {
			csr, err := pkcs10.Parse(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
			if err != nil {
				if approval.Refused(err) == nil {
					t.Errorf("got error %v, want a refusal", err)
				}
				return
			}
			answer, err := profile.Issue(ca, signer.Template{CSR: csr, Usages: clientUsages}, time.Now())
			if err != nil {
				if approval.Refused(err) == nil {
					t.Errorf("got error %v, want a certificate or a refusal", err)
				}
				return
			}
			if err := csr.CheckSignature(); err != nil {
				t.Errorf("issued for a CSR with an invalid signature: %v", err)
			}
			if cert := decode(t, answer)[0]; cert.IsCA || cert.KeyUsage != x509.KeyUsageDigitalSignature {
				t.Errorf("got CA %v, key usage %b", cert.IsCA, cert.KeyUsage)
			}
		})
	})
}
