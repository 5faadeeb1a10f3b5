package pkcs10_test

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/crafted"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
)

func TestParseAcceptsOnlyOnePEMBlock(t *testing.T) {
	good := csrtest.PEM(t, &x509.CertificateRequest{Subject: csrtest.Node("worker-1")}, nil)
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
		{name: "nothing", want: "empty, want PEM"},
		{name: "DER", data: block.Bytes, want: "not PEM"},
		{name: "another type", data: encode("CERTIFICATE", nil, block.Bytes), want: `type "CERTIFICATE"`},
		{name: "the old type", data: encode("NEW CERTIFICATE REQUEST", nil, block.Bytes), want: "type"},
		{name: "headers", data: encode("CERTIFICATE REQUEST", map[string]string{"A": "b"}, block.Bytes), want: "headers"},
		{name: "two blocks", data: join(good, good), want: "block"},
		{name: "text after", data: join(good, []byte("x")), want: "around"},
		{name: "text before", data: join([]byte("x\n"), good), want: "around"},
		{name: "broken block before", data: join([]byte("-----BEGIN CERTIFICATE REQUEST-----\n!\n-----END CERTIFICATE REQUEST-----\n"), good), want: "PEM block 1 (line 1)"},
		{name: "trailing DER", data: encode("CERTIFICATE REQUEST", nil, append(bytes.Clone(block.Bytes), 0)), want: "parsed"},
		{name: "no DER", data: encode("CERTIFICATE REQUEST", nil, []byte("hello")), want: "parsed"},
		{name: "huge", data: bytes.Repeat([]byte("A"), pkcs10.MaxBytes+1), want: "65537 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			csr, err := pkcs10.Parse(test.data)
			if test.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if csr.Subject.CommonName != "system:node:worker-1" {
					t.Errorf("got subject %s", csr.Subject)
				}
				return
			}
			var refused *approval.Error
			if !errors.As(err, &refused) || refused.Verdict != approval.Deny || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want a refusal with %q", err, test.want)
			}
		})
	}
}

// crypto/x509 does not know ML-DSA before Go 1.27. The refusal names the algorithm.
func TestCheckNamesUnknownKeyAlgorithm(t *testing.T) {
	csr := must.Value(pkcs10.Parse(crafted.PEM(crafted.MLDSA65(crafted.Subject(crafted.UTF8(crafted.CommonName, "jane"))))))(t)
	const want = "the key has the algorithm 2.16.840.1.101.3.4.3.18, want RSA, ECDSA or Ed25519"
	if err := pkcs10.Check(csr); approval.Refused(err) == nil || err.Error() != want {
		t.Errorf("got %v, want a refusal: %s", err, want)
	}
	for spki, want := range map[string]string{"": "unknown", "\x30\x00": "unknown", string(csr.RawSubjectPublicKeyInfo) + "x": "unknown", string(csr.RawSubjectPublicKeyInfo): "2.16.840.1.101.3.4.3.18"} {
		if got := pkcs10.KeyAlgorithm([]byte(spki)); got != want {
			t.Errorf("%.20q: got %s, want %s", spki, got, want)
		}
	}
}
