package signer

import (
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// CrossSign makes a cross certificate: this CA signs the key of another CA, with the limits of the other CA. It proves
// to clients that trust this CA that a holder of its key approved the other CA. Such clients can then verify
// certificates of the other CA. The cross certificate expires with the CA that expires first. CrossSign has no policy:
// the caller decides about the other CA.
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
	template.SignatureAlgorithm = 0 // x509 selects it by the key of this CA
	template.AuthorityKeyId = ca.cert.SubjectKeyId
	template.CRLDistributionPoints, template.OCSPServer, template.IssuingCertificateURL = nil, nil, nil // of the other issuer
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
