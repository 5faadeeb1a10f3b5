package auth

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/foreign"
	"github.com/kubejoin/kubejoin/internal/httplimit"
)

// How long the results of verifying certificates are cached, and how many of each kind.
const (
	verifiedTTL = 5 * time.Second
	refusedTTL  = time.Second
	maxVerified = 1024
)

// verified caches which chains of clients are good and which are not. That changes only with the pool of CAs, which is
// part of the result, and with time: no result counts beyond the end of a certificate in the chain. Good and bad ones
// are kept apart, so that a flood of bad ones pushes out no good one. Nil caches nothing.
type verified struct {
	mu        sync.Mutex
	good, bad map[[sha256.Size]byte]verifiedKey
}

type verifiedKey struct {
	roots        *x509.CertPool
	since, until time.Time
	why          error // it is not good
}

func (j verifiedKey) counts(roots *x509.CertPool, now time.Time) bool {
	return j.roots == roots && !now.Before(j.since) && now.Before(j.until)
}

// verify returns why the first of the certificates that a client has shown is not good, or nil.
func (v *verified) verify(shown []*x509.Certificate, roots *x509.CertPool, now time.Time) error {
	if v == nil {
		_, err := verifyClient(shown, roots, now)
		return err
	}
	key := sumOfAll(shown)
	v.mu.Lock()
	since, bad := v.good[key], v.bad[key]
	v.mu.Unlock()
	switch {
	case since.counts(roots, now):
		return nil
	case bad.counts(roots, now):
		return bad.why
	}
	end, err := verifyClient(shown, roots, now)
	v.mu.Lock()
	defer v.mu.Unlock()
	if err != nil {
		remember(&v.bad, key, verifiedKey{roots, now, now.Add(refusedTTL), err})
		return err
	}
	if most := now.Add(verifiedTTL); end.After(most) {
		end = most
	}
	remember(&v.good, key, verifiedKey{roots, now, end, nil})
	return nil
}

// remember adds a judgement. It empties a full map first.
func remember(all *map[[sha256.Size]byte]verifiedKey, key [sha256.Size]byte, j verifiedKey) {
	if *all == nil || len(*all) >= maxVerified {
		*all = map[[sha256.Size]byte]verifiedKey{}
	}
	(*all)[key] = j
}

// verifyClient returns until when the first certificate is good. Its errors hold no certificate.
func verifyClient(shown []*x509.Certificate, roots *x509.CertPool, now time.Time) (time.Time, error) {
	if err := httplimit.CheckChain(shown); err != nil { // of a server that HTTPServer has not made
		return time.Time{}, err
	}
	chains, err := shown[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: parents(shown, roots, now), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return time.Time{}, errors.New(foreign.Text(err.Error(), foreign.MaxName)) // those of x509 keep certificates and quote them
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

// parents are the certificates between the first and a root, as RFC 8446, section 4.4.2, orders them: each signed the one
// before. x509.Verify alone would try all combinations of what is shown, up to 100 signatures. This begins at the roots,
// so that no key is used which they did not sign.
func parents(shown []*x509.Certificate, roots *x509.CertPool, now time.Time) *x509.CertPool {
	anchored := func(c *x509.Certificate) bool {
		_, err := c.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
		return err == nil
	}
	top := len(shown) - 1
	for top > 0 && !anchored(shown[top]) {
		top--
	}
	pool := x509.NewCertPool()
	for ; top > 0; top-- {
		if shown[top-1].CheckSignatureFrom(shown[top]) != nil {
			return nil
		}
		pool.AddCert(shown[top])
	}
	return pool
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
