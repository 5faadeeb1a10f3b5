package signer_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	certificates "k8s.io/api/certificates/v1"
)

func TestNewSignerNeedsCACheckAndProfile(t *testing.T) {
	ca, good := signer.Fixed(newCA(t)), signer.ProfileConfig{Usages: clientUsages}
	for _, test := range []struct {
		ca      func() (*signer.CA, error)
		profile signer.ProfileConfig
		check   func(approval.Request) error
		want    string // part of the error; empty: valid
	}{
		{ca, good, anyRequest, ""},
		{func() (*signer.CA, error) { return nil, errors.New("no such file") }, good, anyRequest, ""}, // the file may come later
		{nil, good, anyRequest, "signer example.com/x has no CA"},
		{signer.Fixed(nil), good, anyRequest, "signer example.com/x: no CA given"},
		{ca, good, nil, "signer example.com/x has no check and would sign any request"},
		{ca, signer.ProfileConfig{}, anyRequest, "signer example.com/x: profile without usages: want at least one"},
	} {
		_, err := signer.NewSigner("example.com/x", test.ca, test.profile, test.check)
		if test.want == "" && err != nil || test.want != "" && (err == nil || err.Error() != test.want) {
			t.Errorf("NewSigner = %v, want %q", err, test.want)
		}
	}
	if _, err := signer.KubernetesSigners(ca, time.Second); err == nil || strings.Count(err.Error(), "default duration of certificates is 1s") != 3 {
		t.Errorf("KubernetesSigners = %v, want an error about each signer", err)
	}
}

func TestExplainReportsForgedSignature(t *testing.T) {
	name := certificates.KubeAPIServerClientKubeletSignerName
	authority := &signer.Authority{Facts: allowsAll{}, Signers: signer.FixedSigners(must.Get(signer.KubernetesSigners(signer.Fixed(newCA(t)), time.Hour)))}
	r := kubernetesRequest(t, name, nil)
	forged := *r.CSR
	forged.RawTBSCertificateRequest = kubernetesRequest(t, name, nil).CSR.RawTBSCertificateRequest
	r.CSR = &forged
	steps := authority.Explain(t.Context(), r).Steps
	if last := steps[len(steps)-1]; last.Rule != "signer" || last.Verdict != approval.Deny || !strings.Contains(last.Message, "not signed by its own key") {
		t.Errorf("the last step is %+v, want the signer to deny", last)
	}
}

func TestIssueRefusesRequestWithoutUsages(t *testing.T) {
	template := signer.Template{CSR: kubernetesRequest(t, certificates.KubeAPIServerClientKubeletSignerName, nil).CSR}
	if _, err := must.Get(signer.NewProfile(signer.ProfileConfig{Usages: clientUsages})).Issue(newCA(t), template, time.Now()); approval.Refused(err) == nil {
		t.Errorf("Issue = %v, want a refusal", err)
	}
}

func TestIsNodeNeedsUserNameAndGroup(t *testing.T) {
	for _, test := range []struct {
		user   string
		groups []string
		want   bool
	}{
		{"system:node:worker-1", []string{"system:authenticated", "system:nodes"}, true},
		{"system:node:worker-1", []string{"system:authenticated"}, false},
		{"system:node:worker-1", nil, false},
		{"jane", []string{"system:nodes"}, false},
	} {
		if got := approval.IsNode(test.user, test.groups); got != test.want {
			t.Errorf("IsNode(%q, %q) = %t, want %t", test.user, test.groups, got, test.want)
		}
	}
}

func TestKnownUsageExcludesUsagesOfCAs(t *testing.T) {
	for usage, want := range map[certificates.KeyUsage]bool{
		certificates.UsageDigitalSignature: true, certificates.UsageClientAuth: true,
		certificates.UsageCertSign: false, certificates.UsageCRLSign: false, "flying": false, "": false,
	} {
		if got := approval.KnownUsage(usage); got != want {
			t.Errorf("KnownUsage(%q) = %t, want %t", usage, got, want)
		}
	}
}

func TestStandaloneAllowsOnlyPermissionsOfKubeadm(t *testing.T) {
	r := kubernetesRequest(t, certificates.KubeAPIServerClientKubeletSignerName, nil)
	r.User, r.Groups = "system:bootstrap:abcdef", []string{"system:bootstrappers"}
	for what, p := range map[string]approval.Permission{
		"another resource": {Verb: "create", Resource: "nodes", Subresource: "nodeclient"},
		"one object":       {Verb: "create", Resource: "certificatesigningrequests", Subresource: "nodeclient", Name: "csr-x"},
		"another verb":     {Verb: "update", Resource: "certificatesigningrequests", Subresource: "nodeclient"},
	} {
		if allowed, err := (signer.Standalone{}).Allowed(t.Context(), r, p); allowed || err != nil {
			t.Errorf("%s: Allowed = %t, %v, want false", what, allowed, err)
		}
	}
}

// A claim of a node name that looks like an IP address does not show which machine has that address.
func TestStandaloneReportersIgnoreAddresses(t *testing.T) {
	claims := memdb.Open().Claims()
	must.Value(storetest.CreateClaim(t.Context(), claims, tokens.Claim{Node: "10.0.0.5", TokenID: "abc123"}))(t)
	facts := signer.Standalone{Claims: claims}
	if reporters, err := facts.Reporters(t.Context(), "worker-1", []string{"10.0.0.5"}); err != nil || len(reporters) > 0 {
		t.Errorf("Reporters = %q, %v, want none", reporters, err)
	}
}
