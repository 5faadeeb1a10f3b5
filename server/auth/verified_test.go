package auth_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/server/auth"
)

// certificate is a client certificate, of an issuer or self-signed.
func certificate(t *testing.T, name string, issuer *tls.Certificate, usage x509.ExtKeyUsage) *tls.Certificate {
	t.Helper()
	return issued(t, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name, Organization: []string{"kubeadm:cluster-admins"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{usage}, BasicConstraintsValid: true, IsCA: issuer == nil, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}, issuer)
}

// issued is a certificate with a new key. Nil is an issuer that is the certificate itself.
func issued(t *testing.T, template *x509.Certificate, issuer *tls.Certificate) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	parent, signer := template, any(key)
	if issuer != nil {
		parent, signer = issuer.Leaf, issuer.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// What is remembered of a client certificate changes nothing of what it is good for.
func TestCachedClientCertificateIsStillChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, other := certificate(t, "client-ca", nil, x509.ExtKeyUsageAny), certificate(t, "client-ca", nil, x509.ExtKeyUsageAny)
		client := certificate(t, "system:node:worker-1", ca, x509.ExtKeyUsageClientAuth).Leaf
		poolOf := func(c *tls.Certificate) *x509.CertPool {
			pool := x509.NewCertPool()
			pool.AddCert(c.Leaf)
			return pool
		}
		pool := poolOf(ca)
		way := auth.ClientCertificate{CAs: func() *x509.CertPool { return pool }, Everybody: true}
		cached := way.Cached()
		ask := func(authenticate auth.Authenticate, shown ...*x509.Certificate) error {
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
			if !errors.Is(err, auth.ErrBadCredentials) {
				t.Errorf("%s: %v, want it refused", what, err)
			}
		}
		// The same bytes with another signature in memory: whoever verifies it sees that.
		unlike := *client
		unlike.Signature = []byte{1}
		bad("never seen", ask(cached, &unlike))
		time.Sleep(time.Second) // a refusal is cached as well
		good("first", ask(cached, client))
		good("again, without verifying it", ask(cached, &unlike))
		bad("without remembering", ask(way.Authenticate, &unlike))
		bad("with another certificate beside it", ask(cached, &unlike, ca.Leaf))
		bad("another CA's", ask(cached, certificate(t, "system:node:worker-1", other, x509.ExtKeyUsageClientAuth).Leaf))
		bad("a server's", ask(cached, certificate(t, "system:node:worker-1", ca, x509.ExtKeyUsageServerAuth).Leaf))

		pool = poolOf(other)
		bad("its CA is no longer there", ask(cached, client))
		pool = poolOf(ca)
		bad("its CA is back, in another pool", ask(cached, &unlike))
		time.Sleep(time.Second)
		good("verified anew", ask(cached, client))
		good("and remembered", ask(cached, &unlike))

		time.Sleep(5 * time.Second)
		bad("five seconds later", ask(cached, &unlike))

		time.Sleep(time.Until(client.NotAfter) - time.Second)
		good("a second before its end", ask(cached, client))
		good("remembered until then", ask(cached, &unlike))
		time.Sleep(2 * time.Second)
		bad("after its end", ask(cached, client))
	})
}

// The clock may be set back.
func TestRefusesCachedClientCertificateBeforeItIsValid(t *testing.T) {
	ca := certificate(t, "client-ca", nil, x509.ExtKeyUsageAny)
	shown := []*x509.Certificate{certificate(t, "system:node:worker-1", ca, x509.ExtKeyUsageClientAuth).Leaf}
	pool := x509.NewCertPool()
	pool.AddCert(ca.Leaf)
	var verify auth.Verified
	if err := verify.Verify(shown, pool, time.Now()); err != nil {
		t.Fatal(err)
	}
	if verify.Verify(shown, pool, shown[0].NotBefore.Add(-time.Second)) == nil {
		t.Error("it is good before it begins")
	}
}

// Junk between a certificate and its CA would have x509 try all combinations.
func TestVerifiesClientCertificatesInTheOrderShown(t *testing.T) {
	root := certificate(t, "root", nil, x509.ExtKeyUsageAny)
	below := func(name string, issuer *tls.Certificate, usage x509.ExtKeyUsage) *tls.Certificate {
		return issued(t, &x509.Certificate{
			SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			ExtKeyUsage: []x509.ExtKeyUsage{usage}, BasicConstraintsValid: true, IsCA: true, KeyUsage: x509.KeyUsageCertSign,
		}, issuer)
	}
	outer := below("outer", root, x509.ExtKeyUsageAny)
	inner := below("inner", outer, x509.ExtKeyUsageAny)
	junk := below("inner", certificate(t, "root", nil, x509.ExtKeyUsageAny), x509.ExtKeyUsageAny)
	leaf := certificate(t, "system:node:worker-1", inner, x509.ExtKeyUsageClientAuth)
	pool := x509.NewCertPool()
	pool.AddCert(root.Leaf)
	way := auth.ClientCertificate{CAs: func() *x509.CertPool { return pool }, Everybody: true}
	for _, test := range []struct {
		name  string
		shown []*tls.Certificate
		good  bool
	}{
		{"its chain", []*tls.Certificate{leaf, inner, outer}, true},
		{"its chain with the CA", []*tls.Certificate{leaf, inner, outer, root}, true},
		{"junk at the end", []*tls.Certificate{leaf, inner, outer, junk}, true},
		{"another order", []*tls.Certificate{leaf, outer, inner}, false},
		{"junk between", []*tls.Certificate{leaf, junk, inner, outer}, false},
		{"a part of it", []*tls.Certificate{leaf, inner}, false},
		{"five", []*tls.Certificate{leaf, inner, outer, root, root}, false},
	} {
		for _, authenticate := range []auth.Authenticate{way.Authenticate, way.Cached()} {
			var shown []*x509.Certificate
			for _, c := range test.shown {
				shown = append(shown, c.Leaf)
			}
			_, err := authenticate(&http.Request{TLS: &tls.ConnectionState{PeerCertificates: shown}})
			if (err == nil) != test.good || err != nil && !errors.Is(err, auth.ErrBadCredentials) {
				t.Errorf("%s: %v, good is to be %v", test.name, err, test.good)
			}
		}
	}
}

// x509 repeats names of a certificate in its errors, and a token may have been pasted into one.
func TestErrorOfClientCertificateHoldsNoPartOfAToken(t *testing.T) {
	root := certificate(t, "root", nil, x509.ExtKeyUsageAny)
	template := func(n int64) *x509.Certificate {
		return &x509.Certificate{SerialNumber: big.NewInt(n), Subject: pkix.Name{CommonName: fmt.Sprint(n)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	}
	below := template(1)
	below.BasicConstraintsValid, below.IsCA, below.KeyUsage, below.PermittedDNSDomains = true, true, x509.KeyUsageCertSign, []string{"example.com"}
	inner := issued(t, below, root)
	pool := x509.NewCertPool()
	pool.AddCert(root.Leaf)
	for n := 100; n < 300; n += 7 {
		leaf := template(2)
		leaf.DNSNames = []string{strings.Repeat("abcdef0.", n/8) + strings.Repeat("a", n%8) + "8w4usg.qwertzuiopasdfgh"}
		_, err := auth.ClientCertificate{CAs: func() *x509.CertPool { return pool }, Everybody: true}.Authenticate(&http.Request{TLS: &tls.ConnectionState{
			PeerCertificates: []*x509.Certificate{issued(t, leaf, inner).Leaf, inner.Leaf},
		}})
		if !errors.Is(err, auth.ErrBadCredentials) || strings.Contains(err.Error(), "8w4usg.q") {
			t.Errorf("after %d: %v", n, err)
		}
	}
}

// Keys of strangers may take milliseconds to check a signature with. These here panic.
func TestChecksNoSignatureWithUntrustedKey(t *testing.T) {
	authority := func(issuer *tls.Certificate) *tls.Certificate {
		return issued(t, &x509.Certificate{
			SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "client-ca"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			BasicConstraintsValid: true, IsCA: true, KeyUsage: x509.KeyUsageCertSign,
		}, issuer)
	}
	ca, outer := authority(nil), authority(nil)
	inner := authority(outer)
	var shown []*x509.Certificate
	for _, c := range []*tls.Certificate{certificate(t, "system:node:worker-1", inner, x509.ExtKeyUsageClientAuth), inner, outer} {
		unusable := *c.Leaf
		unusable.PublicKey = &ecdsa.PublicKey{}
		shown = append(shown, &unusable)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca.Leaf)
	way := auth.ClientCertificate{CAs: func() *x509.CertPool { return pool }, Everybody: true}
	if _, err := way.Authenticate(&http.Request{TLS: &tls.ConnectionState{PeerCertificates: shown}}); !errors.Is(err, auth.ErrBadCredentials) {
		t.Error(err)
	}
}

// A refusal is cached for a second, and not with another pool of CAs. No flood of them pushes out a good certificate,
// grows without end, or keeps what strangers have shown.
func TestCachesRefusedClientCertificatesBriefly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := certificate(t, "client-ca", nil, x509.ExtKeyUsageAny)
		client := certificate(t, "system:node:worker-1", ca, x509.ExtKeyUsageClientAuth).Leaf
		pool := x509.NewCertPool()
		pool.AddCert(ca.Leaf)
		way := auth.ClientCertificate{CAs: func() *x509.CertPool { return pool }, Everybody: true}
		cached, known := auth.CachedAndSizes(way)
		ask := func(shown ...*x509.Certificate) error {
			_, err := cached(&http.Request{TLS: &tls.ConnectionState{PeerCertificates: shown}})
			return err
		}
		// The same bytes with another signature in memory: who verifies them sees that.
		unlike := *client
		unlike.Signature = []byte{1}
		first := ask(&unlike)
		if !errors.Is(first, auth.ErrBadCredentials) {
			t.Fatal(first)
		}
		if unknown := (x509.UnknownAuthorityError{}); errors.As(first, &unknown) {
			t.Error("the error that is cached keeps the certificate")
		}
		time.Sleep(time.Second - time.Nanosecond)
		if err := ask(client); err == nil || err.Error() != first.Error() {
			t.Errorf("within a second: %v, want it refused without another look", err)
		}
		old := pool
		pool = x509.NewCertPool()
		pool.AddCert(ca.Leaf)
		if err := ask(client); err != nil {
			t.Errorf("with another pool: %v", err)
		}
		pool = old
		if err := ask(&unlike); err == nil {
			t.Error("the signature of another pool counts")
		}
		time.Sleep(time.Second)
		if err := ask(client); err != nil {
			t.Errorf("after a second: %v", err)
		}
		for i := range 5000 {
			stranger := x509.Certificate{Raw: []byte(strconv.Itoa(i))}
			err := ask(&stranger)
			if !errors.Is(err, auth.ErrBadCredentials) {
				t.Fatal(err)
			}
		}
		if good, bad := known(); good != 1 || bad > 1024 {
			t.Errorf("%d good and %d bad ones are cached", good, bad)
		}
		if err := ask(&unlike); err != nil {
			t.Errorf("after a flood of bad ones: %v, want the good one still cached", err)
		}
	})
}
