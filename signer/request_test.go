package signer_test

import (
	"bytes"
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

	"github.com/kubejoin/kubejoin/internal/fuzzing"
	"github.com/kubejoin/kubejoin/signer"
)

func TestParseCSR(t *testing.T) {
	good := csrPEM(t, &x509.CertificateRequest{Subject: nodeSubject("worker-1")}, nil)
	block, _ := pem.Decode(good)
	encode := func(kind string, headers map[string]string, der []byte) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: kind, Headers: headers, Bytes: der})
	}
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for _, test := range []struct {
		name string
		data []byte
		want string // part of the error
	}{
		{name: "one block", data: good},
		{name: "white space around", data: join([]byte("\n \t"), good, []byte("\r\n\n"))},
		{name: "nothing", want: "not PEM"},
		{name: "DER", data: block.Bytes, want: "not PEM"},
		{name: "another type", data: encode("CERTIFICATE", nil, block.Bytes), want: `type "CERTIFICATE"`},
		{name: "the old type", data: encode("NEW CERTIFICATE REQUEST", nil, block.Bytes), want: "type"},
		{name: "headers", data: encode("CERTIFICATE REQUEST", map[string]string{"A": "b"}, block.Bytes), want: "headers"},
		{name: "twice", data: join(good, good), want: "block"},
		{name: "text after", data: join(good, []byte("x")), want: "after"},
		{name: "text before", data: join([]byte("x\n"), good), want: "before"},
		{name: "broken block before", data: join([]byte("-----BEGIN CERTIFICATE REQUEST-----\n!\n-----END CERTIFICATE REQUEST-----\n"), good), want: "before"},
		{name: "trailing DER", data: encode("CERTIFICATE REQUEST", nil, append(bytes.Clone(block.Bytes), 0)), want: "parsed"},
		{name: "no DER", data: encode("CERTIFICATE REQUEST", nil, []byte("hello")), want: "parsed"},
		{name: "huge", data: bytes.Repeat([]byte("A"), signer.MaxRequest+1), want: "65537 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			csr, err := signer.ParseCSR(test.data)
			if test.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if csr.Subject.CommonName != "system:node:worker-1" {
					t.Errorf("subject is %s", csr.Subject)
				}
				return
			}
			var refused *signer.Refused
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want a refusal with %q", err, test.want)
			}
		})
	}
}

// Each kind of key, because each has a signature of its own.
func TestIssueRefusesForged(t *testing.T) {
	ca := newCA(t)
	for name, key := range map[string]crypto.Signer{"RSA": rsa2048(), "P-256": newKey(elliptic.P256()), "P-384": newKey(elliptic.P384()), "Ed25519": newEd25519()} {
		block, _ := pem.Decode(csrPEM(t, &x509.CertificateRequest{Subject: nodeSubject("worker-1")}, key))
		block.Bytes[len(block.Bytes)-1] ^= 1
		csr, err := signer.ParseCSR(pem.EncodeToMemory(block))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := (signer.Profile{Usages: clientUsages}).Issue(ca, signer.Template{CSR: csr, Usages: clientUsages}, time.Now())
		var refused *signer.Refused
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), "not signed by its own key") || answer != nil {
			t.Errorf("%s: error is %v, want a refusal", name, err)
		}
	}
}

// attribute makes a subject attribute that pkix.Name has no field for.
func attribute(value any, oid ...int) pkix.AttributeTypeAndValue {
	return pkix.AttributeTypeAndValue{Type: oid, Value: value}
}

func basicConstraints(t *testing.T, value []byte) pkix.Extension {
	t.Helper()
	return pkix.Extension{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Value: value}
}

func TestIssueRefuses(t *testing.T) {
	ca := newCA(t)
	profile := signer.Profile{Usages: clientUsages}
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
		want     string // part of the refusal; empty is none
	}{
		{name: "P-256", template: named()},
		{name: "P-384", template: named(), key: newKey(elliptic.P384())},
		{name: "P-521", template: named(), key: newKey(elliptic.P521())},
		{name: "Ed25519", template: named(), key: newEd25519()},
		{name: "RSA 2048", template: named(), key: rsa2048()},
		{name: "RSA 1024", template: named(), key: rsa1024(), want: "1024 bits"},
		{name: "P-224", template: named(), key: newKey(elliptic.P224()), want: "P-224"},
		{name: "CA", template: extended(basicConstraints(t, []byte{0x30, 3, 1, 1, 0xff})), want: "CA certificate"},
		{name: "CA with path length", template: extended(basicConstraints(t, []byte{0x30, 6, 1, 1, 0xff, 2, 1, 0})), want: "CA certificate"},
		{name: "no CA", template: extended(basicConstraints(t, []byte{0x30, 0}))},
		{name: "malformed constraints", template: extended(basicConstraints(t, []byte{0x30, 9})), want: "malformed"},
		{name: "constraints with trailing data", template: extended(basicConstraints(t, []byte{0x30, 0, 0})), want: "malformed"},
		{name: "user ID of Kubernetes", template: named(attribute("0", 1, 3, 6, 1, 4, 1, 57683, 2)), want: "UID"},
		{name: "user ID of LDAP", template: named(attribute("0", 0, 9, 2342, 19200300, 100, 1, 1)), want: "UID"},
		{name: "email in the subject is dropped", template: named(attribute("a@b", 1, 2, 840, 113549, 1, 9, 1))},
		{name: "and refused beside a street", template: street, want: "street"},
		{name: "empty attribute", template: &x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane", Organization: []string{""}}}, want: "empty"},
		{name: "other extensions are dropped", template: extended(
			pkix.Extension{Id: asn1.ObjectIdentifier{2, 5, 29, 15}, Value: []byte{3, 2, 1, 6}},           // key usage cert sign
			pkix.Extension{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 44363, 44}, Value: []byte{5, 0}},  // delegated credentials
			pkix.Extension{Id: asn1.ObjectIdentifier{1, 2, 3}, Critical: true, Value: []byte{1, 1, 255}}, // anything
		)},
	} {
		t.Run(test.name, func(t *testing.T) {
			csr := newCSR(t, test.template, test.key)
			answer, err := profile.Issue(ca, signer.Template{CSR: csr, Usages: clientUsages}, time.Now())
			if test.want != "" {
				var refused *signer.Refused
				if !errors.As(err, &refused) || !strings.Contains(err.Error(), test.want) || answer != nil {
					t.Errorf("error is %v, want a refusal with %q", err, test.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			cert := decode(t, answer)[0]
			if got := cert.Subject.String(); got != "CN=jane" {
				t.Errorf("subject is %s", got)
			}
			if cert.IsCA || cert.KeyUsage != x509.KeyUsageDigitalSignature || len(cert.Extensions) != 5 {
				t.Errorf("CA %v, key usage %b, %d extensions", cert.IsCA, cert.KeyUsage, len(cert.Extensions))
			}
		})
	}
}

// What a stranger sends is refused or signed: there is no third way, which would be tried again
// and again.
func FuzzParseCSR(f *testing.F) {
	ca := newCA(f)
	profile := signer.Profile{Usages: clientUsages}
	for _, template := range []*x509.CertificateRequest{
		{Subject: nodeSubject("worker-1")},
		{Subject: pkix.Name{CommonName: "jane", Organization: []string{"a", "b"}, StreetAddress: []string{"s"}, Country: []string{"XX"}}},
		{Subject: pkix.Name{CommonName: "jane", ExtraNames: []pkix.AttributeTypeAndValue{attribute("a@b", 1, 2, 840, 113549, 1, 9, 1)}}},
		{DNSNames: []string{"a", "*.b"}, EmailAddresses: []string{"a@b"}, IPAddresses: nil},
	} {
		block, _ := pem.Decode(csrPEM(f, template, newEd25519()))
		f.Add(block.Bytes)
	}
	f.Add([]byte{0x30, 0x80})
	f.Add(hugeKey(f))
	f.Fuzz(func(t *testing.T, der []byte) {
		fuzzing.Prompt(t, func() {
			var refused *signer.Refused
			csr, err := signer.ParseCSR(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
			if err != nil {
				if !errors.As(err, &refused) {
					t.Errorf("not a refusal: %v", err)
				}
				return
			}
			answer, err := profile.Issue(ca, signer.Template{CSR: csr, Usages: clientUsages}, time.Now())
			if err != nil {
				if !errors.As(err, &refused) {
					t.Errorf("neither signed nor refused: %v", err)
				}
				return
			}
			if err := csr.CheckSignature(); err != nil {
				t.Errorf("signed without a signature of the requester: %v", err)
			}
			if cert := decode(t, answer)[0]; cert.IsCA || cert.KeyUsage != x509.KeyUsageDigitalSignature {
				t.Errorf("CA %v, key usage %b", cert.IsCA, cert.KeyUsage)
			}
		})
	})
}
