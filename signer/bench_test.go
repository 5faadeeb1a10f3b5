package signer_test

import (
	"crypto"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/pem"
	"testing"
	"time"

	"github.com/cloudflare/cfssl/config"
	cfssl "github.com/cloudflare/cfssl/signer"
	"github.com/cloudflare/cfssl/signer/local"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
)

// BenchmarkIssue measures the whole work for one kubelet, from CSR in PEM to certificate in PEM. "bare" is the
// minimum with crypto/x509, "cfssl" is cfssl as its documentation shows. CA and requester have keys of the same
// type.
func BenchmarkIssue(b *testing.B) {
	for _, kind := range []struct {
		name string
		key  func() crypto.Signer
	}{
		{"RSA-2048", func() crypto.Signer { return csrtest.RSA2048() }},
		{"P-256", func() crypto.Signer { return csrtest.ECDSA(elliptic.P256()) }},
		{"P-384", func() crypto.Signer { return csrtest.ECDSA(elliptic.P384()) }},
		{"Ed25519", csrtest.Ed25519},
	} {
		key := kind.key()
		root := caCertificate(b, "ca", key, nil, nil, nil)
		ca := must.Get(signer.NewCA([]*x509.Certificate{root}, key))
		request := csrtest.PEM(b, &x509.CertificateRequest{Subject: csrtest.Node("worker-1")}, kind.key())
		profile := must.Get(signer.NewProfile(signer.ProfileConfig{Usages: clientUsages}))
		b.Run(kind.name+"/kubejoin", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				csr := must.Value(pkcs10.Parse(request))(b)
				must.Value(profile.Issue(ca, signer.Template{CSR: csr, Usages: clientUsages}, time.Now()))(b)
			}
		})
		b.Run(kind.name+"/bare", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				block, _ := pem.Decode(request)
				csr := must.Value(x509.ParseCertificateRequest(block.Bytes))(b)
				must.OK(b, csr.CheckSignature())
				now := time.Now()
				der := must.Value(kcmIssue(csr, root, key, x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, now, now.Add(time.Hour)))(b)
				pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
			}
		})
		b.Run(kind.name+"/cfssl", func(b *testing.B) {
			policy := &config.Signing{Default: &config.SigningProfile{Usage: []string{"digital signature", "client auth"}, Expiry: time.Hour}}
			s := must.Get(local.NewSigner(key, root, x509.UnknownSignatureAlgorithm, policy))
			b.ReportAllocs()
			for b.Loop() {
				must.Value(s.Sign(cfssl.SignRequest{Request: string(request)}))(b)
			}
		})
	}
}
