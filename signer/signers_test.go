package signer_test

import (
	"context"
	"crypto"
	"crypto/elliptic"
	"crypto/x509"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	certificates "k8s.io/api/certificates/v1"
)

func TestCheckSignersReportsEachSigner(t *testing.T) {
	ca := signer.Fixed(newCA(t))
	profile := signer.Profile{Usages: clientUsages}
	allow := func(approval.Request) error { return nil }
	good := signer.Signer{CA: ca, Check: allow, Profile: profile}
	if err := signer.CheckSigners(map[string]signer.Signer{"example.com/good": good}); err != nil {
		t.Error(err)
	}
	err := signer.CheckSigners(map[string]signer.Signer{
		"example.com/good":      good,
		"example.com/no-ca":     {Check: allow, Profile: profile},
		"example.com/no-check":  {CA: ca, Profile: profile},
		"example.com/no-usages": {CA: ca, Check: allow},
	})
	for _, part := range []string{"example.com/no-ca has no CA", "example.com/no-check has no check", "example.com/no-usages: profile without usages"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("CheckSigners = %v, want %q in it", err, part)
		}
	}
	if err != nil && strings.Contains(err.Error(), "example.com/good") {
		t.Errorf("CheckSigners = %v, with the good signer in it", err)
	}
}

// A signer with a malformed profile signs nothing, whatever the request asks for.
func TestSignRefusesMalformedProfile(t *testing.T) {
	name := certificates.KubeAPIServerClientKubeletSignerName
	signers := signer.KubernetesSigners(signer.Fixed(newCA(t)), time.Hour)
	s := signers[name]
	s.Profile.Min = 2 * time.Hour
	signers[name] = s
	authority := &signer.Authority{Signers: signer.FixedSigners(signers)}
	if chain, err := authority.Sign(t.Context(), kubernetesRequest(t, name, nil), nil); err == nil || chain != nil {
		t.Errorf("Sign = %d bytes, %v, want an error about the profile", len(chain), err)
	}
}

// The caller logs the error of a decision to wait.
func TestDecideReturnsErrorOfNodes(t *testing.T) {
	broken := errors.New("connection refused")
	authority := &signer.Authority{
		Facts:   yes{},
		Signers: signer.FixedSigners(signer.KubernetesSigners(signer.Fixed(newCA(t)), time.Hour)),
		Nodes:   &signer.NodeAdmission{Node: func(context.Context, string) (string, error) { return "", broken }},
	}
	d, admission, err := authority.Decide(t.Context(), kubernetesRequest(t, certificates.KubeAPIServerClientKubeletSignerName, nil))
	if d.Verdict != approval.Wait || admission != nil || !errors.Is(err, broken) {
		t.Errorf("Decide = %+v, %v, %v, want to wait and the error", d, admission, err)
	}
}

// opaque is a key that is none of the standard library's.
type opaque struct{ crypto.Signer }

func (opaque) Public() crypto.PublicKey { return struct{}{} }

func TestNewCARefusesWhatCannotSign(t *testing.T) {
	key := newKey(elliptic.P256())
	good := caCertificate(t, "ca", key, nil, nil, nil)
	without := *good
	without.BasicConstraintsValid = false
	for name, test := range map[string]struct {
		certs []*x509.Certificate
		key   crypto.Signer
		want  string
	}{
		"nil certificate":           {[]*x509.Certificate{good, nil}, key, "certificate 2 of 2: none given"},
		"without basic constraints": {[]*x509.Certificate{&without}, key, "is not a CA"},
		"key of an unknown type":    {[]*x509.Certificate{good}, opaque{key}, "want RSA, ECDSA or Ed25519"},
	} {
		if _, err := signer.NewCA(slices.Clone(test.certs), test.key); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: NewCA = %v, want %q", name, err, test.want)
		}
	}
}
