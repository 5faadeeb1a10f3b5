package signer

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// CheckTrust returns why clients would refuse certificates that a CA issues, or nil. Reasons are name constraints,
// extended key usages, and the permitted length of the path to the root in bundle. CheckTrust verifies a test
// certificate of a node for each of the usages. hosts are the DNS names and IP addresses in this certificate.
//
// CheckTrust needs no private key: it uses copies of the CAs with new keys. It follows crypto/x509, as Kubernetes
// does.
func CheckTrust(ca *x509.Certificate, bundle []*x509.Certificate, usages []x509.ExtKeyUsage, hosts []string) error {
	now := time.Now()
	leaf := &x509.Certificate{
		Subject:  pkix.Name{CommonName: tokens.NodeUserPrefix + "x", Organization: []string{tokens.NodesGroup}},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: usages,
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			leaf.IPAddresses = append(leaf.IPAddresses, ip)
		} else {
			leaf.DNSNames = append(leaf.DNSNames, host)
		}
	}
	path := chainOf(ca, bundle)
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	var issuer *x509.Certificate
	var issuerKey *ecdsa.PrivateKey
	for i := len(path); i >= 0; i-- { // from the root to the leaf
		template := leaf
		if i > 0 {
			template = copyOf(path[i-1])
		}
		template.SerialNumber, template.NotBefore, template.NotAfter = newSerial(), now.Add(-backdate), now.Add(backdate)
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return err
		}
		if issuer == nil {
			issuer, issuerKey = template, key
		}
		der, err := x509.CreateCertificate(rand.Reader, template, issuer, key.Public(), issuerKey)
		if err != nil {
			return fmt.Errorf("cannot verify certificates of CA %q: %w", ca.Subject, err)
		}
		if issuer, err = x509.ParseCertificate(der); err != nil {
			return fmt.Errorf("cannot verify certificates of CA %q: %w", ca.Subject, err)
		}
		switch issuerKey = key; i {
		case 0:
		case len(path):
			roots.AddCert(issuer)
		default:
			between.AddCert(issuer)
		}
	}
	for _, usage := range usages {
		if _, err := issuer.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{usage}, CurrentTime: now}); err != nil {
			return fmt.Errorf("clients refuse certificates of CA %q: %w; use a CA without this limit", ca.Subject, err)
		}
	}
	return nil
}

var (
	oidSubjectKeyID   = asn1.ObjectIdentifier{2, 5, 29, 14}
	oidAuthorityKeyID = asn1.ObjectIdentifier{2, 5, 29, 35}
)

// copyOf returns a template with the subject and the extensions of a CA certificate, except extensions that identify
// a key.
func copyOf(ca *x509.Certificate) *x509.Certificate {
	return &x509.Certificate{
		RawSubject: ca.RawSubject,
		ExtraExtensions: slices.DeleteFunc(slices.Clone(ca.Extensions), func(e pkix.Extension) bool {
			return e.Id.Equal(oidSubjectKeyID) || e.Id.Equal(oidAuthorityKeyID)
		}),
	}
}

// chainOf returns a CA, its issuer in the bundle, and so on up to the root. The root is last, if the bundle has it.
func chainOf(ca *x509.Certificate, bundle []*x509.Certificate) []*x509.Certificate {
	var path []*x509.Certificate
	for cert := ca; cert != nil && !slices.ContainsFunc(path, cert.Equal); {
		path = append(path, cert)
		var issuer *x509.Certificate
		for _, c := range bundle {
			if !selfSigned(cert) && !c.Equal(cert) && bytes.Equal(c.RawSubject, cert.RawIssuer) && cert.CheckSignatureFrom(c) == nil {
				issuer = c
				break
			}
		}
		cert = issuer
	}
	return path
}
