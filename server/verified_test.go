package server_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/server"
)

// What is remembered of a client certificate changes nothing of what it is good for.
func TestRememberedClientCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, other := certificate(t, "client-ca", nil, x509.ExtKeyUsageAny), certificate(t, "client-ca", nil, x509.ExtKeyUsageAny)
		client := certificate(t, "system:node:worker-1", ca, x509.ExtKeyUsageClientAuth).Leaf
		poolOf := func(c *tls.Certificate) *x509.CertPool {
			pool := x509.NewCertPool()
			pool.AddCert(c.Leaf)
			return pool
		}
		pool := poolOf(ca)
		way := server.ClientCertificate{CAs: func() *x509.CertPool { return pool }, Everybody: true}
		remembering := way.Remembering()
		ask := func(authenticate server.Authenticate, shown ...*x509.Certificate) error {
			user, err := authenticate(&http.Request{TLS: &tls.ConnectionState{PeerCertificates: shown}})
			if err == nil && user.Name != shown[0].Subject.CommonName {
				t.Errorf("known as %s", user.Name)
			}
			return err
		}
		good := func(what string, err error) {
			t.Helper()
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		bad := func(what string, err error) {
			t.Helper()
			if !errors.Is(err, server.ErrBadCredentials) {
				t.Errorf("%s: %v, want it refused", what, err)
			}
		}
		// The same bytes with another signature in memory: whoever verifies it sees that.
		unlike := *client
		unlike.Signature = []byte{1}
		bad("never seen", ask(remembering, &unlike))
		good("first", ask(remembering, client))
		good("again, without verifying it", ask(remembering, &unlike))
		bad("without remembering", ask(way.Authenticate, &unlike))
		bad("with another certificate beside it", ask(remembering, &unlike, ca.Leaf))
		bad("another CA's", ask(remembering, certificate(t, "system:node:worker-1", other, x509.ExtKeyUsageClientAuth).Leaf))
		bad("a server's", ask(remembering, certificate(t, "system:node:worker-1", ca, x509.ExtKeyUsageServerAuth).Leaf))

		pool = poolOf(other)
		bad("its CA is no longer there", ask(remembering, client))
		pool = poolOf(ca)
		bad("its CA is back, in another pool", ask(remembering, &unlike))
		good("verified anew", ask(remembering, client))
		good("and remembered", ask(remembering, &unlike))

		time.Sleep(5 * time.Second)
		bad("five seconds later", ask(remembering, &unlike))

		time.Sleep(time.Until(client.NotAfter) - time.Second)
		good("a second before its end", ask(remembering, client))
		good("remembered until then", ask(remembering, &unlike))
		time.Sleep(2 * time.Second)
		bad("after its end", ask(remembering, client))
	})
}
