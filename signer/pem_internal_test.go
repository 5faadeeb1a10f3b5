package signer

import (
	"crypto/ecdh"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"
)

func TestReportsMalformedPEM(t *testing.T) {
	agreement, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(agreement)
	if err != nil {
		t.Fatal(err)
	}
	block := func(typ string) []byte { return pem.EncodeToMemory(&pem.Block{Type: typ, Bytes: []byte("x")}) }
	cut := []byte("-----BEGIN CERTIFICATE-----\nAAAA\n")
	certificates := func(data []byte) error { _, err := parseCertificates(data); return err }
	key := func(data []byte) error { _, err := parseKey(data); return err }
	for name, test := range map[string]struct {
		parse func([]byte) error
		data  []byte
		want  string
	}{
		"no certificate":         {certificates, nil, "no certificate found"},
		"certificate cut off":    {certificates, cut, "damaged or truncated"},
		"malformed certificate":  {certificates, block("CERTIFICATE"), "certificate 1: x509"},
		"no key":                 {key, nil, "no private key found"},
		"key beside a cut block": {key, append(block("EC PARAMETERS"), cut...), "damaged or truncated"},
		"malformed key":          {key, block("PRIVATE KEY"), "holds no valid key"},
		"key that cannot sign":   {key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), "cannot sign"},
		"key of another type":    {key, block("DSA PRIVATE KEY"), "PEM block of type DSA PRIVATE KEY"},
	} {
		if err := test.parse(test.data); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, test.want)
		}
	}
}
