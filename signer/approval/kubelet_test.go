package approval_test

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/signer/approval"
	certificates "k8s.io/api/certificates/v1"
)

// facts answers access reviews from a map and records the reviewed subresources.
type facts struct {
	approval.Facts // the rules use no other facts

	allowed map[string]bool
	err     map[string]error
	asked   []string
}

func (f *facts) Allowed(_ context.Context, _ approval.Request, p approval.Permission) (bool, error) {
	f.asked = append(f.asked, p.Subresource)
	return f.allowed[p.Subresource], f.err[p.Subresource]
}

func kubeletRequest(user string, change func(*approval.Request)) approval.Request {
	r := approval.Request{
		Name:       "csr-x",
		SignerName: certificates.KubeAPIServerClientKubeletSignerName,
		User:       user,
		Usages:     []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
		CSR: &x509.CertificateRequest{Subject: pkix.Name{
			CommonName:   "system:node:worker-1",
			Organization: []string{"system:nodes"},
		}},
	}
	if change != nil {
		change(&r)
	}
	return r
}

const (
	bootstrap = "system:bootstrap:abc123"
	node      = "system:node:worker-1"
)

func TestKubeletRulesDecideOnPermission(t *testing.T) {
	both := map[string]bool{"selfnodeclient": true, "nodeclient": true}
	down := errors.New("connection refused")
	for _, test := range []struct {
		name    string
		request approval.Request
		facts   facts
		verdict approval.Verdict
		reason  string
		rule    string
		asked   []string
	}{
		{
			name: "first certificate", request: kubeletRequest(bootstrap, nil), facts: facts{allowed: both},
			verdict: approval.Approve, reason: "AutoApproved", rule: "nodeclient", asked: []string{"nodeclient"},
		},
		{
			name: "renewal", request: kubeletRequest(node, nil), facts: facts{allowed: both},
			verdict: approval.Approve, reason: "AutoApproved", rule: "selfnodeclient", asked: []string{"selfnodeclient"},
		},
		{
			name: "renewal by the broader permission", request: kubeletRequest(node, nil), facts: facts{allowed: map[string]bool{"nodeclient": true}},
			verdict: approval.Approve, reason: "AutoApproved", rule: "nodeclient", asked: []string{"selfnodeclient", "nodeclient"},
		},
		{
			name: "another node's name", request: kubeletRequest("system:node:worker-2", nil), facts: facts{allowed: map[string]bool{"selfnodeclient": true}},
			verdict: approval.None, reason: "NotPermitted", rule: "nodeclient", asked: []string{"nodeclient"},
		},
		{
			name: "no permission", request: kubeletRequest(bootstrap, nil),
			verdict: approval.None, reason: "NotPermitted", rule: "nodeclient", asked: []string{"nodeclient"},
		},
		{
			name: "renewal without permission", request: kubeletRequest(node, nil),
			verdict: approval.None, reason: "NotPermitted", rule: "selfnodeclient", asked: []string{"selfnodeclient", "nodeclient"},
		},
		{
			name: "review fails", request: kubeletRequest(bootstrap, nil), facts: facts{allowed: both, err: map[string]error{"nodeclient": down}},
			verdict: approval.Wait, reason: "FactsUnavailable", rule: "nodeclient", asked: []string{"nodeclient"},
		},
		{
			name: "an earlier rule that cannot judge is not overruled", request: kubeletRequest(node, nil), facts: facts{allowed: both, err: map[string]error{"selfnodeclient": down}},
			verdict: approval.Wait, reason: "FactsUnavailable", rule: "selfnodeclient", asked: []string{"selfnodeclient"},
		},
		{
			name:    "another signer",
			request: kubeletRequest(bootstrap, func(r *approval.Request) { r.SignerName = certificates.KubeAPIServerClientSignerName }),
			facts:   facts{allowed: both}, reason: "NotRecognized",
		},
		{
			name: "no request inside", request: kubeletRequest("", func(r *approval.Request) { r.CSR = nil }),
			facts: facts{allowed: both}, reason: "NotRecognized",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			d, err := approval.Decide(t.Context(), approval.Kubelet(), test.request, &test.facts)
			if (err != nil) != (test.verdict == approval.Wait) {
				t.Errorf("got error %v with verdict %v", err, d.Verdict)
			}
			if err != nil && !errors.Is(err, down) {
				t.Errorf("got error %v, want it to wrap %v", err, down)
			}
			if d.Verdict != test.verdict || d.Reason != test.reason || d.Rule != test.rule {
				t.Errorf("got decision %+v, want %v, %s by rule %q", d, test.verdict, test.reason, test.rule)
			}
			if d.Message == "" {
				t.Error("got no message")
			}
			if !slices.Equal(test.facts.asked, test.asked) {
				t.Errorf("got access reviews for %q, want %q", test.facts.asked, test.asked)
			}
		})
	}
}

func TestDecideWithoutRulesOrFacts(t *testing.T) {
	d, err := approval.Decide(t.Context(), nil, kubeletRequest(bootstrap, nil), nil)
	if d.Verdict != approval.None || err != nil {
		t.Errorf("no rules: got %+v, %v", d, err)
	}
	d, err = approval.Decide(t.Context(), approval.Kubelet(), kubeletRequest(bootstrap, nil), nil)
	if d.Verdict != approval.Wait || err == nil {
		t.Errorf("no facts: got %+v, %v, want verdict wait and an error", d, err)
	}
}

func TestCheckKubeletClientRefusesOtherRequests(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*approval.Request)
		want   string // part of the error; empty: no error
	}{
		{name: "as a kubelet asks"},
		{name: "with key encipherment", change: func(r *approval.Request) { r.Usages = append(r.Usages, certificates.UsageKeyEncipherment) }},
		{name: "usages in another order", change: func(r *approval.Request) { slices.Reverse(r.Usages) }},
		{name: "empty node name", change: func(r *approval.Request) { r.CSR.Subject.CommonName = "system:node:" }, want: "empty"},
		{name: "no node", change: func(r *approval.Request) { r.CSR.Subject.CommonName = "worker-1" }, want: "want system:node:NAME"},
		{name: "no common name", change: func(r *approval.Request) { r.CSR.Subject.CommonName = "" }, want: "want system:node:NAME"},
		{name: "prefix in another case", change: func(r *approval.Request) { r.CSR.Subject.CommonName = "System:Node:worker-1" }, want: "want system:node:NAME"},
		{name: "no organization", change: func(r *approval.Request) { r.CSR.Subject.Organization = nil }, want: "organization"},
		{name: "masters", change: func(r *approval.Request) { r.CSR.Subject.Organization = []string{"system:masters"} }, want: "organization"},
		{name: "masters beside", change: func(r *approval.Request) { r.CSR.Subject.Organization = []string{"system:nodes", "system:masters"} }, want: "organization"},
		{name: "organization twice", change: func(r *approval.Request) { r.CSR.Subject.Organization = []string{"system:nodes", "system:nodes"} }, want: "organization"},
		{name: "DNS name", change: func(r *approval.Request) { r.CSR.DNSNames = []string{"kubernetes"} }, want: "DNS"},
		{name: "address", change: func(r *approval.Request) { r.CSR.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1)} }, want: "IP"},
		{name: "email", change: func(r *approval.Request) { r.CSR.EmailAddresses = []string{"a@b"} }, want: "email"},
		{name: "URI", change: func(r *approval.Request) { r.CSR.URIs = []*url.URL{{Scheme: "spiffe", Host: "x"}} }, want: "URI"},
		{name: "server auth beside", change: func(r *approval.Request) { r.Usages = append(r.Usages, certificates.UsageServerAuth) }, want: "usages"},
		{name: "cert sign beside", change: func(r *approval.Request) { r.Usages = append(r.Usages, certificates.UsageCertSign) }, want: "usages"},
		{name: "no usages", change: func(r *approval.Request) { r.Usages = nil }, want: "usages"},
		{name: "no client auth", change: func(r *approval.Request) { r.Usages = r.Usages[:1] }, want: "usages"},
		{name: "another signer", change: func(r *approval.Request) { r.SignerName = "example.com/x" }, want: "signer name"},
		{name: "no request", change: func(r *approval.Request) { r.CSR = nil }, want: "no certificate request"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := approval.CheckKubeletClient(kubeletRequest(bootstrap, test.change))
			if test.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want one with %q", err, test.want)
			}
		})
	}
}
