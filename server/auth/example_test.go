package auth_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/kubejoin/kubejoin/server/auth"
)

// ExampleAuthenticate authenticates users by client certificates. The TLS server requests and verifies them
// (tls.Config.ClientAuth, ClientCAs).
func ExampleAuthenticate() {
	byCertificate := auth.Authenticate(func(r *http.Request) (auth.User, error) {
		if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
			return auth.User{}, auth.ErrNoCredentials
		}
		subject := r.TLS.VerifiedChains[0][0].Subject
		return auth.User{Name: subject.CommonName, Groups: subject.Organization}, nil
	})
	_, err := byCertificate(httptest.NewRequest("GET", "/v1/token", nil))
	fmt.Println(err)
	// Output: no credentials
}
