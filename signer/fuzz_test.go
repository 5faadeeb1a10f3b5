package signer_test

import (
	"bytes"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/fuzzing"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
)

// hugeKey returns a CSR with an RSA key of 180,000 bits, close to the size limit MaxRequest, and a forged
// signature. Verifying that signature would take a second.
func hugeKey(t testing.TB) []byte {
	t.Helper()
	const bits = 180_000
	marshal := func(v any) []byte {
		return must.Value(asn1.Marshal(v))(t)
	}
	bitString := func(b []byte) asn1.BitString { return asn1.BitString{Bytes: b, BitLength: len(b) * 8} }
	algorithm := func(last int) pkix.AlgorithmIdentifier { // PKCS #1 (RFC 8017)
		return pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, last}, Parameters: asn1.NullRawValue}
	}
	type publicKey struct {
		Algorithm pkix.AlgorithmIdentifier
		Key       asn1.BitString
	}
	type info struct { // RFC 2986, section 4.1
		Version    int
		Subject    asn1.RawValue
		PublicKey  publicKey
		Attributes []asn1.RawValue `asn1:"tag:0"`
	}
	n := new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), bits), big.NewInt(1))
	key := marshal(struct{ N, E *big.Int }{n, big.NewInt(1<<31 - 1)})
	forged := bytes.Repeat([]byte{0x7f}, bits/8)
	return marshal(struct {
		Info      info
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{
		info{0, asn1.RawValue{FullBytes: marshal(csrtest.Node("worker-1").ToRDNSequence())}, publicKey{algorithm(1), bitString(key)}, nil},
		algorithm(11),
		bitString(forged),
	})
}

// FuzzLoadCA loads CA files as operators write them, and files that were copied incompletely.
func FuzzLoadCA(f *testing.F) {
	ca := must.Value(signer.GenerateCA("kubernetes", time.Now(), 24*time.Hour))(f)
	cert, key, err := ca.PEM()
	if err != nil {
		f.Fatal(err)
	}
	other := must.Get(signer.GenerateCA("next", time.Now(), 24*time.Hour))
	otherCert, otherKey, err := other.PEM()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(cert, key)
	f.Add(append(bytes.Clone(otherCert), cert...), key)
	f.Add(cert, otherKey)
	f.Add(cert, append(bytes.Clone(key), otherKey...))
	f.Add(cert[:len(cert)/2], key[:len(key)/2])
	f.Add([]byte(encodePEM("CERTIFICATE", nil)), []byte(encodePEM("EC PRIVATE KEY", nil)))
	f.Add(bytes.Repeat(cert, 100), append(bytes.Repeat([]byte("text\n"), 10_000), key...))
	dir := f.TempDir()
	certFile, keyFile := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	f.Fuzz(func(t *testing.T, cert, key []byte) {
		for file, content := range map[string][]byte{certFile: cert, keyFile: key} {
			must.OK(t, os.WriteFile(file, content, 0o600))
		}
		fuzzing.RunWithinLimit(t, func() {
			ca, err := signer.LoadCA(certFile, keyFile)
			if err != nil {
				for line := range strings.Lines(string(key)) {
					if line = strings.TrimSpace(line); len(line) > 30 && !strings.Contains(line, "-----") && !bytes.Contains(cert, []byte(line)) && strings.Contains(err.Error(), line) {
						t.Errorf("error contains a line of the key: %v", err)
					}
				}
				return
			}
			bundle, key, err := ca.PEM()
			if err != nil {
				t.Fatal(err)
			}
			if len(ca.Bundle()) == 0 || !bytes.Contains(bundle, []byte("CERTIFICATE")) || len(key) == 0 || ca.Certificate().PublicKey == nil {
				t.Error("got a CA without certificate or key")
			}
		})
	})
}

func encodePEM(kind string, content []byte) string {
	return "-----BEGIN " + kind + "-----\n" + string(content) + "\n-----END " + kind + "-----\n"
}
