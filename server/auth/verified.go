package auth

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/internal/web/httplimit"
	"k8s.io/apimachinery/pkg/util/cache"
)

// How long verification results are cached, and how many results of each kind.
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
		_, err := VerifyChain(shown, roots, now)
		return err
	}
	key := verifiedKey{roots, sumOfAll(shown)}
	if since, found := v.good.Get(key); found && !now.Before(since.(time.Time)) { // the clock may have been set back
		return nil
	}
	if why, found := v.bad.Get(key); found {
		return why.(error)
	}
	end, err := VerifyChain(shown, roots, now)
	if err != nil {
		v.bad.Add(key, err, refusedTTL)
		return err
	}
	v.good.Add(key, now, min(verifiedTTL, end.Sub(now)))
	return nil
}

// VerifyChain verifies a chain of client certificates in the order shown, which begins with the client's own
// certificate, at the time now. It returns when the first certificate of the chain expires. It uses no key that a root
// has not certified, and limits the size of the chain. A chain that no root has certified costs at most two signature
// checks with each root of that name. Its errors contain no certificate.
func VerifyChain(shown []*x509.Certificate, roots *x509.CertPool, now time.Time) (time.Time, error) {
	if leaf := shown[0]; now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) { // first: the other checks cost more
		return time.Time{}, fmt.Errorf("certificate is valid from %s to %s, not at %s", stamp(leaf.NotBefore), stamp(leaf.NotAfter), stamp(now))
	}
	if err := httplimit.CheckTime(shown); err != nil { // needed for servers that HTTPServer did not create
		return time.Time{}, err
	}
	between, err := parents(shown, roots, now)
	if err != nil {
		return time.Time{}, err
	}
	chains, err := shown[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return time.Time{}, errors.New(safetext.Text(err.Error(), safetext.MaxName)) // x509 errors retain and quote certificates
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

// errOrder is the error of a chain that does not lead to a root.
var errOrder = errors.New("certificates do not lead to a known CA in the order shown")

// parents returns the certificates between the first one and a root, in the order of RFC 8446, section 4.4.2: each
// certificate certifies the one before. x509.Verify alone would try all combinations, up to 100 signature checks.
// parents starts at the top, so that it uses no key that a root has not certified. The top is the last certificate
// whose name is the issuer of the certificate before it, or that certificate before it: the last certificate may be
// a root that is not in roots, or junk.
func parents(shown []*x509.Certificate, roots *x509.CertPool, now time.Time) (*x509.CertPool, error) {
	anchored := func(c *x509.Certificate) bool {
		_, err := c.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
		return err == nil
	}
	top := 0
	for top+1 < len(shown) && bytes.Equal(shown[top].RawIssuer, shown[top+1].RawSubject) {
		top++
	}
	if top > 0 && !anchored(shown[top]) {
		if top--; top > 0 && !anchored(shown[top]) {
			return nil, errOrder
		}
	}
	pool := x509.NewCertPool()
	for ; top > 0; top-- {
		if shown[top-1].CheckSignatureFrom(shown[top]) != nil {
			return nil, errOrder
		}
		pool.AddCert(shown[top])
	}
	return pool, nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

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
