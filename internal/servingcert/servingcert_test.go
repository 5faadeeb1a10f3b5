package servingcert_test

import (
	"crypto/x509"
	"errors"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/servingcert"
	"github.com/kubejoin/kubejoin/signer"
)

func TestRenewsInLastThirdOfLifetime(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	now := start
	newCA := func() *signer.CA {
		ca, err := signer.GenerateCA("kubernetes", start.Add(-48*time.Hour), 10*365*24*time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return ca
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
		next, err := issued.Step(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !next.After(now) {
			t.Fatalf("next step at %v, now it is %v", next, now)
		}
		c, err := issued.GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
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
	ca = newCA() // of the same name
	if step().Equal(before) {
		t.Error("not renewed when the CA was replaced")
	}
}

// A certificate cannot outlive its CA. Near the end of the CA, it must be renewed only when the CA is replaced, not at
// each step.
func TestDoesNotRenewRepeatedlyBeforeCAExpires(t *testing.T) {
	end := time.Now().Add(24 * time.Hour)
	ca, err := signer.GenerateCA("kubernetes", end.Add(-48*time.Hour), 48*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	end = ca.Certificate().NotAfter
	now := end.Add(-time.Hour)
	issued := &servingcert.Source{CA: func() *signer.CA { return ca }, Names: []string{"localhost"}, Now: func() time.Time { return now }}
	var first *x509.Certificate
	for _, left := range []time.Duration{time.Hour, 10 * time.Minute, time.Minute, time.Second} {
		now = end.Add(-left)
		next, err := issued.Step(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c, err := issued.GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
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
	if ca, err = signer.GenerateCA("kubernetes", time.Now().Add(-time.Hour), 365*24*time.Hour); err != nil {
		t.Fatal(err)
	}
	if _, err := issued.Step(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c, _ := issued.GetCertificate(nil); c.Leaf.Equal(before) {
		t.Error("not renewed by the new CA")
	}
}
