package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"time"

	"github.com/kubejoin/kubejoin/signer"
	certificates "k8s.io/api/certificates/v1"
)

// servingCertificate issues a certificate with a new key for the host in listen. The cluster CA must
// issue it, because a joining machine trusts no other CA. It lasts a year; a server that runs longer
// renews it in tls.Config.GetCertificate.
func servingCertificate(ca *signer.CA, listen string) (tls.Certificate, error) {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return tls.Certificate{}, err
	}
	want := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "embed-server"}}
	if ip := net.ParseIP(host); ip != nil {
		want.IPAddresses = []net.IP{ip}
	} else {
		want.DNSNames = []string{host}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, want, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return tls.Certificate{}, err
	}
	usages := []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageServerAuth}
	profile, err := signer.NewProfile(signer.ProfileConfig{Usages: usages})
	if err != nil {
		return tls.Certificate{}, err
	}
	chain, err := profile.Issue(ca, signer.Template{CSR: csr, Usages: usages}, time.Now())
	if err != nil {
		return tls.Certificate{}, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(chain, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
}
