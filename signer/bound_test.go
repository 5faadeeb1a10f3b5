package signer_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

// The reason in the record shows whether Sign used the admission: Sign asks Nodes again if not, and
// Nodes refuses then.
func TestAdmissionExpiresAfterOneSecond(t *testing.T) {
	const kubelet, apiClient = certificates.KubeAPIServerClientKubeletSignerName, certificates.KubeAPIServerClientSignerName
	request := kubernetesRequest(t, kubelet, nil)
	request.UID, request.Groups, request.Created = "csr-1", []string{"system:bootstrappers", "a"}, time.Now()
	for _, test := range []struct {
		name   string
		change func(*approval.Request)
		holds  bool
	}{
		{name: "the same request", change: func(*approval.Request) {}, holds: true},
		{name: "the same request, approved", change: func(r *approval.Request) { r.Approver = "kubejoin" }, holds: true},
		{name: "user", change: func(r *approval.Request) { r.User = "mallory" }},
		{name: "CSR", change: func(r *approval.Request) { r.CSR = kubernetesRequest(t, kubelet, nil).CSR }},
		{name: "signer", change: func(r *approval.Request) { r.SignerName = apiClient }},
		{name: "group added", change: func(r *approval.Request) { r.Groups = append(slices.Clone(r.Groups), "system:nodes") }},
		{name: "group changed in place", change: func(r *approval.Request) { r.Groups[1] = "system:nodes" }},
		{name: "no groups", change: func(r *approval.Request) { r.Groups = nil }},
		{name: "usage added", change: func(r *approval.Request) {
			r.Usages = append(slices.Clone(r.Usages), certificates.UsageKeyEncipherment)
		}},
		{name: "usages changed in place", change: func(r *approval.Request) { slices.Reverse(r.Usages) }},
		{name: "another CSR object", change: func(r *approval.Request) { r.UID = "csr-2" }},
		{name: "created at another time", change: func(r *approval.Request) { r.Created = r.Created.Add(-time.Minute) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			taken := false
			authority := &signer.Authority{
				Facts:   allowsAll{},
				Signers: signer.FixedSigners(signer.KubernetesSigners(signer.Fixed(newCA(t)), time.Hour)),
				Nodes: &admission.Nodes{Node: func(context.Context, string) (string, error) {
					if taken {
						return "uid", nil
					}
					return "", tokens.ErrNotFound
				}},
			}
			r := request
			r.Groups, r.Usages = slices.Clone(r.Groups), slices.Clone(r.Usages)
			_, decided, err := authority.Decide(t.Context(), r)
			if err != nil || decided == nil {
				t.Fatal(decided, err)
			}
			taken = true
			test.change(&r)
			_, err = authority.Sign(t.Context(), r, decided)
			if test.holds {
				if err != nil {
					t.Errorf("Sign did not use the admission: %v", err)
				}
				return
			}
			var refused *approval.Refused
			if !errors.As(err, &refused) || refused.Reason != admission.ReasonNodeExists {
				t.Errorf("Sign used the admission of another request: %v, want %s", err, admission.ReasonNodeExists)
			}
		})
	}
}

// An API server takes a certificate without extended usages from a client, so the limits on node
// names apply to it.
func TestNodeNameLimitsApplyToClientCertificates(t *testing.T) {
	const own, node = "example.com/own", "worker-1"
	const ds, client, server, anyUse = certificates.UsageDigitalSignature, certificates.UsageClientAuth, certificates.UsageServerAuth, certificates.UsageAny
	exists := func(context.Context, string) (string, error) { return "uid", nil }
	authority := func() *signer.Authority {
		return &signer.Authority{Nodes: &admission.Nodes{Node: exists}, Signers: signer.FixedSigners(map[string]signer.Signer{own: {
			CA:      signer.Fixed(newCA(t)),
			Profile: signer.Profile{Usages: []certificates.KeyUsage{ds, client, server, anyUse}},
			Check:   func(approval.Request) error { return nil },
		}})}
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
		_, err := authority().Sign(t.Context(), r, nil)
		if test.reason != "" {
			if refused := (*approval.Refused)(nil); !errors.As(err, &refused) || refused.Reason != test.reason {
				t.Errorf("%s: %v, want %s", test.name, err, test.reason)
			}
		} else if err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}
