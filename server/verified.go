package server

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"sync"
	"time"
)

// For how long verified certificates are remembered, and how many.
const (
	verifiedFor  = 5 * time.Second
	verifiedMost = 1024
)

// verified knows the chains of clients that were good a moment ago. What makes them good does not
// change but with the pool of CAs, which is part of what is known, and with time: none is known
// beyond the end of a certificate in it. Nil remembers nothing.
type verified struct {
	mu    sync.Mutex
	known map[[sha256.Size]byte]goodChain
}

type goodChain struct {
	roots        *x509.CertPool
	since, until time.Time
}

// verify says why the first of the certificates that a client has shown is not good, or nil.
func (v *verified) verify(shown []*x509.Certificate, roots *x509.CertPool, now time.Time) error {
	if v == nil {
		_, err := verifyClient(shown, roots, now)
		return err
	}
	key := sumOfAll(shown)
	v.mu.Lock()
	good, found := v.known[key]
	v.mu.Unlock()
	if found && good.roots == roots && !now.Before(good.since) && now.Before(good.until) {
		return nil
	}
	end, err := verifyClient(shown, roots, now)
	if err != nil {
		return err
	}
	if most := now.Add(verifiedFor); end.After(most) {
		end = most
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.known == nil || len(v.known) >= verifiedMost {
		v.known = map[[sha256.Size]byte]goodChain{}
	}
	v.known[key] = goodChain{roots, now, end}
	return nil
}

// verifyClient says until when the first certificate is good.
func verifyClient(shown []*x509.Certificate, roots *x509.CertPool, now time.Time) (time.Time, error) {
	intermediates := x509.NewCertPool()
	for _, cert := range shown[1:] {
		intermediates.AddCert(cert)
	}
	chains, err := shown[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return time.Time{}, err
	}
	end := shown[0].NotAfter
	for _, chain := range chains {
		for _, cert := range chain {
			if cert.NotAfter.Before(end) {
				end = cert.NotAfter
			}
		}
	}
	return end, nil
}

func sumOfAll(shown []*x509.Certificate) (sum [sha256.Size]byte) {
	h := sha256.New()
	for _, cert := range shown {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(cert.Raw)))
		_, _ = h.Write(length[:]) // a hash never fails
		_, _ = h.Write(cert.Raw)
	}
	h.Sum(sum[:0])
	return sum
}
