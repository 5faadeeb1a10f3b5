package signer

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
)

// GenerateCA makes a self-signed CA with a new ECDSA P-256 key, for a cluster without a CA. kubeadm uses the common
// name "kubernetes" and a lifetime of ten years. The CA is valid from five minutes before now, for machines whose
// clock is slow.
func GenerateCA(commonName string, now time.Time, lifetime time.Duration) (*CA, error) {
	if commonName == "" {
		return nil, errors.New("CA common name is empty")
	}
	if lifetime < shortLived {
		return nil, fmt.Errorf("CA lifetime is %s, want at least %s", safetext.Duration(lifetime), safetext.Duration(shortLived))
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("CA key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber:          newSerial(),
		Subject:               pkix.Name{CommonName: commonName},
		NotBefore:             now.Add(-backdate).UTC().Truncate(time.Second),
		NotAfter:              now.Add(lifetime).UTC().Truncate(time.Second),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("CA certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("CA certificate: %w", err)
	}
	return NewCA([]*x509.Certificate{cert}, key)
}
