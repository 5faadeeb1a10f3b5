package server

import (
	"crypto/x509"
	"net/http"
	"time"
)

// SerialOf reads a chain.
var SerialOf = serialOf

// A Route is one of Handler's.
type Route struct {
	Method, Path, Name string
	Access             Access
}

// Routes are all that the handler of s answers.
func (s Server) Routes() []Route {
	var all []Route
	for _, on := range (&handler{Server: s}).routes() {
		all = append(all, Route{on.method, on.path, on.name, on.access})
	}
	return all
}

// Verified caches what [ClientCertificate.Remembering] does.
type Verified struct{ v verified }

func (v *Verified) Verify(shown []*x509.Certificate, roots *x509.CertPool, now time.Time) error {
	return v.v.verify(shown, roots, now)
}

// RememberingIn is c.Remembering, and how many good and bad chains it has cached.
func RememberingIn(c ClientCertificate) (way Authenticate, known func() (good, bad int)) {
	v := &verified{}
	return func(r *http.Request) (User, error) { return c.authenticate(r, v) }, func() (good, bad int) { return len(v.good), len(v.bad) }
}
