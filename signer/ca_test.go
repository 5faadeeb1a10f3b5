package signer_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	certificates "k8s.io/api/certificates/v1"
)

func TestNewCAFindsCertificateOfKey(t *testing.T) {
	key, other := csrtest.ECDSA(elliptic.P256()), csrtest.ECDSA(elliptic.P256())
	current := caCertificate(t, "current", key, nil, nil, nil)
	next := caCertificate(t, "next", other, nil, nil, nil)
	expired := caCertificate(t, "current", key, nil, nil, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	leaf := caCertificate(t, "leaf", key, nil, nil, func(c *x509.Certificate) { c.IsCA = false })
	crlOnly := caCertificate(t, "crl", key, nil, nil, func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageCRLSign })
	anyUsage := caCertificate(t, "any", key, nil, nil, func(c *x509.Certificate) { c.KeyUsage = 0 })

	for _, test := range []struct {
		name  string
		certs []*x509.Certificate
		key   crypto.Signer
		signs *x509.Certificate
		want  string // part of the error
	}{
		{name: "one", certs: []*x509.Certificate{current}, key: key, signs: current},
		{name: "second one matches", certs: []*x509.Certificate{next, current}, key: key, signs: current},
		{name: "renewed with the same key", certs: []*x509.Certificate{expired, current}, key: key, signs: current},
		{name: "without key usage", certs: []*x509.Certificate{anyUsage}, key: key, signs: anyUsage},
		{name: "given twice", certs: []*x509.Certificate{current, current}, key: key, signs: current},
		{name: "none", key: key, want: "none of the 0"},
		{name: "no key", certs: []*x509.Certificate{current}, want: "no CA key"},
		{name: "another key", certs: []*x509.Certificate{current, leaf}[:1], key: other, want: "matches none of the 1"},
		{name: "no CA", certs: []*x509.Certificate{leaf}, key: key, want: "not a CA"},
		{name: "no CA beside", certs: []*x509.Certificate{current, leaf}, key: key, want: "certificate 2 of 2"},
		{name: "may not sign", certs: []*x509.Certificate{crlOnly}, key: key, want: "may not sign"},
		{name: "expired", certs: []*x509.Certificate{expired, next}, key: key, want: "expired"},
	} {
		t.Run(test.name, func(t *testing.T) {
			ca, err := signer.NewCA(test.certs, test.key)
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Fatalf("error is %v, want one with %q", err, test.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !ca.Certificate().Equal(test.signs) {
				t.Errorf("got issuer %s, want %s", ca.Certificate().Subject, test.signs.Subject)
			}
		})
	}

	if _, err := signer.NewCA([]*x509.Certificate{expired}, key); !errors.Is(err, signer.ErrExpiredCA) {
		t.Errorf("error is %v, want it to wrap ErrExpiredCA", err)
	}
	ca := must.Get(signer.NewCA([]*x509.Certificate{next, current, next}, key))
	if bundle := ca.Bundle(); len(bundle) != 2 || !bundle[0].Equal(next) || !bundle[1].Equal(current) {
		t.Errorf("bundle has %d certificates, want next and current", len(bundle))
	}
}

func TestChainEndsBeforeRoot(t *testing.T) {
	rootKey, upperKey, key := csrtest.ECDSA(elliptic.P256()), csrtest.ECDSA(elliptic.P384()), csrtest.ECDSA(elliptic.P256())
	root := caCertificate(t, "root", rootKey, nil, nil, nil)
	upper := caCertificate(t, "upper", upperKey, root, rootKey, nil)
	ca := caCertificate(t, "intermediate", key, upper, upperKey, nil)
	for _, test := range []struct {
		name  string
		certs []*x509.Certificate
		want  []string
	}{
		{"whole path", []*x509.Certificate{ca, upper, root}, []string{"intermediate", "upper"}},
		{"in another order", []*x509.Certificate{root, upper, ca}, []string{"intermediate", "upper"}},
		{"without the root", []*x509.Certificate{ca, upper}, []string{"intermediate", "upper"}},
		{"alone", []*x509.Certificate{ca}, []string{"intermediate"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			issuer := must.Get(signer.NewCA(test.certs, key))
			p := must.Get(signer.NewProfile(signer.ProfileConfig{Usages: clientUsages}))
			answer := must.Value(p.Issue(issuer, signer.Template{CSR: csrtest.New(t, &x509.CertificateRequest{Subject: csrtest.Node("w")}, nil), Usages: clientUsages}, time.Now()))(t)
			var names []string
			certs := decode(t, answer)
			for _, c := range certs[1:] {
				names = append(names, c.Subject.CommonName)
			}
			if fmt.Sprint(names) != fmt.Sprint(test.want) {
				t.Errorf("chain is %q, want %q", names, test.want)
			}
			if len(test.certs) > 1 { // the bundle has the path to the root
				roots, between := x509.NewCertPool(), x509.NewCertPool()
				roots.AddCert(root)
				for _, c := range certs[1:] {
					between.AddCert(c)
				}
				if _, err := certs[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestLoadCAReadsKeyFormats(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, blocks ...*pem.Block) string {
		var data []byte
		for _, b := range blocks {
			data = append(data, pem.EncodeToMemory(b)...)
		}
		path := filepath.Join(dir, name)
		must.OK(t, os.WriteFile(path, data, 0o600))
		return path
	}
	cert := func(key crypto.Signer) *pem.Block {
		return &pem.Block{Type: "CERTIFICATE", Bytes: caCertificate(t, "ca", key, nil, nil, nil).Raw}
	}
	ec, ed := csrtest.ECDSA(elliptic.P384()), csrtest.Ed25519()
	pkcs8 := func(key crypto.Signer) *pem.Block {
		return &pem.Block{Type: "PRIVATE KEY", Bytes: must.Get(x509.MarshalPKCS8PrivateKey(key))}
	}
	sec1 := &pem.Block{Type: "EC PRIVATE KEY", Bytes: must.Get(x509.MarshalECPrivateKey(ec.(*ecdsa.PrivateKey)))}
	pkcs1 := &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(csrtest.RSA2048())}
	parameters := &pem.Block{Type: "EC PARAMETERS", Bytes: []byte{6, 5, 43, 129, 4, 0, 34}}
	ecCert, rsaCert := write("ec.crt", cert(ec)), write("rsa.crt", cert(csrtest.RSA2048()))
	missing := filepath.Join(dir, "missing")

	for _, test := range []struct {
		name, cert, key string
		want            []string // parts of the error
	}{
		{name: "SEC 1", cert: ecCert, key: write("sec1", parameters, sec1)},
		{name: "PKCS 8 ECDSA", cert: ecCert, key: write("p8ec", pkcs8(ec))},
		{name: "PKCS 1", cert: rsaCert, key: write("pkcs1", pkcs1)},
		{name: "PKCS 8 RSA", cert: rsaCert, key: write("p8rsa", pkcs8(csrtest.RSA2048()))},
		{name: "Ed25519", cert: write("ed.crt", cert(ed)), key: write("ed", pkcs8(ed))},
		{name: "one file", cert: write("both", cert(ec), sec1), key: filepath.Join(dir, "both")},
		{name: "no certificate file", cert: missing, key: write("k", sec1), want: []string{"CA certificate", missing}},
		{name: "no key file", cert: ecCert, key: missing, want: []string{"CA key", missing}},
		{name: "no certificate", cert: write("no.crt", sec1), key: write("k", sec1), want: []string{"no.crt", "no certificate found"}},
		{name: "no key", cert: ecCert, key: write("no.key", cert(ec)), want: []string{"no.key", "no private key found"}},
		{name: "malformed certificate", cert: write("bad.crt", &pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}), key: write("k", sec1), want: []string{"bad.crt", "certificate 1"}},
		{name: "malformed key", cert: ecCert, key: write("bad.key", &pem.Block{Type: "PRIVATE KEY", Bytes: []byte("sesame")}), want: []string{"bad.key", "no valid key"}},
		{name: "two keys", cert: ecCert, key: write("two.key", sec1, pkcs1), want: []string{"two.key", "more than one"}},
		{name: "encrypted", cert: ecCert, key: write("enc.key", &pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte("x")}), want: []string{"enc.key", "encrypted"}},
		{
			name: "encrypted the old way", cert: ecCert, key: write("enc1.key", &pem.Block{Type: "RSA PRIVATE KEY", Headers: map[string]string{"Proc-Type": "4,ENCRYPTED"}, Bytes: []byte("x")}),
			want: []string{"enc1.key", "encrypted"},
		},
		{name: "of another pair", cert: ecCert, key: write("rsa.key", pkcs1), want: []string{"ec.crt", "rsa.key", "matches none"}},
		{name: "another type", cert: ecCert, key: write("dsa.key", &pem.Block{Type: "DSA PRIVATE KEY", Bytes: []byte("x")}), want: []string{"dsa.key", "DSA PRIVATE KEY"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			ca, err := signer.LoadCA(test.cert, test.key)
			if test.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				if ca.Certificate().Subject.CommonName != "ca" {
					t.Errorf("got subject %s, want CN=ca", ca.Certificate().Subject)
				}
				return
			}
			for _, part := range test.want {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("error is %v, want one with %q", err, part)
				}
			}
			if err != nil && strings.Contains(err.Error(), "sesame") {
				t.Errorf("error shows the key: %v", err)
			}
		})
	}
}

func TestGeneratedCACanBeWrittenAndLoaded(t *testing.T) {
	now := time.Now()
	ca := must.Value(signer.GenerateCA("kubernetes", now, 24*time.Hour))(t)
	cert := ca.Certificate()
	lintCertificate(t, cert)
	if want := now.Add(24 * time.Hour).Truncate(time.Second); !cert.NotAfter.Equal(want) {
		t.Errorf("ends %s, want %s", cert.NotAfter, want)
	}
	certPEM, keyPEM, err := ca.PEM()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	for path, data := range map[string][]byte{certFile: certPEM, keyFile: keyPEM} {
		must.OK(t, os.WriteFile(path, data, 0o600))
	}
	again := must.Value(signer.LoadCA(certFile, keyFile))(t)
	if !again.Certificate().Equal(cert) {
		t.Error("loaded CA differs from the one written")
	}
	if _, err := signer.GenerateCA("", now, time.Hour); err == nil {
		t.Error("GenerateCA without a name: got no error")
	}
	if _, err := signer.GenerateCA("x", now, time.Minute); err == nil {
		t.Error("GenerateCA for one minute: got no error")
	}
}

func TestFormattedCAHidesItsKey(t *testing.T) {
	key := csrtest.RSA2048()
	ca := must.Get(signer.NewCA([]*x509.Certificate{caCertificate(t, "ca", key, nil, nil, nil)}, key))
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%d", "%x"} {
		for _, v := range []any{ca, *ca, struct{ CA *signer.CA }{ca}, struct{ CA signer.CA }{*ca}} {
			text := fmt.Sprintf(verb, v)
			for _, n := range []*big.Int{key.D, key.Primes[0]} {
				if strings.Contains(text, n.String()) || strings.Contains(text, n.Text(16)) {
					t.Errorf("%s shows the key", verb)
				}
			}
		}
	}
	if got := fmt.Sprint(ca); got != "CA CN=ca" {
		t.Errorf("got %q, want \"CA CN=ca\"", got)
	}
	if _, ok := any(key).(*rsa.PrivateKey); !ok {
		t.Fatal("the test has no RSA key")
	}
}

// LoadCA refuses a key that every user can read and files that every user can write. A group may read the key, as
// in a Secret volume of a pod.
func TestLoadCARefusesFilesOpenToEveryUser(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no Unix file modes")
	}
	certs, key, err := newCA(t).PEM()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	must.OK(t, errors.Join(os.WriteFile(certFile, certs, 0o600), os.WriteFile(keyFile, key, 0o600)))
	for _, test := range []struct {
		cert, key os.FileMode
		good      bool
	}{
		{0o644, 0o600, true}, {0o644, 0o400, true}, {0o644, 0o640, true}, {0o664, 0o660, true}, {0o644, 0o601, true},
		{0o644, 0o644, false}, {0o644, 0o604, false}, {0o644, 0o602, false}, {0o644, 0o666, false}, {0o646, 0o600, false}, {0o666, 0o600, false},
	} {
		must.OK(t, errors.Join(os.Chmod(certFile, test.cert), os.Chmod(keyFile, test.key)))
		_, err := signer.LoadCA(certFile, keyFile)
		named := keyFile
		if test.cert&0o002 != 0 {
			named = certFile
		}
		if test.good && err != nil || !test.good && (!errors.Is(err, signer.ErrExposed) || !strings.Contains(err.Error(), named)) {
			t.Errorf("certificate %04o, key %04o: got %v, want it to load: %t", test.cert, test.key, err, test.good)
		}
	}
}

// A passphrase is as secret as the key, and no part of it is in an error.
func TestLoadsEncryptedCA(t *testing.T) {
	const right, wrong = "correct horse", "sesame, open"
	der := must.Value(os.ReadFile("../internal/pemfile/testdata/genpkey-ec.pem"))(t)
	key := must.Value(pemfile.EncryptedKey(der, []byte(right)))(t)
	cert := caCertificate(t, "encrypted", key, nil, nil, nil)
	dir := t.TempDir()
	write := func(name string, content []byte) string {
		file := filepath.Join(dir, name)
		must.OK(t, os.WriteFile(file, content, 0o600))
		return file
	}
	certFile := write("ca.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}))
	keyFile, passphrase := write("ca.key", der), write("good", []byte(right+"\n"))
	ca := must.Value(signer.LoadEncryptedCA(certFile, keyFile, passphrase))(t)
	if !ca.Certificate().Equal(cert) {
		t.Error("got another CA")
	}
	open := write("open", []byte(right))
	must.OK(t, os.Chmod(open, 0o604))
	for file, want := range map[string]string{
		open:                               "mode is 0604",
		write("wrong", []byte(wrong)):      "ca.key: cannot decrypt the key: the passphrase is wrong",
		write("two", []byte(right+"\n\n")): "two: more than one line",
		filepath.Join(dir, "missing"):      "missing",
		"":                                 "the key is encrypted: want an unencrypted key that only its owner may read, or a file with its passphrase",
	} {
		_, err := signer.LoadEncryptedCA(certFile, keyFile, file)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "sesame") || strings.Contains(err.Error(), "horse") {
			t.Errorf("%q: got %v, want %q and no passphrase", file, err, want)
		}
	}
}

// Clients would reject certificates of a CA that is not valid yet. If another certificate of the same key is valid,
// the CA uses that one.
func TestNewCARefusesCertificateNotYetValid(t *testing.T) {
	key := csrtest.ECDSA(elliptic.P256())
	start := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	tomorrow := caCertificate(t, "kubernetes", key, nil, nil, func(c *x509.Certificate) { c.NotBefore, c.NotAfter = start, start.AddDate(10, 0, 0) })
	_, err := signer.NewCA([]*x509.Certificate{tomorrow}, key)
	if err == nil || !strings.Contains(err.Error(), "not valid yet") || !strings.Contains(err.Error(), start.Format(time.RFC3339)) {
		t.Errorf("got %v, want an error with the start of the validity", err)
	}
	today := caCertificate(t, "kubernetes", key, nil, nil, nil)
	for _, certs := range [][]*x509.Certificate{{today, tomorrow}, {tomorrow, today}} {
		ca, err := signer.NewCA(certs, key)
		if err != nil || !ca.Certificate().Equal(today) {
			t.Errorf("got %v, %v, want the certificate that is valid today", ca, err)
		}
	}
}

// Go clients reject a client certificate of a CA that is limited to server auth, and of any CA below it.
func TestIssueRefusesUsagesOutsideThoseOfTheCA(t *testing.T) {
	servers := func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }
	rootKey, key := csrtest.ECDSA(elliptic.P256()), csrtest.ECDSA(elliptic.P256())
	root := caCertificate(t, "root", rootKey, nil, nil, nil)
	limited := caCertificate(t, "limited", key, root, rootKey, servers)
	belowKey := csrtest.ECDSA(elliptic.P256())
	below := caCertificate(t, "below", belowKey, limited, key, nil)
	every := caCertificate(t, "every", key, nil, nil, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageAny} })
	both := caCertificate(t, "both", key, nil, nil, func(c *x509.Certificate) {
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	})
	unknown := caCertificate(t, "unknown", key, nil, nil, func(c *x509.Certificate) { c.UnknownExtKeyUsage = []asn1.ObjectIdentifier{{1, 2, 3}} })
	csr := csrtest.New(t, &x509.CertificateRequest{Subject: csrtest.Node("worker-1")}, nil)
	for _, test := range []struct {
		certs           []*x509.Certificate
		key             crypto.Signer
		client, serving bool
	}{
		{[]*x509.Certificate{caCertificate(t, "self", key, nil, nil, servers)}, key, false, true},
		{[]*x509.Certificate{limited, root}, key, false, true},
		{[]*x509.Certificate{below, limited, root}, belowKey, false, true},
		{[]*x509.Certificate{unknown}, key, false, false},
		{[]*x509.Certificate{every}, key, true, true},
		{[]*x509.Certificate{both}, key, true, true},
	} {
		ca := must.Value(signer.NewCA(test.certs, test.key))(t)
		for _, of := range []struct {
			usages []certificates.KeyUsage
			good   bool
		}{{clientUsages, test.client}, {servingUsages, test.serving}} {
			_, err := must.Get(signer.NewProfile(signer.ProfileConfig{Usages: of.usages})).Issue(ca, signer.Template{CSR: csr, Usages: of.usages}, time.Now())
			if (err == nil) != of.good || approval.Refused(err) != nil {
				t.Errorf("%s for %q: got %v, want a certificate: %t", ca, of.usages, err, of.good)
			}
		}
		if _, err := signer.KubernetesSigners(signer.Fixed(ca), 0); (err == nil) != (test.client && test.serving) {
			t.Errorf("%s: KubernetesSigners = %v", ca, err)
		}
	}
}
