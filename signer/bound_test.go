package signer_test

import (
	"context"
	"crypto/x509"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

// SignAdmitted signs the request that Decide has seen, even if the caller changes it afterwards.
func TestSignAdmittedIgnoresLaterChangesOfRequest(t *testing.T) {
	for name, later := range map[string]time.Duration{"at once": 0, "validated again": time.Minute} {
		var checked []string
		const kubelet = certificates.KubeAPIServerClientKubeletSignerName
		s := must.Get(signer.NewSigner(kubelet, signer.Fixed(newCA(t)), signer.ProfileConfig{Usages: signer.KubernetesUsages(kubelet)}, func(r approval.Request) error {
			checked = r.Groups
			return nil
		}))
		s.Rules = approval.Kubelet()
		now := time.Now()
		authority := &signer.Authority{Facts: allowsAll{}, Signers: signer.FixedSigners(map[string]signer.Signer{kubelet: s}), Now: func() time.Time { return now }}
		r := nodeRequest(t, "jane", "worker-1")
		r.Groups = []string{"system:bootstrappers", "a"}
		decided, err := authority.Decide(t.Context(), r)
		if err != nil || decided == nil {
			t.Fatal(decided, err)
		}
		r.Groups[1], r.Usages[0] = "system:nodes", certificates.UsageKeyEncipherment
		now = now.Add(later)
		chain, err := authority.SignAdmitted(t.Context(), decided)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if usage := decode(t, chain)[0].KeyUsage; usage != x509.KeyUsageDigitalSignature || later > 0 && checked[1] != "a" {
			t.Errorf("%s: got key usage %b and checked groups %q, want those at the time of Decide", name, usage, checked)
		}
	}
}

// If the admission has expired, SignAdmitted reads the Node again. The Node exists by then, so the reason of the
// refusal shows whether SignAdmitted used the admission.
func TestAdmissionExpiresAfterOneSecond(t *testing.T) {
	for name, test := range map[string]struct {
		later time.Duration
		holds bool
	}{
		"now":                  {0, true},
		"almost a second ago":  {time.Second - 1, true},
		"a second ago":         {time.Second, false},
		"the clock went back":  {-1, false},
		"the clock went ahead": {time.Hour, false},
	} {
		taken, now := false, time.Now()
		authority := &signer.Authority{
			Facts:   allowsAll{},
			Now:     func() time.Time { return now },
			Signers: signer.FixedSigners(must.Get(signer.KubernetesSigners(signer.Fixed(newCA(t)), 2*time.Hour))),
			Nodes: &admission.Nodes{Node: func(context.Context, string) (string, error) {
				if taken {
					return "uid", nil
				}
				return "", tokens.ErrNotFound
			}},
		}
		decided, err := authority.Decide(t.Context(), nodeRequest(t, "jane", "worker-1"))
		if err != nil || decided == nil {
			t.Fatal(decided, err)
		}
		taken, now = true, now.Add(test.later)
		_, err = authority.SignAdmitted(t.Context(), decided)
		var refused *approval.Error
		if test.holds && err != nil || !test.holds && (!errors.As(err, &refused) || refused.Verdict != approval.Deny || refused.Reason != admission.ReasonNodeExists) {
			t.Errorf("%s: got %v, want the admission to be valid: %t", name, err, test.holds)
		}
	}
	if chain, err := (&signer.Authority{}).SignAdmitted(t.Context(), &signer.Admission{}); chain != nil || !errors.Is(err, signer.ErrUnknownSigner) {
		t.Errorf("zero Admission: got %v, want ErrUnknownSigner", err)
	}
}

// A signer that is configured under another signer's name would not apply the checks of that name.
func TestSignerRefusesRequestsOfOtherNames(t *testing.T) {
	const own = "example.com/own"
	r := nodeRequest(t, "jane", "worker-1")
	for name, s := range map[string]signer.Signer{
		"zero":            {},
		"of another name": must.Get(signer.NewSigner(own, signer.Fixed(newCA(t)), signer.ProfileConfig{Usages: clientUsages}, anyRequest)),
	} {
		s.Rules = []approval.Rule{rule{Verdict: approval.Approve, Reason: "Good"}}
		authority := &signer.Authority{Signers: signer.FixedSigners(map[string]signer.Signer{r.SignerName: s})}
		if _, err := authority.Decide(t.Context(), r); approval.Refused(err) == nil || !strings.Contains(err.Error(), "it has signer name") {
			t.Errorf("%s: Decide = %v, want a denial", name, err)
		}
		if chain, err := authority.Sign(t.Context(), r); approval.Refused(err) == nil || chain != nil {
			t.Errorf("%s: Sign = %v, want a refusal", name, err)
		}
	}
}

// anyRequest is a check that refuses nothing.
func anyRequest(approval.Request) error { return nil }

// An API server accepts a certificate without extended usages as a client certificate, so admission must check it
// too.
func TestNodeNameLimitsApplyToClientCertificates(t *testing.T) {
	const own, node = "example.com/own", "worker-1"
	const ds, client, server, anyUse = certificates.UsageDigitalSignature, certificates.UsageClientAuth, certificates.UsageServerAuth, certificates.UsageAny
	exists := func(context.Context, string) (string, error) { return "uid", nil }
	authority := func() *signer.Authority {
		return &signer.Authority{Nodes: &admission.Nodes{Node: exists}, Signers: signer.FixedSigners(map[string]signer.Signer{
			own: must.Get(signer.NewSigner(own, signer.Fixed(newCA(t)), signer.ProfileConfig{Usages: []certificates.KeyUsage{ds, client, server, anyUse}}, anyRequest)),
		})}
	}
	for _, test := range []struct {
		name   string
		usages []certificates.KeyUsage
		reason string // empty: signed
	}{
		{"client auth", []certificates.KeyUsage{ds, client}, admission.ReasonNodeExists},
		{"no extended usage", []certificates.KeyUsage{ds}, admission.ReasonNodeExists},
		{"any", []certificates.KeyUsage{anyUse}, admission.ReasonNodeExists},
		{"client auth beside server auth", []certificates.KeyUsage{server, client}, admission.ReasonNodeExists},
		{"server auth alone", []certificates.KeyUsage{ds, server}, ""},
		{"no usages", nil, approval.ReasonValidation},
	} {
		r := nodeRequest(t, "jane", node)
		r.SignerName, r.Usages = own, test.usages
		_, err := authority().Sign(t.Context(), r)
		if test.reason != "" {
			if refused := (*approval.Error)(nil); !errors.As(err, &refused) || refused.Verdict != approval.Deny || refused.Reason != test.reason {
				t.Errorf("%s: %v, want %s", test.name, err, test.reason)
			}
		} else if err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}
