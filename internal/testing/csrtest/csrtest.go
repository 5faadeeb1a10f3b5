// Package csrtest creates keys and well-formed certificate requests (PKCS #10) for tests. Malformed requests are in
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

// RSA2048 and RSA1024 return an RSA key of this size. Each call returns the same key.
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

// ECDSA generates a key on a curve.
func ECDSA(curve elliptic.Curve) crypto.Signer { return must(ecdsa.GenerateKey(curve, rand.Reader)) }

// Ed25519 generates an Ed25519 key.
func Ed25519() crypto.Signer {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	return must(key, err)
}

// NewKey generates a P-256 key.
func NewKey() crypto.Signer { return ECDSA(elliptic.P256()) }

// PEM creates a request in PEM. If key is nil, PEM generates a P-256 key.
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

// New is like [PEM], but returns the parsed request.
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
