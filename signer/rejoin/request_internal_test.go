package rejoin

import (
	"bytes"
	"crypto"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/signer/rejoin/proof"
)

// A site is a cluster CA with its challenges.
type site struct {
	ca    *tls.Certificate
	roots *x509.CertPool
	key   []byte
	now   time.Time
}

func newSite(t testing.TB) *site {
	t.Helper()
	s := &site{ca: certtest.CA(t, "kubernetes"), roots: x509.NewCertPool(), key: make([]byte, 32), now: time.Now()}
	_, _ = rand.Read(s.key)
	s.roots.AddCert(s.ca.Leaf)
	return s
}

// certificate issues the certificate of a node, for the last hour. edit may change it.
func (s *site) certificate(t testing.TB, key crypto.Signer, edit func(*x509.Certificate)) []byte {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: csrtest.Node("worker-1"), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, NotBefore: s.now.Add(-time.Minute), NotAfter: s.now.Add(-time.Second),
	}
	if edit != nil {
		edit(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, s.ca.Leaf, key.Public(), s.ca.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func publicPEM(t testing.TB, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

func sign(t testing.TB, key crypto.Signer, text []byte) []byte {
	t.Helper()
	signature, err := proof.Sign(key, text)
	if err != nil {
		t.Fatal(err)
	}
	return signature
}

// request returns the request of worker-1 at join.example.com.
func (s *site) request(t testing.TB, key crypto.Signer, certificate []byte) Request {
	t.Helper()
	r := Request{Certificate: certificate, Challenge: newChallenge(s.key, s.now), Server: "join.example.com"}
	r.Signature = sign(t, key, proof.Rejoin(r.Challenge, "worker-1", r.Server))
	return r
}

func isJoin(host string) bool { return host == "join.example.com" || host == "2001:db8::1" }

func (s *site) verify(r Request) (verified, error) { return verify(r, s.key, s.roots, isJoin, s.now) }

func TestVerifyAcceptsEachKindOfKey(t *testing.T) {
	s := newSite(t)
	for name, key := range map[string]crypto.Signer{
		"P-256": csrtest.NewKey(), "P-384": csrtest.ECDSA(elliptic.P384()), "P-521": csrtest.ECDSA(elliptic.P521()),
		"RSA": csrtest.RSA2048(), "Ed25519": csrtest.Ed25519(),
	} {
		v, err := s.verify(s.request(t, key, s.certificate(t, key, nil)))
		der, _ := x509.MarshalPKIXPublicKey(key.Public())
		if err != nil || v.node != "worker-1" || v.key != pkcs10.IDOfKey(der) || v.cert == nil || !v.made.Equal(s.now.Truncate(time.Microsecond)) {
			t.Errorf("%s: got %+v, %v", name, v, err)
		}
		r := s.request(t, key, nil)
		r.Node, r.PublicKey = "worker-1", publicPEM(t, key)
		if bound, err := s.verify(r); err != nil || bound.node != "worker-1" || bound.key != v.key || bound.cert != nil {
			t.Errorf("%s, bound: got %+v, %v", name, bound, err)
		}
	}
	key := csrtest.NewKey()
	r := s.request(t, key, s.certificate(t, key, func(c *x509.Certificate) { c.NotAfter = s.now.Add(time.Hour) }))
	if _, err := s.verify(r); err != nil {
		t.Errorf("certificate that is still valid: %v", err)
	}
	r.Server = "JOIN.example.com" // the client signs the lower case
	if _, err := s.verify(r); err != nil {
		t.Errorf("upper case: %v", err)
	}
}

func TestVerifyRefuses(t *testing.T) {
	s, other := newSite(t), newSite(t)
	key, otherKey := csrtest.NewKey(), csrtest.NewKey()
	certificate := s.certificate(t, key, nil)
	by := func(edit func(*x509.Certificate)) func(*Request) {
		return func(r *Request) { r.Certificate = s.certificate(t, key, edit) }
	}
	resigned := func(challenge, node, server string, by crypto.Signer) func(*Request) {
		return func(r *Request) { r.Signature = sign(t, by, proof.Rejoin(challenge, node, server)) }
	}
	boundBy := func(public []byte) func(*Request) {
		return func(r *Request) { r.Certificate, r.Node, r.PublicKey = nil, "worker-1", public }
	}
	good := s.request(t, key, certificate)
	for name, test := range map[string]struct {
		change func(*Request)
		reason string
	}{
		"challenge of another server": {func(r *Request) { *r = other.request(t, key, certificate) }, "ChallengeInvalid"},
		"challenge a minute old":      {func(r *Request) { r.Challenge = newChallenge(s.key, s.now.Add(-time.Minute)) }, "ChallengeInvalid"},
		"challenge of the future":     {func(r *Request) { r.Challenge = newChallenge(s.key, s.now.Add(time.Minute+time.Second)) }, "ChallengeInvalid"},
		"no challenge":                {func(r *Request) { r.Challenge = "" }, "ChallengeInvalid"},
		"cut challenge":               {func(r *Request) { r.Challenge = r.Challenge[:len(r.Challenge)-2] }, "ChallengeInvalid"},
		"padded challenge":            {func(r *Request) { r.Challenge += "=" }, "ChallengeInvalid"},
		"54 other characters":         {func(r *Request) { r.Challenge = strings.Repeat("!", 54) }, "ChallengeInvalid"},
		"challenge with a newline":    {func(r *Request) { r.Challenge = r.Challenge[:9] + "\n" + r.Challenge[9:] }, "ChallengeInvalid"},

		"another CA":      {func(r *Request) { r.Certificate = other.certificate(t, key, nil) }, "CertificateInvalid"},
		"no certificate":  {func(r *Request) { r.Certificate = nil }, "CertificateInvalid"},
		"key in the PEM":  {func(r *Request) { r.Certificate = append(publicPEM(t, key), r.Certificate...) }, "CertificateInvalid"},
		"text in the PEM": {func(r *Request) { r.Certificate = append(bytes.Clone(r.Certificate), "x"...) }, "CertificateInvalid"},
		"long chain":      {func(r *Request) { r.Certificate = bytes.Repeat(certificate, maxChain+1) }, "CertificateInvalid"},
		"serving":         {by(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), "CertificateInvalid"},
		"user": {by(func(c *x509.Certificate) {
			c.Subject = pkix.Name{CommonName: "jane", Organization: []string{"system:nodes"}}
		}), "CertificateInvalid"},
		"no node group": {by(func(c *x509.Certificate) { c.Subject.Organization = []string{"dev"} }), "CertificateInvalid"},
		"another group": {by(func(c *x509.Certificate) { c.Subject.Organization = []string{"system:nodes", "system:masters"} }), "CertificateInvalid"},
		"no node name":  {by(func(c *x509.Certificate) { c.Subject.CommonName = "system:node:" }), "CertificateInvalid"},
		"invalid name":  {by(func(c *x509.Certificate) { c.Subject.CommonName = "system:node:A B" }), "CertificateInvalid"},
		"not valid yet": {by(func(c *x509.Certificate) { c.NotBefore, c.NotAfter = s.now.Add(time.Hour), s.now.Add(2*time.Hour) }), "CertificateInvalid"},
		"weak key":      {func(r *Request) { r.Certificate = s.certificate(t, csrtest.RSA1024(), nil) }, "CertificateInvalid"},
		"certificate of another PEM type": {func(r *Request) {
			r.Certificate = bytes.ReplaceAll(certificate, []byte(" CERTIFICATE-"), []byte(" X509 CERTIFICATE-"))
		}, "CertificateInvalid"},
		"garbage in PEM": {func(r *Request) {
			r.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})
		}, "CertificateInvalid"},
		"garbage as key":       {boundBy(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: []byte("x")})), "CertificateInvalid"},
		"weak bound key":       {boundBy(publicPEM(t, csrtest.RSA1024())), "CertificateInvalid"},
		"two bound keys":       {boundBy(append(publicPEM(t, key), publicPEM(t, key)...)), "CertificateInvalid"},
		"key of another type":  {boundBy(bytes.ReplaceAll(publicPEM(t, key), []byte("PUBLIC KEY"), []byte("EC PUBLIC KEY"))), "CertificateInvalid"},
		"invalid name with it": {func(r *Request) { boundBy(publicPEM(t, key))(r); r.Node = "A B" }, "CertificateInvalid"},
		"name beside it":       {func(r *Request) { r.Node = "worker-2" }, "CertificateInvalid"},
		"key beside it":        {func(r *Request) { r.PublicKey = publicPEM(t, key) }, "CertificateInvalid"},
		"key without name":     {func(r *Request) { r.Certificate, r.PublicKey = nil, publicPEM(t, key) }, "CertificateInvalid"},
		"invalid key":          {func(r *Request) { r.Certificate, r.Node, r.PublicKey = nil, "worker-1", []byte("x") }, "CertificateInvalid"},

		"another node's key":       {resigned(good.Challenge, "worker-1", "join.example.com", otherKey), "SignatureInvalid"},
		"signed for another node":  {resigned(good.Challenge, "worker-2", "join.example.com", key), "SignatureInvalid"},
		"signed another challenge": {resigned(newChallenge(s.key, s.now.Add(time.Second)), "worker-1", "join.example.com", key), "SignatureInvalid"},
		"signed for another server": {func(r *Request) {
			r.Server = "evil.example.com"
			resigned(r.Challenge, "worker-1", r.Server, key)(r)
		}, "SignatureInvalid"},
		"server changed on the way": {resigned(good.Challenge, "worker-1", "evil.example.com", key), "SignatureInvalid"},
		"no server": {func(r *Request) {
			r.Server = ""
			resigned(r.Challenge, "worker-1", "", key)(r)
		}, "SignatureInvalid"},
		"no signature":   {func(r *Request) { r.Signature = nil }, "SignatureInvalid"},
		"long signature": {func(r *Request) { r.Signature = make([]byte, proof.MaxSignature+1) }, "SignatureInvalid"},
		"signature to bind a key": {func(r *Request) {
			r.Signature = sign(t, key, proof.Bind(r.Challenge, "worker-1", r.Server, "sha256:x"))
		}, "SignatureInvalid"},
		"bind with the signature to rejoin": {func(r *Request) { r.Key = publicPEM(t, otherKey) }, "SignatureInvalid"},
		"invalid key to bind":               {func(r *Request) { r.Key = []byte("x") }, "CertificateInvalid"},
	} {
		r := good
		test.change(&r)
		v, err := s.verify(r)
		var no *Unproven
		if !errors.As(err, &no) || no.Reason != test.reason || v.node != "" {
			t.Errorf("%s: got %+v, %v, want %s", name, v, err, test.reason)
		}
	}
	if _, err := s.verify(good); err != nil {
		t.Error(err)
	}
}

// Binding a key needs a signature over exactly this key.
func TestVerifyBind(t *testing.T) {
	s := newSite(t)
	key, other := csrtest.NewKey(), csrtest.Ed25519()
	r := s.request(t, key, s.certificate(t, key, nil))
	r.Key = publicPEM(t, other)
	_, id, err := readKey(r.Key)
	if err != nil {
		t.Fatal(err)
	}
	r.Signature = sign(t, key, proof.Bind(r.Challenge, "worker-1", r.Server, id))
	if v, err := s.verify(r); err != nil || v.bind != id {
		t.Errorf("got %+v, %v, want key %s", v, err, id)
	}
	r.Key = publicPEM(t, csrtest.NewKey())
	if _, err := s.verify(r); err == nil {
		t.Error("accepts the signature for another key")
	}
}

// FuzzVerify checks that no request passes whose signature was not made with the key that the test holds.
func FuzzVerify(f *testing.F) {
	s := newSite(f)
	key := csrtest.NewKey()
	good := s.request(f, key, s.certificate(f, key, nil))
	f.Add(good.Certificate, "", []byte(nil), good.Challenge, good.Server, good.Signature, []byte(nil))
	f.Add([]byte(nil), "worker-1", publicPEM(f, key), good.Challenge, good.Server, good.Signature, publicPEM(f, csrtest.Ed25519()))
	f.Add(s.certificate(f, csrtest.RSA2048(), nil), "worker-2", []byte("x"), "AAAA", "2001:db8::1", []byte{0x30, 0}, []byte("-----BEGIN PUBLIC KEY-----"))
	_, id, err := readKey(publicPEM(f, key))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, certificate []byte, node string, public []byte, challenge, server string, signature, bind []byte) {
		r := Request{Certificate: certificate, Node: node, PublicKey: public, Challenge: challenge, Server: server, Signature: signature, Key: bind}
		v, err := s.verify(r)
		if err != nil {
			if no := (*Unproven)(nil); !errors.As(err, &no) || strings.ContainsAny(no.Message, "\x00\n") {
				t.Errorf("got %v (%T), want one clean line", err, err)
			}
			return
		}
		if v.key == id && (challenge != good.Challenge || !bytes.Equal(signature, good.Signature) && len(bind) == 0 && strings.ToLower(server) != good.Server) {
			t.Errorf("got %+v for a signature that the key has not made", v)
		}
	})
}
