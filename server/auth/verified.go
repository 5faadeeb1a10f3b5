package auth

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"time"

	"github.com/kubejoin/kubejoin/internal/foreign"
	"github.com/kubejoin/kubejoin/internal/httplimit"
	"k8s.io/apimachinery/pkg/util/cache"
)

// How long the results of verifying certificates are cached, and how many of each kind.
const (
	verifiedTTL = 5 * time.Second
	refusedTTL  = time.Second
	maxVerified = 1024
)

// verified caches the results of verifying client certificate chains: since when a chain is valid, or why it is not.
// A valid result expires no later than any certificate in the chain. Valid and invalid chains have separate caches,
// so that a flood of invalid chains evicts no valid one. A nil verified caches nothing.
type verified struct{ good, bad *cache.LRUExpireCache }

// verifiedKey holds everything that a result depends on, except the time.
type verifiedKey struct {
	roots *x509.CertPool
	chain [sha256.Size]byte
}

func newVerified() *verified {
	return &verified{cache.NewLRUExpireCache(maxVerified), cache.NewLRUExpireCache(maxVerified)}
}

// verify returns nil if the first certificate that the client sent is valid, or else the reason.
func (v *verified) verify(shown []*x509.Certificate, roots *x509.CertPool, now time.Time) error {
	if v == nil {
		_, err := verifyClient(shown, roots, now)
		return err
	}
	key := verifiedKey{roots, sumOfAll(shown)}
	if since, found := v.good.Get(key); found && !now.Before(since.(time.Time)) { // the clock may have been set back
		return nil
	}
	if why, found := v.bad.Get(key); found {
		return why.(error)
	}
	end, err := verifyClient(shown, roots, now)
	if err != nil {
		v.bad.Add(key, err, refusedTTL)
		return err
	}
	v.good.Add(key, now, min(verifiedTTL, end.Sub(now)))
	return nil
}

// verifyClient returns the time until which the first certificate is valid. Its errors contain no certificate.
func verifyClient(shown []*x509.Certificate, roots *x509.CertPool, now time.Time) (time.Time, error) {
	if err := httplimit.CheckChain(shown); err != nil { // for servers that HTTPServer did not create
		return time.Time{}, err
	}
	chains, err := shown[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: parents(shown, roots, now), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return time.Time{}, errors.New(foreign.Text(err.Error(), foreign.MaxName)) // x509 errors hold certificates and quote from them
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

// parents returns the certificates between the first one and a root, in the order of RFC 8446, section 4.4.2: each
// certifies the one before it. x509.Verify alone would try all combinations, up to 100 signature checks. parents
// starts at the roots, so that it uses no key that a root has not certified.
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
