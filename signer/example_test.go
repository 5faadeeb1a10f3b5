package signer_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	certificates "k8s.io/api/certificates/v1"
)

// exampleCSR returns a CSR as a machine sends it.
func exampleCSR(commonName string) *x509.CertificateRequest {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		log.Fatal(err)
	}
	subject := pkix.Name{Organization: []string{"system:nodes"}, CommonName: commonName}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
	if err != nil {
		log.Fatal(err)
	}
	csr, err := pkcs10.Parse(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	if err != nil {
		log.Fatal(err)
	}
	return csr
}

// exampleAuthority signs with a generated CA. Use signer.LoadCA to read a CA from files, or signer.NewCA for any
// crypto.Signer.
func exampleAuthority() *signer.Authority {
	ca, err := signer.GenerateCA("kubernetes", time.Now(), 10*365*24*time.Hour)
	if err != nil {
		log.Fatal(err)
	}
	signers, err := signer.KubernetesSigners(signer.Fixed(ca), 24*time.Hour)
	if err != nil {
		log.Fatal(err)
	}
	return &signer.Authority{Signers: signer.FixedSigners(signers)}
}

// Sign issues a certificate for a request that somebody else has approved, unless the signer refuses the request.
func ExampleAuthority_Sign() {
	authority := exampleAuthority()
	for _, name := range []string{"system:node:worker-1", "kubernetes-admin"} {
		chain, err := authority.Sign(context.Background(), approval.Request{
			SignerName: certificates.KubeAPIServerClientKubeletSignerName,
			Usages:     []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
			CSR:        exampleCSR(name),
		})
		if refused := approval.Refused(err); refused != nil {
			fmt.Println(refused.Reason)
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		block, _ := pem.Decode(chain)
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(cert.Subject, cert.NotAfter.Sub(cert.NotBefore))
	}
	// Output:
	// CN=system:node:worker-1,O=system:nodes 24h0m0s
	// SignerValidationFailure
}

// rack approves the machines on a site's own list. A rule that cannot decide yet returns an error, and the request
// waits.
type rack map[string]bool

func (rack) Name() string { return "rack" }

func (known rack) Decide(_ context.Context, r approval.Request, _ approval.Facts) (approval.Decision, error) {
	if approval.CheckKubeletClient(r) != nil {
		return approval.Decision{}, nil // leave the decision to other rules
	}
	if name := r.CSR.Subject.CommonName; !known[name] {
		return approval.Decision{Verdict: approval.Deny, Reason: "NotInRack", Message: name + " is not in the rack's list"}, nil
	}
	return approval.Decision{Verdict: approval.Approve, Reason: "InRack"}, nil
}

// A custom rule decides on each request before the signer issues a certificate.
func ExampleAuthority_Issue() {
	authority := exampleAuthority()
	kubelet := authority.Signers()[certificates.KubeAPIServerClientKubeletSignerName]
	kubelet.Rules = []approval.Rule{rack{"system:node:worker-1": true}}
	authority.Signers = signer.FixedSigners(map[string]signer.Signer{certificates.KubeAPIServerClientKubeletSignerName: kubelet})
	for _, name := range []string{"system:node:worker-1", "system:node:worker-2"} {
		chain, err := authority.Issue(context.Background(), approval.Request{
			SignerName: certificates.KubeAPIServerClientKubeletSignerName,
			User:       "kubelet-bootstrap", // the authenticated requester
			Usages:     []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
			CSR:        exampleCSR(name),
		})
		var no *approval.Error
		switch {
		case errors.As(err, &no):
			fmt.Println(no.Verdict, no.Reason, "by", no.Rule)
		case err != nil:
			log.Fatal(err)
		default:
			fmt.Println("certificate:", len(chain) > 0)
		}
	}
	// Output:
	// certificate: true
	// deny NotInRack by rack
}

// Validity needs neither a clock nor a CA key. A program can show the validity before it requests a certificate.
func ExampleProfile_Validity() {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	caEnds := now.Add(30 * 24 * time.Hour)
	profile, err := signer.NewProfile(signer.ProfileConfig{
		Usages: []certificates.KeyUsage{certificates.UsageClientAuth},
		Min:    time.Hour, Default: 24 * time.Hour, Max: 7 * 24 * time.Hour,
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, asked := range []time.Duration{0, time.Minute, 90 * 24 * time.Hour} {
		_, notAfter, err := profile.Validity(caEnds, asked, now)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%v asked: until %s\n", asked, notAfter.Format(time.DateTime))
	}
	// Output:
	// 0s asked: until 2026-03-02 11:55:00
	// 1m0s asked: until 2026-03-01 13:00:00
	// 2160h0m0s asked: until 2026-03-08 11:55:00
}
