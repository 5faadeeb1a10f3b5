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

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/auth"
)

// certificate returns a client certificate. Without an issuer it is a self-signed CA.
func certificate(t *testing.T, name string, issuer *tls.Certificate, usage x509.ExtKeyUsage) *tls.Certificate {
	t.Helper()
	return issued(t, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name, Organization: []string{"kubeadm:cluster-admins"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{usage}, BasicConstraintsValid: true, IsCA: issuer == nil, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}, issuer)
}

// issued returns a certificate with a new key. If issuer is nil, the certificate is self-signed.
func issued(t *testing.T, template *x509.Certificate, issuer *tls.Certificate) *tls.Certificate {
	t.Helper()
	key := must.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	parent, signer := template, any(key)
	if issuer != nil {
		parent, signer = issuer.Leaf, issuer.PrivateKey
	}
	der := must.Value(x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer))(t)
	leaf := must.Value(x509.ParseCertificate(der))(t)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// Catches a cache that accepts a client certificate of another CA, another chain, or after its expiry.
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
				t.Errorf("got user %s, want %s", user.Name, shown[0].Subject.CommonName)
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
				t.Errorf("%s: got %v, want %v", what, err, auth.ErrBadCredentials)
			}
		}
		// unlike has the same Raw and a wrong Signature: it is accepted only if its chain is cached.
		unlike := *client
		unlike.Signature = []byte{1}
		bad("not cached", ask(cached, &unlike))
		time.Sleep(time.Second + 1) // a refusal is cached, too
		good("first", ask(cached, client))
		good("cached", ask(cached, &unlike))
		bad("without a cache", ask(way.Authenticate, &unlike))
		bad("with another certificate in the chain", ask(cached, &unlike, ca.Leaf))
		bad("of another CA", ask(cached, certificate(t, "system:node:worker-1", other, x509.ExtKeyUsageClientAuth).Leaf))
		bad("of a server", ask(cached, certificate(t, "system:node:worker-1", ca, x509.ExtKeyUsageServerAuth).Leaf))

		pool = poolOf(other)
		bad("CA removed", ask(cached, client))
		pool = poolOf(ca)
		bad("CA added again, in another pool", ask(cached, &unlike))
		time.Sleep(time.Second + 1)
		good("verified again", ask(cached, client))
		good("cached again", ask(cached, &unlike))

		time.Sleep(5*time.Second + 1)
		bad("five seconds later", ask(cached, &unlike))

		time.Sleep(time.Until(client.NotAfter) - time.Second)
		good("a second before it expires", ask(cached, client))
		good("cached until it expires", ask(cached, &unlike))
		time.Sleep(2 * time.Second)
		bad("expired", ask(cached, client))
	})
}

// Catches a cache that ignores NotBefore: the clock may be set back after the first check.
func TestRefusesCachedClientCertificateBeforeItIsValid(t *testing.T) {
	ca := certificate(t, "client-ca", nil, x509.ExtKeyUsageAny)
	shown := []*x509.Certificate{certificate(t, "system:node:worker-1", ca, x509.ExtKeyUsageClientAuth).Leaf}
	pool := x509.NewCertPool()
	pool.AddCert(ca.Leaf)
	verify := auth.NewVerify()
	must.OK(t, verify(shown, pool, time.Now()))
	if verify(shown, pool, shown[0].NotBefore.Add(-time.Second)) == nil {
		t.Error("a cached certificate is accepted before its NotBefore")
	}
}

// Catches a verification that looks for issuers anywhere in the chain: with junk certificates x509 would try
// all combinations.
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
				t.Errorf("%s: got %v, want accepted %t", test.name, err, test.good)
			}
		}
	}
}

// Catches an x509 error that is returned unredacted: it repeats names of the certificate, which may hold a token.
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
			t.Errorf("token after %d characters: got %v, want %v without a part of it", n, err, auth.ErrBadCredentials)
		}
	}
}

// Catches a signature check with a key that no CA signed, which may cost milliseconds. The keys of this test would
// panic.
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

// Refusals are cached for one second for one pool of CAs. Catches a flood of them that evicts a valid certificate,
// grows the cache without limit, or keeps the refused certificates in memory.
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
		// unlike has the same Raw and a wrong Signature: it is accepted only if its chain is cached.
		unlike := *client
		unlike.Signature = []byte{1}
		first := ask(&unlike)
		if !errors.Is(first, auth.ErrBadCredentials) {
			t.Fatal(first)
		}
		if unknown := (x509.UnknownAuthorityError{}); errors.As(first, &unknown) {
			t.Error("the cached error keeps the certificate in memory")
		}
		time.Sleep(time.Second - time.Nanosecond)
		if err := ask(client); err == nil || err.Error() != first.Error() {
			t.Errorf("within a second: got %v, want the cached refusal %v", err, first)
		}
		old := pool
		pool = x509.NewCertPool()
		pool.AddCert(ca.Leaf)
		if err := ask(client); err != nil {
			t.Errorf("with another pool: %v", err)
		}
		pool = old
		if err := ask(&unlike); err == nil {
			t.Error("a chain that was verified with another pool is accepted")
		}
		time.Sleep(time.Second + 1)
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
		if good, bad := known(); good != 2 || bad > 1024 { // one valid chain for each pool
			t.Errorf("got %d valid and %d invalid chains in the cache, want 2 and at most 1024", good, bad)
		}
		if err := ask(&unlike); err != nil {
			t.Errorf("after a flood of invalid chains: got %v, want the valid chain still cached", err)
		}
	})
}

// counting is a curve that counts the signature checks with its keys.
type counting struct {
	elliptic.Curve
	checks *int
}

func (c counting) Params() *elliptic.CurveParams {
	*c.checks++
	return c.Curve.Params()
}

// A chain that no root has certified must cost little more than a single certificate. Catches a signature check
// for each certificate, or for an expired certificate.
func TestForgedChainCostsTwoSignatureChecks(t *testing.T) {
	authority := func() *tls.Certificate { return certificate(t, "client-ca", nil, x509.ExtKeyUsageAny) }
	ca, forged, checks := authority(), authority(), 0
	root := *ca.Leaf
	key := *root.PublicKey.(*ecdsa.PublicKey)
	key.Curve = counting{elliptic.P256(), &checks}
	root.PublicKey = &key
	pool := x509.NewCertPool()
	pool.AddCert(&root)
	check := func(at time.Time, shown ...*x509.Certificate) (int, error) {
		checks = 0
		_, err := auth.VerifyChain(shown, pool, at)
		return checks, err
	}
	leaf := certificate(t, "system:node:worker-1", forged, x509.ExtKeyUsageClientAuth).Leaf
	one, _ := check(time.Now(), leaf)
	if one == 0 {
		t.Fatal("no check is counted")
	}
	above := forged.Leaf
	for _, shown := range [][]*x509.Certificate{{leaf, above}, {leaf, above, above}, {leaf, above, above, above}, {leaf, above, &root}, {leaf, above, above, &root}} {
		if got, err := check(time.Now(), shown...); err == nil || got > 2*one {
			t.Errorf("%d certificates: got %d checks and %v, want at most %d", len(shown), got, err, 2*one)
		}
		if got, err := check(leaf.NotAfter.Add(time.Second), shown...); err == nil || got > 0 {
			t.Errorf("%d certificates, expired: got %d checks and %v, want none", len(shown), got, err)
		}
	}
	if _, err := check(time.Now(), certificate(t, "system:node:worker-1", ca, x509.ExtKeyUsageClientAuth).Leaf, above); err != nil {
		t.Errorf("junk with the name of the root: %v", err)
	}
}
