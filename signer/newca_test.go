package signer_test

import (
	"crypto"
	"crypto/elliptic"
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
)

// opaque is a key whose public key has a type that kubejoin does not know, as an ML-DSA key in a newer Go.
type opaque struct{ crypto.Signer }

type opaquePublic struct{}

func (opaquePublic) Equal(crypto.PublicKey) bool { return true }

func (opaque) Public() crypto.PublicKey { return opaquePublic{} }

func TestNewCARefusesUnusableCertificatesAndKeys(t *testing.T) {
	key := csrtest.ECDSA(elliptic.P256())
	good := caCertificate(t, "ca", key, nil, nil, nil)
	without := *good
	without.BasicConstraintsValid = false
	for name, test := range map[string]struct {
		certs []*x509.Certificate
		key   crypto.Signer
		want  string
	}{
		"nil certificate":           {[]*x509.Certificate{good, nil}, key, "certificate 2 of 2: missing certificate"},
		"without basic constraints": {[]*x509.Certificate{&without}, key, "is not a CA"},
		"key of an unknown type":    {[]*x509.Certificate{good}, opaque{key}, "want RSA, ECDSA or Ed25519"},
	} {
		if _, err := signer.NewCA(test.certs, test.key); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: NewCA = %v, want %q", name, err, test.want)
		}
	}
}

// A new root that the old root has signed has the same subject and issuer. Clients that only trust the old root
// need it in the chain.
func TestChainIncludesCrossSignedRoot(t *testing.T) {
	oldKey, key := csrtest.ECDSA(elliptic.P256()), csrtest.ECDSA(elliptic.P256())
	old := caCertificate(t, "kubernetes", oldKey, nil, nil, nil)
	ca := must.Get(signer.NewCA([]*x509.Certificate{caCertificate(t, "kubernetes", key, old, oldKey, nil), old}, key))
	chain := must.Value(must.Get(signer.NewProfile(signer.ProfileConfig{Usages: clientUsages})).Issue(ca, signer.Template{CSR: csrtest.New(t, &x509.CertificateRequest{Subject: csrtest.Node("w")}, nil), Usages: clientUsages}, time.Now()))(t)
	certs := decode(t, chain)
	if len(certs) != 2 || !certs[1].Equal(ca.Certificate()) {
		t.Errorf("the chain has %d certificates, want the certificate and the cross-signed root", len(certs))
	}
}

// A renamed CA keeps the key of the old CA. It is not self-signed, although its own key verifies its signature.
func TestChainIncludesRenamedCA(t *testing.T) {
	key := csrtest.ECDSA(elliptic.P256())
	old := caCertificate(t, "old", key, nil, nil, nil)
	renamed := caCertificate(t, "new", key, old, key, func(c *x509.Certificate) { c.NotAfter = old.NotAfter.Add(time.Hour) })
	ca := must.Get(signer.NewCA([]*x509.Certificate{old, renamed}, key))
	chain := must.Value(must.Get(signer.NewProfile(signer.ProfileConfig{Usages: clientUsages})).Issue(ca, signer.Template{CSR: csrtest.New(t, &x509.CertificateRequest{Subject: csrtest.Node("w")}, nil), Usages: clientUsages}, time.Now()))(t)
	if certs := decode(t, chain); len(certs) != 2 || !certs[1].Equal(renamed) {
		t.Errorf("the chain has %d certificates, want the certificate and the renamed CA", len(certs))
	}
}

func TestGenerateCARefusesEmptyName(t *testing.T) {
	if _, err := signer.GenerateCA("", time.Now(), 24*time.Hour); err == nil || !strings.Contains(err.Error(), "common name is empty") {
		t.Errorf("GenerateCA = %v, want an error about the name", err)
	}
}

func TestZeroProfileIssuesNothing(t *testing.T) {
	template := signer.Template{CSR: csrtest.New(t, &x509.CertificateRequest{Subject: csrtest.Node("w")}, nil), Usages: clientUsages}
	if chain, err := (signer.Profile{}).Issue(newCA(t), template, time.Now()); err == nil || chain != nil {
		t.Errorf("Issue = %d bytes, %v, want an error", len(chain), err)
	}
}

// inDevice is a key that can sign but cannot be exported.
type inDevice struct{ crypto.Signer }

func TestPEMFailsForKeyThatCannotBeExported(t *testing.T) {
	key := csrtest.ECDSA(elliptic.P256())
	ca := must.Get(signer.NewCA([]*x509.Certificate{caCertificate(t, "ca", key, nil, nil, nil)}, inDevice{key}))
	if certs, private, err := ca.PEM(); err == nil || certs != nil || private != nil {
		t.Errorf("PEM = %d and %d bytes, %v, want an error alone", len(certs), len(private), err)
	}
}
