// Package csrtest makes keys and well-formed certificate requests (PKCS #10) for tests. Malformed ones are in
// internal/testing/hostile.
package csrtest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"sync"
	"testing"

	"github.com/kubejoin/kubejoin/signer/pkcs10"
)

// RSA2048 and RSA1024 return an RSA key of that size, the same at each call.
var (
	RSA2048 = sync.OnceValue(func() *rsa.PrivateKey { return must(rsa.GenerateKey(rand.Reader, 2048)) })
	RSA1024 = sync.OnceValue(func() *rsa.PrivateKey { return must(rsa.GenerateKey(rand.Reader, 1024)) })
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// ECDSA makes a key on a curve.
func ECDSA(curve elliptic.Curve) crypto.Signer { return must(ecdsa.GenerateKey(curve, rand.Reader)) }

// Ed25519 makes an Ed25519 key.
func Ed25519() crypto.Signer {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	return must(key, err)
}

// NewKey makes a key on P-256.
func NewKey() crypto.Signer { return ECDSA(elliptic.P256()) }

// PEM makes a request. If key is nil, PEM makes a new one on P-256.
func PEM(t testing.TB, template *x509.CertificateRequest, key crypto.Signer) []byte {
	t.Helper()
	if key == nil {
		key = NewKey()
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pkcs10.BlockType, Bytes: der})
}

// New is [PEM], parsed.
func New(t testing.TB, template *x509.CertificateRequest, key crypto.Signer) *x509.CertificateRequest {
	t.Helper()
	csr, err := pkcs10.Parse(PEM(t, template, key))
	if err != nil {
		t.Fatal(err)
	}
	return csr
}

// Node returns the subject of a node's certificates.
func Node(name string) pkix.Name {
	return pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}}
}
