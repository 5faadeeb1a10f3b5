package approval_test

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/approval"
)

func TestRulesByName(t *testing.T) {
	names := []string{"may-sign", "kubelet-serving", "nodeclient", "selfnodeclient"}
	rules := must.Value(approval.Rules(names, scope))(t)
	var got []string
	for _, rule := range rules {
		got = append(got, rule.Name())
		if serving := must.Get(approval.NewKubeletServing(scope)); rule.Name() == serving.Name() && !reflect.DeepEqual(rule, serving) {
			t.Errorf("got %+v, want the scope of %+v", rule, serving)
		}
	}
	if !slices.Equal(got, names) {
		t.Errorf("got rules %q, want %q", got, names)
	}
	slices.Sort(names)
	if known := slices.Sorted(slices.Values(approval.RuleNames())); !slices.Equal(known, names) {
		t.Errorf("got known rules %q, want %q", known, names)
	}
	if rules, err := approval.Rules(nil, approval.ServingScope{}); err != nil || len(rules) != 0 {
		t.Errorf("no names: got %v, %v", rules, err)
	}
	for _, test := range []struct {
		names []string
		scope approval.ServingScope
		want  string
	}{
		{names: []string{"nodeclients"}, want: "want one of selfnodeclient, nodeclient, kubelet-serving, may-sign"},
		{names: []string{""}, want: "want one of"},
		{names: []string{"nodeclient", "nodeclient"}, want: "twice"},
		{names: []string{"nodeclient"}, scope: approval.ServingScope{DNSSuffixes: []string{"."}}, want: "every name"},
		{names: []string{"nodeclient"}, scope: approval.ServingScope{ControlPlane: []string{"A*"}}, want: "pattern"},
	} {
		if rules, err := approval.Rules(test.names, test.scope); err == nil || !strings.Contains(err.Error(), test.want) || rules != nil {
			t.Errorf("%q: got %v, %v, want an error with %q", test.names, rules, err, test.want)
		}
	}
}

// signers answers access reviews from a list of signers that the requester may use.
type signers struct {
	approval.Facts

	may   []string
	err   error
	asked []approval.Permission
}

func (s *signers) Allowed(_ context.Context, _ approval.Request, p approval.Permission) (bool, error) {
	s.asked = append(s.asked, p)
	return slices.Contains(s.may, p.Name), s.err
}

// Names that Kubernetes reserves also require the permission to approve.
func TestMaySignNeedsApprovePermissionForReservedNames(t *testing.T) {
	const name = "example.com/users"
	for _, test := range []struct {
		subject pkix.Name
		may     map[string]bool
		verdict approval.Verdict
	}{
		{pkix.Name{CommonName: "jane"}, map[string]bool{"sign": true}, approval.Approve},
		{pkix.Name{CommonName: "jane", Organization: []string{"kubeadm:cluster-admins"}}, map[string]bool{"sign": true}, approval.None},
		{pkix.Name{CommonName: "jane", Organization: []string{"kubeadm:cluster-admins"}}, map[string]bool{"approve": true}, approval.None},
		{pkix.Name{CommonName: "jane", Organization: []string{"kubeadm:cluster-admins"}}, map[string]bool{"sign": true, "approve": true}, approval.Approve},
	} {
		r := kubeletRequest("jane", func(r *approval.Request) { r.SignerName, r.CSR = name, &x509.CertificateRequest{Subject: test.subject} })
		if d, err := approval.Decide(t.Context(), []approval.Rule{approval.MaySign{}}, r, &verbs{may: test.may}); err != nil || d.Verdict != test.verdict {
			t.Errorf("%s with permissions %v: got %+v, %v", test.subject, test.may, d, err)
		}
	}
}

// verbs allows verbs on any object.
type verbs struct {
	approval.Facts
	may map[string]bool
}

func (v *verbs) Allowed(_ context.Context, _ approval.Request, p approval.Permission) (bool, error) {
	return v.may[p.Verb], nil
}

func TestMaySignNeedsSignPermission(t *testing.T) {
	const name = "example.com/etcd-peer"
	request := kubeletRequest("jane", func(r *approval.Request) { r.SignerName = name })
	down := errors.New("connection refused")
	for _, test := range []struct {
		name    string
		request approval.Request
		facts   signers
		verdict approval.Verdict
		reason  string
		asked   int
	}{
		{"the signer", request, signers{may: []string{name}}, approval.Approve, approval.ReasonAutoApproved, 1},
		{"its domain", request, signers{may: []string{"example.com/*"}}, approval.Approve, approval.ReasonAutoApproved, 2},
		{"another signer", request, signers{may: []string{"example.com/etcd", "*", "example.com"}}, approval.None, approval.ReasonNotPermitted, 2},
		{"no facts", request, signers{may: []string{name}, err: down}, approval.Wait, approval.ReasonFactsUnavailable, 1},
		{"no domain", kubeletRequest("jane", func(r *approval.Request) { r.SignerName = "x" }), signers{may: []string{"x", "x/*"}}, approval.None, approval.ReasonNotRecognized, 0},
		{"no request", kubeletRequest("jane", func(r *approval.Request) { r.SignerName, r.CSR = name, nil }), signers{may: []string{name}}, approval.None, approval.ReasonNotRecognized, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			d, err := approval.Decide(t.Context(), []approval.Rule{approval.MaySign{}}, test.request, &test.facts)
			if (err != nil) != (test.verdict == approval.Wait) {
				t.Error(err)
			}
			if d.Verdict != test.verdict || d.Reason != test.reason || d.Message == "" {
				t.Errorf("got %+v, want %v, %s", d, test.verdict, test.reason)
			}
			if len(test.facts.asked) != test.asked {
				t.Errorf("got access reviews %v, want %d", test.facts.asked, test.asked)
			}
			for _, p := range test.facts.asked {
				if p.Verb != "sign" || p.Resource != "signers" || p.Subresource != "" {
					t.Errorf("got access review %v, want verb sign of signers", p)
				}
			}
		})
	}
}
