package signer

import (
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// CrossSign certifies the key of another CA by this one, with the limits of that CA. It proves to those that trust this CA
// that a holder of its key chose the other one, and lets them verify what the other one issues. The certificate ends with
// the CA that ends first. CrossSign has no policy: the caller decides about the other CA.
func (ca *CA) CrossSign(other *x509.Certificate) (*x509.Certificate, error) {
	if err := checkCA(other); err != nil {
		return nil, err
	}
	if ca.key == nil {
		return nil, errors.New("the key of this CA is in a signer process, which certifies no other CA")
	}
	if ca.cert.MaxPathLenZero && ca.cert.MaxPathLen == 0 {
		return nil, fmt.Errorf("%q has path length 0 and cannot certify another CA", ca.cert.Subject)
	}
	template := *other
	template.SerialNumber = newSerial()
	template.SignatureAlgorithm = 0 // x509 takes the one of the key of this CA
	template.AuthorityKeyId = ca.cert.SubjectKeyId
	template.CRLDistributionPoints, template.OCSPServer, template.IssuingCertificateURL = nil, nil, nil // of the other's issuer
	template.KeyUsage |= x509.KeyUsageCertSign                                                          // without the extension, every usage is allowed
	template.NotBefore = time.Now().Add(-backdate).UTC().Truncate(time.Second)
	if template.NotAfter.After(ca.cert.NotAfter) {
		template.NotAfter = ca.cert.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, ca.cert, other.PublicKey, ca.key)
	if err != nil {
		return nil, fmt.Errorf("cross certificate of %q: %w", other.Subject, err)
	}
	return x509.ParseCertificate(der)
}
