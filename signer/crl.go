package signer

import (
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/kubejoin/kubejoin/signer/revocation"
)

// ErrNoCRL is wrapped if a CA may not sign certificate revocation lists. The CA that kubeadm makes may not: clients
// such as OpenSSL and Go would refuse its lists (RFC 5280, section 4.2.1.3).
var ErrNoCRL = errors.New("the CA may not sign revocation lists: its key usage lacks \"CRL sign\"")

// CRLLifetime is the time until the next update of a revocation list.
const CRLLifetime = 24 * time.Hour

// maxSerialBits is the maximum length of a serial number (RFC 5280, section 4.1.2.2).
const maxSerialBits = 160

// CRL returns a certificate revocation list in DER (RFC 5280), with the serial numbers of the entries. Its number is
// the Unix time, so that it grows.
func (ca *CA) CRL(entries []revocation.Entry, now time.Time) ([]byte, error) {
	if ca == nil || ca.cert == nil {
		return nil, errors.New("no CA given")
	}
	if ca.cert.KeyUsage != 0 && ca.cert.KeyUsage&x509.KeyUsageCRLSign == 0 {
		return nil, fmt.Errorf("%q: %w", ca.cert.Subject, ErrNoCRL)
	}
	issuer := *ca.cert
	issuer.KeyUsage |= x509.KeyUsageCRLSign // crypto/x509 requires it even of a CA without the extension
	list := &x509.RevocationList{
		Number: big.NewInt(now.Unix()), ThisUpdate: now.UTC().Truncate(time.Second), NextUpdate: now.Add(CRLLifetime).UTC().Truncate(time.Second),
	}
	seen := map[string]bool{}
	for _, e := range entries {
		since := e.Since.UTC()
		if since.After(now) { // also a time that DER cannot represent
			since = now.UTC().Truncate(time.Second)
		}
		for _, s := range e.Serials {
			number, ok := new(big.Int).SetString(s.Number, 16)
			if !ok || number.Sign() <= 0 || number.BitLen() > maxSerialBits || seen[number.String()] || now.After(s.Until) {
				continue
			}
			seen[number.String()] = true
			list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: number, RevocationTime: since})
		}
	}
	return x509.CreateRevocationList(rand.Reader, list, &issuer, ca.key)
}
