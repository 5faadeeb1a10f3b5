package servingcert_test

import (
	"crypto/x509"
	"errors"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/web/servingcert"
	"github.com/kubejoin/kubejoin/signer"
)

func TestRenewsInLastThirdOfLifetime(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	now := start
	newCA := func() *signer.CA {
		return must.Value(signer.GenerateCA("kubernetes", start.Add(-48*time.Hour), 10*365*24*time.Hour))(t)
	}
	ca := newCA()
	issued := &servingcert.Source{
		CA:    func() *signer.CA { return ca },
		Names: []string{"localhost", "127.0.0.1", "::ffff:127.0.0.1", "::1", "localhost", "join.example.com"},
		Now:   func() time.Time { return now },
	}
	if _, err := issued.GetCertificate(nil); err == nil {
		t.Error("got a certificate before the first step")
	}
	step := func() *x509.Certificate {
		t.Helper()
		next := must.Value(issued.Step(t.Context()))(t)
		if !next.After(now) {
			t.Fatalf("next step at %v, now it is %v", next, now)
		}
		c := must.Value(issued.GetCertificate(nil))(t)
		roots := x509.NewCertPool()
		roots.AddCert(ca.Certificate())
		for _, name := range []string{"localhost", "127.0.0.1", "::1", "join.example.com"} {
			if _, err := c.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots, CurrentTime: now}); err != nil {
				t.Errorf("for %s: %v", name, err)
			}
		}
		if len(c.Leaf.IPAddresses) != 2 || len(c.Leaf.DNSNames) != 2 {
			t.Errorf("names %v %v, want each once", c.Leaf.DNSNames, c.Leaf.IPAddresses)
		}
		return c.Leaf
	}
	first := step()
	now = start.Add(59 * 24 * time.Hour)
	if !step().Equal(first) {
		t.Error("renewed in the first two thirds of its lifetime")
	}
	now = start.Add(61 * 24 * time.Hour)
	second := step()
	if second.Equal(first) {
		t.Error("not renewed in the last third of its lifetime")
	}
	now = start.Add(-time.Hour)
	if step().Equal(second) {
		t.Error("not renewed after the clock was set back before notBefore")
	}
	now = start
	before := step()
	ca = newCA() // a new CA with the same name
	if step().Equal(before) {
		t.Error("not renewed when the CA was replaced")
	}
}

// A certificate cannot outlive its CA. When the CA expires soon, Step must renew the certificate only after the CA was
// replaced, not each time.
func TestDoesNotRenewRepeatedlyBeforeCAExpires(t *testing.T) {
	end := time.Now().Add(24 * time.Hour)
	ca := must.Value(signer.GenerateCA("kubernetes", end.Add(-48*time.Hour), 48*time.Hour))(t)
	end = ca.Certificate().NotAfter
	now := end.Add(-time.Hour)
	issued := &servingcert.Source{CA: func() *signer.CA { return ca }, Names: []string{"localhost"}, Now: func() time.Time { return now }}
	var first *x509.Certificate
	for _, left := range []time.Duration{time.Hour, 10 * time.Minute, time.Minute, time.Second} {
		now = end.Add(-left)
		next := must.Value(issued.Step(t.Context()))(t)
		c := must.Value(issued.GetCertificate(nil))(t)
		if first == nil {
			first = c.Leaf
		}
		if !next.Equal(end) || !c.Leaf.Equal(first) || !c.Leaf.NotAfter.Equal(end) {
			t.Errorf("%s before the end of the CA: next step at %s, renewed %t, ends at %s; want the CA's end %s", left, next, !c.Leaf.Equal(first), c.Leaf.NotAfter, end)
		}
	}
	now = end
	if _, err := issued.Step(t.Context()); !errors.Is(err, signer.ErrExpiredCA) {
		t.Errorf("after the end of the CA: %v, want ErrExpiredCA", err)
	}
	before := first
	ca = must.Value(signer.GenerateCA("kubernetes", time.Now().Add(-time.Hour), 365*24*time.Hour))(t)
	must.Value(issued.Step(t.Context()))(t)
	if c, _ := issued.GetCertificate(nil); c.Leaf.Equal(before) {
		t.Error("not renewed by the new CA")
	}
}

// Clients that trust only the old CA need the cross certificate while the new CA signs. The Source must present it
// only in these stages, keep the serving key, and never add it to a certificate of another CA.
func TestServesCrossCertificateOfSigningCA(t *testing.T) {
	oldCA, newCA := must.Value(signer.GenerateCA("old", time.Now(), 24*time.Hour))(t), must.Value(signer.GenerateCA("new", time.Now(), 24*time.Hour))(t)
	other := must.Value(signer.GenerateCA("new", time.Now(), 24*time.Hour))(t)
	cross := must.Value(oldCA.CrossSign(newCA.Certificate()))(t)
	ca, now := newCA, (*x509.Certificate)(nil)
	source := &servingcert.Source{CA: func() *signer.CA { return ca }, Names: []string{"localhost"}, Cross: func() *x509.Certificate { return now }}
	var leaf *x509.Certificate
	for _, test := range []struct {
		name  string
		ca    *signer.CA
		cross *x509.Certificate
		old   bool // whether a client that trusts only the old CA accepts the chain
	}{
		{"none", newCA, nil, false},
		{"cross", newCA, cross, true},
		{"gone", newCA, nil, false},
		{"cross again", newCA, cross, true},
		{"another CA of the name", other, cross, false},
		{"the old one", oldCA, cross, true},
	} {
		ca, now = test.ca, test.cross
		must.Value(source.Step(t.Context()))(t)
		c := must.Value(source.GetCertificate(nil))(t)
		if leaf != nil && test.ca == newCA && !c.Leaf.Equal(leaf) {
			t.Errorf("%s: another certificate", test.name)
		}
		leaf = c.Leaf
		if want := map[bool]int{true: 2, false: 1}[test.old && test.ca == newCA]; len(c.Certificate) != want {
			t.Errorf("%s: serves %d certificates, want %d", test.name, len(c.Certificate), want)
		}
		roots, behind := x509.NewCertPool(), x509.NewCertPool()
		roots.AddCert(oldCA.Certificate())
		for _, der := range c.Certificate[1:] {
			behind.AddCert(must.Value(x509.ParseCertificate(der))(t))
		}
		if _, err := c.Leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: behind, DNSName: "localhost"}); (err == nil) != test.old {
			t.Errorf("%s: a client of the old CA says %v", test.name, err)
		}
	}
}
