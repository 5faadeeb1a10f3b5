package auth

import (
	"crypto/x509"
	"net/http"
	"time"
)

// Verified caches what [ClientCertificate.Remembering] does.
type Verified struct{ v verified }

func (v *Verified) Verify(shown []*x509.Certificate, roots *x509.CertPool, now time.Time) error {
	return v.v.verify(shown, roots, now)
}

// CachedAndSizes is c.Remembering, and how many good and bad chains it has cached.
func CachedAndSizes(c ClientCertificate) (way Authenticate, known func() (good, bad int)) {
	v := &verified{}
	return func(r *http.Request) (User, error) { return c.authenticate(r, v) }, func() (good, bad int) { return len(v.good), len(v.bad) }
}
