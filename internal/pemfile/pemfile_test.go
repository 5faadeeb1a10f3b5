package pemfile_test

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
)

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func join(parts ...any) []byte {
	var all []byte
	for _, part := range parts {
		switch part := part.(type) {
		case string:
			all = append(all, part...)
		case []byte:
			all = append(all, part...)
		}
	}
	return all
}

func TestNoCertificateVanishes(t *testing.T) {
	ca := certtest.CA(t, "one").Leaf.Raw
	a, b := block("CERTIFICATE", ca), block("CERTIFICATE", certtest.CA(t, "two").Leaf.Raw)
	lines := bytes.Count(a, []byte("\n"))
	second := fmt.Sprintf("PEM block 2 (line %d)", lines+1)
	for name, test := range map[string]struct {
		data []byte
		want string // part of the error; empty if both certificates are read
	}{
		"two":                    {join(a, b), ""},
		"text around":            {join("# one\n", a, "two\n\n", b, "end"), ""},
		"a key between":          {join(a, block("PRIVATE KEY", []byte("x")), b), ""},
		"Windows lines":          {bytes.ReplaceAll(join(a, b), []byte("\n"), []byte("\r\n")), ""},
		"no newline at the end":  {bytes.TrimSpace(join(a, b)), ""},
		"byte order mark":        {join("\xef\xbb\xbf", a, b), "PEM block 1 (line 1)"},
		"no newline between":     {join(bytes.TrimSpace(a), b), fmt.Sprintf("PEM block 2 (line %d)", lines)},
		"text before on a line":  {join(a, "two: ", b), second},
		"in a comment":           {join(a, "#", b), second},
		"indented":               {join(a, "  ", bytes.ReplaceAll(b, []byte("\n"), []byte("\n  "))), second},
		"damaged":                {join(a, bytes.Replace(b, []byte("A"), []byte("!"), 1)), second},
		"damaged first":          {join(bytes.Replace(a, []byte("\n"), []byte("\n!"), 1), b), "PEM block 1 (line 1)"},
		"damaged beginning":      {join(a, bytes.Replace(b, []byte("BEGIN"), []byte("BEGN"), 1)), fmt.Sprintf("the PEM block that ends at line %d has no BEGIN line", 2*lines)},
		"damaged end":            {join(a, bytes.Replace(b, []byte("END"), []byte("END OF"), 1)), second},
		"cut end":                {join(a, b[:len(b)-40]), second},
		"cut beginning":          {join(a, b)[40:], fmt.Sprintf("the PEM block that ends at line %d has no BEGIN line", lines-1)},
		"another type":           {join(a, block("X509 CERTIFICATE", ca)), "PEM block 2: want type CERTIFICATE"},
		"trusted certificate":    {join(a, block("TRUSTED CERTIFICATE", ca)), "PEM block 2: want type CERTIFICATE"},
		"headers":                {join(a, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Headers: map[string]string{"A": "b"}, Bytes: ca})), "PEM block 2: want type CERTIFICATE without headers"},
		"malformed":              {join(a, block("CERTIFICATE", []byte("x"))), "certificate 2: x509"},
		"empty":                  {nil, "empty, want PEM"},
		"white space":            {[]byte(" \n"), "empty, want PEM"},
		"no PEM":                 {[]byte("x"), "no certificate found"},
		"a key and nothing else": {block("PRIVATE KEY", nil), "no certificate found"},
	} {
		certs, err := pemfile.Certificates(test.data)
		switch {
		case test.want == "" && (err != nil || len(certs) != 2):
			t.Errorf("%s: got %d certificates, %v, want 2", name, len(certs), err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: got %d certificates, %v, want an error with %q", name, len(certs), err, test.want)
		}
		if _, err := pemfile.Pool(test.data); (err == nil) != (test.want == "") {
			t.Errorf("%s: pool: got %v", name, err)
		}
	}
	if _, err := pemfile.OnlyCertificates(join(a, block("PRIVATE KEY", nil))); err == nil || !strings.Contains(err.Error(), "PEM block 2: want no blocks of types other than CERTIFICATE") {
		t.Errorf("a key among certificates only: got %v", err)
	}
}

func TestOneReadsOneBlockAndNothingElse(t *testing.T) {
	good := block("PUBLIC KEY", []byte("x"))
	for name, test := range map[string]struct {
		data []byte
		want string
	}{
		"one":           {join("\n \t", good, "\r\n"), ""},
		"two":           {join(good, good), "2 PEM blocks"},
		"text before":   {join("x\n", good), "data around"},
		"text after":    {join(good, "x"), "data around"},
		"another type":  {block("PRIVATE KEY", nil), `type "PRIVATE KEY", want PUBLIC KEY`},
		"headers":       {pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Headers: map[string]string{"A": "b"}}), "headers"},
		"no PEM":        {[]byte("x"), "not PEM"},
		"empty":         {nil, "empty"},
		"damaged first": {join("-----BEGIN PUBLIC KEY-----\n!\n-----END PUBLIC KEY-----\n", good), "PEM block 1 (line 1)"},
	} {
		der, err := pemfile.One(test.data, pemfile.PublicKey)
		if (err == nil) != (test.want == "") || err == nil && string(der) != "x" || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %q, %v, want %q", name, der, err, test.want)
		}
	}
}

func TestReportsMalformedKey(t *testing.T) {
	agreement := must.Value(ecdh.X25519().GenerateKey(rand.Reader))(t)
	der := must.Value(x509.MarshalPKCS8PrivateKey(agreement))(t)
	cut := []byte("-----BEGIN CERTIFICATE-----\nAAAA\n")
	for name, test := range map[string]struct {
		data []byte
		want string
	}{
		"no key":                 {[]byte("x"), "no private key found"},
		"empty":                  {nil, "empty, want PEM"},
		"key beside a cut block": {join(block("EC PARAMETERS", []byte("x")), cut), "PEM block 2 (line 4) is damaged or truncated"},
		"malformed key":          {block("PRIVATE KEY", []byte("x")), "holds no valid key"},
		"key that cannot sign":   {block("PRIVATE KEY", der), "cannot sign"},
		"key of another type":    {block("DSA PRIVATE KEY", []byte("x")), `PEM block of type "DSA PRIVATE KEY"`},
		"encrypted":              {block("ENCRYPTED PRIVATE KEY", []byte("x")), "encrypted"},
	} {
		if _, err := pemfile.Key(test.data); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, test.want)
		}
	}
}

func TestLoadKeyPairReadsWholeChain(t *testing.T) {
	ca := certtest.CA(t, "kubernetes")
	serving := certtest.Serving(t, ca, "127.0.0.1")
	der := must.Value(x509.MarshalPKCS8PrivateKey(serving.PrivateKey))(t)
	leaf, key := block("CERTIFICATE", serving.Certificate[0]), block("PRIVATE KEY", der)
	dir := t.TempDir()
	load := func(certificate, key []byte) (tls.Certificate, error) {
		for name, content := range map[string][]byte{"tls.crt": certificate, "tls.key": key} {
			must.OK(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
		}
		return pemfile.LoadKeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	}
	if pair, err := load(join(leaf, block("CERTIFICATE", ca.Leaf.Raw)), key); err != nil || len(pair.Certificate) != 2 {
		t.Errorf("got a chain of %d certificates, %v, want 2", len(pair.Certificate), err)
	}
	if _, err := load(join(bytes.TrimSpace(leaf), block("CERTIFICATE", ca.Leaf.Raw)), key); err == nil || !strings.Contains(err.Error(), "tls.crt") || !strings.Contains(err.Error(), "certificate: PEM block 2") {
		t.Errorf("no newline between: got %v, want the file and the block", err)
	}
	if _, err := load(leaf, key[:len(key)-20]); err == nil || !strings.Contains(err.Error(), "key: PEM block 1") {
		t.Errorf("cut key: got %v, want the block", err)
	}
}
