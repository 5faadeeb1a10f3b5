package signer_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/issuance"
	certificates "k8s.io/api/certificates/v1"
)

const kubeletClient = certificates.KubeAPIServerClientKubeletSignerName

// A process is a signer process of tests.
type process struct {
	sign      func(context.Context, signer.Order) ([]byte, error)
	discarded []error
}

func (p *process) Sign(ctx context.Context, o signer.Order) ([]byte, error) { return p.sign(ctx, o) }
func (p *process) Discarded(_ signer.Order, why error)                      { p.discarded = append(p.discarded, why) }

// remoteAuthority returns an authority without a key.
func remoteAuthority(remote signer.Remote, certs ...*x509.Certificate) (*signer.Authority, *signer.CA) {
	ca := must.Get(signer.NewRemoteCA(certs, remote))
	return &signer.Authority{Signers: signer.FixedSigners(must.Get(signer.KubernetesSigners(signer.Fixed(ca), 24*time.Hour)))}, ca
}

// certify returns the certificate of an order, as changed, signed by a CA.
func certify(t testing.TB, o signer.Order, ca *x509.Certificate, key crypto.Signer, change func(*x509.Certificate)) []byte {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), RawSubject: o.Request.CSR.RawSubject, PublicKey: o.Request.CSR.PublicKey,
		NotBefore: o.Made.Add(-5 * time.Minute), NotAfter: o.NotAfter, BasicConstraintsValid: true, SubjectKeyId: []byte{1},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	change(template)
	return pemOf(must.Value(x509.CreateCertificate(rand.Reader, template, ca, template.PublicKey, key))(t))
}

func pemOf(der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}) }

// withSerialZero replaces the serial number 1, which crypto/x509 does not do, and signs again.
func withSerialZero(t testing.TB, certificate []byte, key crypto.Signer) []byte {
	t.Helper()
	block, _ := pem.Decode(certificate)
	var parts struct {
		TBS asn1.RawValue
		Alg pkix.AlgorithmIdentifier
		Sig asn1.BitString
	}
	must.Value(asn1.Unmarshal(block.Bytes, &parts))(t)
	at := strings.Index(string(parts.TBS.FullBytes), "\x02\x01\x01")
	parts.TBS.FullBytes[at+2] = 0
	digest := sha256.Sum256(parts.TBS.FullBytes)
	parts.Sig = asn1.BitString{Bytes: must.Value(ecdsa.SignASN1(rand.Reader, key.(*ecdsa.PrivateKey), digest[:]))(t)}
	parts.Sig.BitLength = 8 * len(parts.Sig.Bytes)
	return pemOf(must.Value(asn1.Marshal(parts))(t))
}

// kubejoin must deliver only the ordered certificate, regardless of the signer process's response. The request
// is not denied.
func TestDiscardsCertificateThatWasNotOrdered(t *testing.T) {
	key, otherKey := csrtest.NewKey(), csrtest.NewKey()
	ca := caCertificate(t, "ca", key, nil, nil, nil)
	impostor := caCertificate(t, "ca", otherKey, nil, nil, nil)
	short := caCertificate(t, "short", otherKey, nil, nil, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(time.Hour) })
	server := caCertificate(t, "server", otherKey, nil, nil, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })
	subject := func(name pkix.Name) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.RawSubject, c.Subject = nil, name }
	}
	as := func(ca *x509.Certificate, key crypto.Signer, change func(*x509.Certificate)) func(signer.Order) []byte {
		return func(o signer.Order) []byte { return certify(t, o, ca, key, change) }
	}
	same := func(*x509.Certificate) {}
	for _, test := range []struct {
		name, want string // want is empty if the certificate is right
		sign       func(signer.Order) []byte
	}{
		{"as ordered", "", as(ca, key, same)},
		{"with white space around it", "", func(o signer.Order) []byte {
			return []byte("\n\n" + string(certify(t, o, ca, key, same)) + "\n\n")
		}},
		{"shorter", "", as(ca, key, func(c *x509.Certificate) { c.NotAfter = c.NotAfter.Add(-time.Hour) })},
		{"longer", "valid from", as(ca, key, func(c *x509.Certificate) { c.NotAfter = c.NotAfter.Add(time.Second) })},
		{"begins earlier", "valid from", as(ca, key, func(c *x509.Certificate) { c.NotBefore = c.NotBefore.Add(-time.Second) })},
		{"another key", "public key", as(ca, key, func(c *x509.Certificate) { c.PublicKey = otherKey.Public() })},
		{"another node", "subject is", as(ca, key, subject(csrtest.Node("worker-2")))},
		{"system:masters", "subject is", as(ca, key, subject(pkix.Name{CommonName: "system:node:worker-1", Organization: []string{"system:nodes", "system:masters"}}))},
		{"more names", "DNS names", as(ca, key, func(c *x509.Certificate) { c.DNSNames = []string{"kubernetes"} })},
		{"another usage", "extended key usage", as(ca, key, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })},
		{"a CA", "allow a CA", as(ca, key, func(c *x509.Certificate) { c.IsCA = true })},
		{"another extension", "unexpected extension", as(ca, key, func(c *x509.Certificate) {
			c.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 2, 3}, Value: []byte{5, 0}}}
		})},
		{"a name of a kind that crypto/x509 drops", "of kind registeredID", as(ca, key, func(c *x509.Certificate) {
			c.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Value: []byte{0x30, 4, 0x88, 2, 42, 3}}}
		})},
		{"critical names of nobody", "critical extensions", as(ca, key, func(c *x509.Certificate) {
			c.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Critical: true, Value: []byte{0x30, 0}}}
		})},
		{"serial number 0", "serial number", func(o signer.Order) []byte { return withSerialZero(t, certify(t, o, ca, key, same), key) }},
		{"the key of another CA of that name", "has signed it", as(impostor, otherKey, same)},
		{"past the end of its CA", "after the CA expires", as(short, otherKey, same)},
		{"by a CA for other usages", "excludes certificates", as(server, otherKey, same)},
		{"two certificates", "not a single certificate", func(o signer.Order) []byte {
			return append(certify(t, o, ca, key, same), pemOf(ca.Raw)...)
		}},
		{"no certificate", "not a single certificate", func(signer.Order) []byte { return []byte("OK") }},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := &process{sign: func(_ context.Context, o signer.Order) ([]byte, error) { return test.sign(o), nil }}
			authority, _ := remoteAuthority(p, ca, short, server)
			chain, err := authority.Sign(t.Context(), kubernetesRequest(t, kubeletClient, nil))
			if test.want == "" {
				if err != nil || len(decode(t, chain)) != 1 || len(p.discarded) > 0 || strings.Contains(string(chain), "\n\n") {
					t.Errorf("got %v and %v discarded, want a certificate", err, p.discarded)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.want) || len(chain) > 0 || len(p.discarded) != 1 {
				t.Errorf("got %q, %v and %d discarded, want an error with %q, counted once", chain, err, len(p.discarded), test.want)
			}
			if errors.As(err, new(*approval.Error)) {
				t.Errorf("error %v decides about the request, want one after which it is retried", err)
			}
		})
	}
}

// kubejoin must discard a certificate of an earlier order. For its own order the certificate was right, so this test
// catches a check that skips a part of the order.
func TestDiscardsReplayedCertificate(t *testing.T) {
	key, nodeKey, now := csrtest.NewKey(), csrtest.NewKey(), time.Now()
	ca := caCertificate(t, "ca", key, nil, nil, nil)
	var earlier []byte
	p := &process{sign: func(_ context.Context, o signer.Order) ([]byte, error) {
		if earlier == nil {
			earlier = certify(t, o, ca, key, func(*x509.Certificate) {})
		}
		return earlier, nil
	}}
	var entries []issuance.Entry
	authority, _ := remoteAuthority(p, ca)
	authority.Record, authority.Unthrottled, authority.Now = failing{&entries}, true, func() time.Time { return now }
	for i, test := range []struct {
		node    string
		key     crypto.Signer
		expires time.Duration // zero: as in the first order
		later   time.Duration
		want    string
	}{
		{"worker-1", nodeKey, 0, 0, ""},
		{"worker-1", nil, 0, 0, "public key"},
		{"worker-2", nodeKey, 0, 0, "subject is"},
		{"worker-1", nodeKey, time.Hour, 0, "valid from"},
		{"worker-1", nodeKey, 0, time.Second, "valid from"},
	} {
		now = now.Add(test.later)
		r := kubernetesRequest(t, kubeletClient, nil)
		r.CSR, r.Expiration = csrtest.New(t, &x509.CertificateRequest{Subject: csrtest.Node(test.node)}, test.key), test.expires
		chain, err := authority.Sign(t.Context(), r)
		if test.want == "" {
			must.OK(t, err)
		} else if err == nil || !strings.Contains(err.Error(), test.want) || approval.Refused(err) != nil || len(chain) > 0 || len(p.discarded) != i || entries[len(entries)-1].Outcome != issuance.Failed {
			t.Errorf("order %d: got %q, %v, %d discarded and record %+v, want a recorded failure with %q", i+1, chain, err, len(p.discarded), entries, test.want)
		}
	}
}

// A signer process may change its CA at any time. The response must have the intermediates of the CA that has signed,
// and the CA must report the new signing certificate.
func TestRemoteCAFollowsItsSigner(t *testing.T) {
	root, oldKey, newKey := csrtest.NewKey(), csrtest.NewKey(), csrtest.NewKey()
	rootCert := caCertificate(t, "root", root, nil, nil, nil)
	older := caCertificate(t, "old", oldKey, rootCert, root, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(12 * time.Hour) })
	newer := caCertificate(t, "new", newKey, rootCert, root, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(20 * time.Hour) })
	now := older
	p := &process{sign: func(_ context.Context, o signer.Order) ([]byte, error) {
		return certify(t, o, now, map[*x509.Certificate]crypto.Signer{older: oldKey, newer: newKey}[now], func(c *x509.Certificate) {
			if c.NotAfter.After(now.NotAfter) {
				c.NotAfter = now.NotAfter
			}
		}), nil
	}}
	authority, ca := remoteAuthority(p, older, newer, rootCert)
	if got := ca.Certificate(); !got.Equal(rootCert) {
		t.Errorf("before the first certificate the CA is %q, want the one that expires last", got.Subject)
	}
	for _, next := range []*x509.Certificate{older, newer, older} {
		now = next
		chain := decode(t, must.Value(authority.Sign(t.Context(), kubernetesRequest(t, kubeletClient, nil)))(t))
		if len(chain) != 2 || !chain[1].Equal(next) || !ca.Certificate().Equal(next) || !strings.Contains(ca.String(), next.Subject.CommonName) {
			t.Errorf("signed by %q: chain of %d, CA %v, want %q", chain[0].Issuer, len(chain), ca, next.Subject)
		}
	}
}

// The CA certificate that signed last may expire, or not allow the usages, while the signer process uses another
// CA certificate.
func TestRemoteCAOutlivesItsLastSigner(t *testing.T) {
	oldKey, newKey := csrtest.NewKey(), csrtest.NewKey()
	end := time.Now().Add(12 * time.Hour)
	older := caCertificate(t, "old", oldKey, nil, nil, func(c *x509.Certificate) { c.NotAfter = end })
	newer := caCertificate(t, "new", newKey, nil, nil, func(c *x509.Certificate) { c.NotAfter = end.Add(240 * time.Hour) })
	p := &process{sign: func(_ context.Context, o signer.Order) ([]byte, error) {
		return certify(t, o, newer, newKey, func(*x509.Certificate) {}), nil
	}}
	authority, ca := remoteAuthority(p, older, newer)
	ca.SignsWith(newer)
	ca.SignsWith(caCertificate(t, "stranger", newKey, nil, nil, nil))
	if got := ca.Certificate(); !got.Equal(newer) {
		t.Errorf("the CA is %q, want %q", got.Subject, newer.Subject)
	}
	ca.SignsWith(older)
	if got := ca.Certificate(); !got.Equal(older) {
		t.Errorf("the CA is %q, want %q", got.Subject, older.Subject)
	}
	authority.Now = func() time.Time { return end.Add(time.Minute) }
	must.Value(authority.Sign(t.Context(), kubernetesRequest(t, kubeletClient, nil)))(t)
	if got := ca.Certificate(); !got.Equal(newer) {
		t.Errorf("after it signed the CA is %q, want %q", got.Subject, newer.Subject)
	}
}

func TestRemoteCAHasNoKey(t *testing.T) {
	ca := must.Value(signer.NewRemoteCA([]*x509.Certificate{caCertificate(t, "ca", csrtest.NewKey(), nil, nil, nil)}, &process{}))(t)
	if secret, err := ca.Secret("purpose"); err == nil || !strings.Contains(err.Error(), "--cluster-signing-key-url") {
		t.Errorf("got secret %x, %v, want an error that names the flag", secret, err)
	}
	if _, _, err := ca.PEM(); err == nil || !strings.Contains(err.Error(), "--cluster-signing-key-url") {
		t.Errorf("PEM: got %v, want an error that names the flag", err)
	}
	if len(ca.BundlePEM()) == 0 {
		t.Error("got no bundle")
	}
	if _, err := signer.NewRemoteCA(nil, &process{}); err == nil {
		t.Error("got a CA without certificates")
	}
	expired := caCertificate(t, "ca", csrtest.NewKey(), nil, nil, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	if _, err := signer.NewRemoteCA([]*x509.Certificate{expired}, &process{}); !errors.Is(err, signer.ErrExpiredCA) {
		t.Errorf("expired CA: got %v", err)
	}
	file := filepath.Join(t.TempDir(), "ca.crt")
	must.OK(t, os.WriteFile(file, pemOf(expired.Raw), 0o600))
	if _, err := signer.LoadRemoteCA(file, &process{}); !errors.Is(err, signer.ErrExpiredCA) || !strings.Contains(err.Error(), file) {
		t.Errorf("expired CA in a file: got %v", err)
	}
	must.OK(t, os.WriteFile(file, ca.BundlePEM(), 0o600))
	must.OK(t, os.Chmod(file, 0o666)) // regardless of the umask
	if _, err := signer.LoadRemoteCA(file, &process{}); !errors.Is(err, signer.ErrExposed) {
		t.Errorf("a file that every user may write: got %v", err)
	}
}

// failing is a record on a full disk.
type failing struct{ entries *[]issuance.Entry }

func (f failing) Append(_ context.Context, e issuance.Entry) error {
	if f.entries == nil {
		return errors.New("disk full")
	}
	*f.entries = append(*f.entries, e)
	return nil
}

// A signer process repeats the checks of the signer, limits the lifetime by its own profile, and records the
// certificate before it returns.
func TestSignOrder(t *testing.T) {
	ca := must.Value(signer.GenerateCA("ca", time.Now(), 10*24*time.Hour))(t)
	profile := signer.ProfileConfig{Usages: signer.KubernetesUsages(kubeletClient), Default: time.Hour, Max: 2 * time.Hour}
	s := must.Value(signer.NewSigner(kubeletClient, signer.Fixed(ca), profile, nil))(t)
	now := time.Now()
	order := func(change func(*signer.Order)) signer.Order {
		o := signer.Order{Request: kubernetesRequest(t, kubeletClient, nil), Made: now, NotAfter: now.Add(time.Hour).Truncate(time.Second)}
		if change != nil {
			change(&o)
		}
		return o
	}
	var entries []issuance.Entry
	authority := &signer.Authority{Record: failing{&entries}, Unthrottled: true, Now: func() time.Time { return now }}
	for _, test := range []struct {
		name   string
		change func(*signer.Order)
		want   time.Time // end of the certificate; zero: refused
	}{
		{"as ordered", nil, now.Add(time.Hour)},
		{"longer than the profile allows", func(o *signer.Order) { o.NotAfter = now.Add(24 * time.Hour) }, now.Add(2 * time.Hour)},
		{"made a minute ago", func(o *signer.Order) { o.Made, o.NotAfter = now.Add(-time.Minute), now.Add(24*time.Hour) }, now.Add(2*time.Hour - time.Minute)},
		{"made in a minute", func(o *signer.Order) { o.Made, o.NotAfter = now.Add(time.Minute), now.Add(24*time.Hour) }, now.Add(2 * time.Hour)},
		{"already over", func(o *signer.Order) { o.NotAfter = now.Add(-time.Minute) }, time.Time{}},
		{"another signer", func(o *signer.Order) { o.Request.SignerName = certificates.KubeletServingSignerName }, time.Time{}},
		{"system:masters", func(o *signer.Order) {
			o.Request.CSR = csrtest.New(t, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:a", Organization: []string{"system:masters"}}}, nil)
		}, time.Time{}},
		{"no signature", func(o *signer.Order) { o.Request.CSR.Signature[9] ^= 1 }, time.Time{}},
		{"more usages", func(o *signer.Order) { o.Request.Usages = append(o.Request.Usages, certificates.UsageServerAuth) }, time.Time{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			entries = nil
			o := order(test.change)
			certificate, err := authority.SignOrder(t.Context(), s, o)
			if test.want.IsZero() {
				if approval.Refused(err) == nil || len(certificate) > 0 || len(entries) != 1 || entries[0].Outcome != issuance.Refused {
					t.Errorf("got %q, %v and entries %v, want a recorded refusal", certificate, err, entries)
				}
				return
			}
			must.OK(t, err)
			cert := decode(t, certificate)[0]
			if !cert.NotAfter.Equal(test.want.Truncate(time.Second)) || !cert.NotBefore.Equal(o.Made.Add(-5*time.Minute).Truncate(time.Second)) {
				t.Errorf("valid from %s to %s, want an end at %s", cert.NotBefore, cert.NotAfter, test.want)
			}
			if len(entries) != 1 || entries[0].Serial != cert.SerialNumber.Text(16) {
				t.Errorf("entries %v, want one of serial number %x", entries, cert.SerialNumber)
			}
		})
	}
	key := csrtest.NewKey()
	server := caCertificate(t, "server", key, nil, nil, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })
	cas := []*signer.CA{ca, must.Value(signer.NewCA([]*x509.Certificate{server}, key))(t)} // NewSigner uses the first one
	replaced := func() (*signer.CA, error) {
		c := cas[0]
		cas = cas[len(cas)-1:]
		return c, nil
	}
	later := &signer.Authority{Now: func() time.Time { return now.Add(11 * 24 * time.Hour) }}
	for _, test := range []struct {
		by   *signer.Authority
		ca   func() (*signer.CA, error)
		want string
	}{
		{authority, func() (*signer.CA, error) { return nil, errors.New("no file") }, "no file"},
		{authority, replaced, "excludes certificates"},
		{later, signer.Fixed(ca), "the CA has expired"},
	} {
		s := must.Value(signer.NewSigner(kubeletClient, test.ca, profile, nil))(t)
		certificate, err := test.by.SignOrder(t.Context(), s, order(func(o *signer.Order) { o.NotAfter = now.Add(20 * 24 * time.Hour) }))
		if err == nil || approval.Refused(err) != nil || !strings.Contains(err.Error(), test.want) || len(certificate) > 0 {
			t.Errorf("got %q, %v, want a failure with %q", certificate, err, test.want)
		}
	}
	authority.Record = failing{}
	if certificate, err := authority.SignOrder(t.Context(), s, order(nil)); err == nil || len(certificate) > 0 {
		t.Errorf("without a record: got %q, %v, want no certificate", certificate, err)
	}
}
