package signer_test

import (
	"crypto"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
	certificates "k8s.io/api/certificates/v1"
)

func TestKeyPolicyLimitsKeys(t *testing.T) {
	p256, p384, p521 := csrtest.ECDSA(elliptic.P256()), csrtest.ECDSA(elliptic.P384()), csrtest.ECDSA(elliptic.P521())
	ed, rsa := csrtest.Ed25519(), csrtest.RSA2048()
	ca := newCA(t)
	for _, test := range []struct {
		name   string
		policy signer.KeyPolicy
		yes    []crypto.Signer
		no     []crypto.Signer
		want   string
	}{
		{"zero", signer.KeyPolicy{}, []crypto.Signer{p256, p384, p521, ed, rsa}, []crypto.Signer{csrtest.RSA1024()}, "RSA 2048 to 8192 bits, ECDSA P-256, ECDSA P-384, ECDSA P-521, Ed25519"},
		{"one curve", signer.KeyPolicy{Curves: []elliptic.Curve{elliptic.P256()}}, []crypto.Signer{p256}, []crypto.Signer{p384, p521, ed, rsa}, "ECDSA P-256"},
		{"Ed25519", signer.KeyPolicy{Ed25519: true}, []crypto.Signer{ed}, []crypto.Signer{p256, rsa}, "Ed25519"},
		{"RSA up to a size", signer.KeyPolicy{MaxRSA: 2048}, []crypto.Signer{rsa}, []crypto.Signer{p256, ed, csrtest.RSA1024()}, "RSA 2048 to 2048 bits"},
		{"RSA from a size", signer.KeyPolicy{MinRSA: 3072, MaxRSA: 8192}, nil, []crypto.Signer{rsa, p256}, "RSA 3072 to 8192 bits"},
	} {
		t.Run(test.name, func(t *testing.T) {
			must.OK(t, test.policy.Check())
			if got := test.policy.String(); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			profile := must.Get(signer.NewProfile(signer.ProfileConfig{Usages: clientUsages, Keys: test.policy}))
			issue := func(key crypto.Signer) error {
				csr := csrtest.New(t, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane"}}, key)
				_, err := profile.Issue(ca, signer.Template{CSR: csr, Usages: clientUsages}, time.Now())
				return err
			}
			for _, key := range test.yes {
				if err := issue(key); err != nil {
					t.Errorf("%T: %v", key, err)
				}
			}
			for _, key := range test.no {
				if err := issue(key); approval.Refused(err) == nil {
					t.Errorf("%T: got %v, want a refusal", key, err)
				}
			}
		})
	}
}

func TestKeyPolicyCheckRefusesInvalidRanges(t *testing.T) {
	for _, test := range []struct {
		policy signer.KeyPolicy
		want   string
	}{
		{signer.KeyPolicy{MinRSA: 1024, MaxRSA: 4096}, "RSA key sizes are 1024 to 4096 bits, want a range within 2048 to 8192"},
		{signer.KeyPolicy{MaxRSA: 16384}, "2048 to 16384"},
		{signer.KeyPolicy{MinRSA: 4096, MaxRSA: 3072}, "4096 to 3072"},
		{signer.KeyPolicy{MaxRSA: 1024}, "2048 to 1024"},
		{signer.KeyPolicy{MinRSA: 4096}, "without a maximum"},
		{signer.KeyPolicy{Ed25519: true, MinRSA: -1, MaxRSA: -1}, "-1"},
		{signer.KeyPolicy{Curves: []elliptic.Curve{elliptic.P224()}}, "unsupported elliptic curve, want P-256"},
	} {
		if err := test.policy.Check(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v, want %q", test.policy, err, test.want)
		}
		if _, err := signer.NewProfile(signer.ProfileConfig{Usages: clientUsages, Keys: test.policy}); err == nil {
			t.Errorf("NewProfile accepts the key policy %+v", test.policy)
		}
	}
}

// A request that the signer would refuse must not claim a node name, even if a person approved it.
func TestUnsignableRequestClaimsNoNodeName(t *testing.T) {
	for _, test := range []struct {
		name    string
		profile signer.ProfileConfig
		check   func(approval.Request) error
		lasts   time.Duration
		want    string
	}{
		{name: "key", profile: signer.ProfileConfig{Usages: clientUsages, Keys: signer.KeyPolicy{Ed25519: true}}, want: "want Ed25519"},
		{name: "check", profile: signer.ProfileConfig{Usages: clientUsages}, check: func(approval.Request) error { return errors.New("not today") }, want: "not today"},
		{name: "usage", profile: signer.ProfileConfig{Usages: []certificates.KeyUsage{certificates.UsageClientAuth}}, want: "digital signature"},
		{name: "lifetime", profile: signer.ProfileConfig{Usages: clientUsages}, lasts: -time.Second, want: "want a positive duration"},
	} {
		t.Run(test.name, func(t *testing.T) {
			store := memdb.Open()
			record := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
			record.Limits.MaxNodes = 1
			record = must.Value(store.Create(t.Context(), record))(t)
			r := nodeRequest(t, tokens.BootstrapUserPrefix+record.Token.ID(), "worker-1")
			r.Expiration = test.lasts
			s := must.Get(signer.NewSigner(r.SignerName, signer.Fixed(newCA(t)), test.profile, test.check))
			s.Rules = []approval.Rule{rule{Verdict: approval.Approve}}
			authority := signer.Authority{
				Nodes: &admission.Nodes{Tokens: store, Claims: store.Claims()}, Signers: signer.FixedSigners(map[string]signer.Signer{r.SignerName: s}),
			}
			admitted, err := authority.Decide(t.Context(), r)
			if refused := approval.Refused(err); refused == nil || admitted != nil || refused.Reason != approval.ReasonValidation || !strings.Contains(refused.Message, test.want) {
				t.Errorf("got %v, want a denial with %q", err, test.want)
			}
			if _, err := authority.Sign(t.Context(), r); approval.Refused(err) == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Sign: got %v, want a refusal with %q", err, test.want)
			}
			if claims, err := store.Claims().List(t.Context()); err != nil || len(claims) > 0 {
				t.Errorf("got claims %v, %v, want none", claims, err)
			}
		})
	}
}

// An RSA exponent that is even or below 3 makes a useless key: signatures are forgeable or impossible.
func TestRefusesInvalidRSAExponents(t *testing.T) {
	ca := newCA(t)
	csr := csrtest.New(t, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane"}}, csrtest.RSA2048())
	for exponent, good := range map[int]bool{-3: false, 0: false, 1: false, 2: false, 3: true, 4: false, 5: true, 65536: false, 65537: true} {
		other := *csr
		other.PublicKey = &rsa.PublicKey{N: csrtest.RSA2048().N, E: exponent}
		_, err := must.Get(signer.NewProfile(signer.ProfileConfig{Usages: clientUsages})).Issue(ca, signer.Template{CSR: &other, Usages: clientUsages}, time.Now())
		refused := approval.Refused(err) != nil && strings.Contains(err.Error(), "public exponent")
		if refused == good {
			t.Errorf("exponent %d: got %v, want a refusal: %t", exponent, err, !good)
		}
	}
}
