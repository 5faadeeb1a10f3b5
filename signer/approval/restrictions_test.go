package approval_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"testing"

	"github.com/kubejoin/kubejoin/signer/approval"
	certificates "k8s.io/api/certificates/v1"
)

func TestCheckAdmissionRestrictsNodesAndMasters(t *testing.T) {
	const kubelet, serving, other = certificates.KubeAPIServerClientKubeletSignerName, certificates.KubeletServingSignerName, "example.com/etcd-peer"
	nodes := []string{"system:nodes", "system:authenticated"}
	for _, test := range []struct {
		name, signer, user string
		groups             []string
		cn                 string
		organizations      []string
		want               string // reason; empty: no refusal
	}{
		{name: "itself", signer: kubelet, user: "system:node:w", groups: nodes, cn: "system:node:w", organizations: []string{"system:nodes"}},
		{name: "itself, serving", signer: serving, user: "system:node:w", groups: nodes, cn: "system:node:w"},
		{name: "another node", signer: kubelet, user: "system:node:w", groups: nodes, cn: "system:node:v", want: approval.ReasonNodeRestriction},
		{name: "another node, serving", signer: serving, user: "system:node:w", groups: nodes, cn: "system:node:v", want: approval.ReasonNodeRestriction},
		{name: "another node of another signer", signer: other, user: "system:node:w", groups: nodes, cn: "system:node:v", want: approval.ReasonNodeRestriction},
		{name: "no node", signer: kubelet, user: "system:node:w", groups: nodes, cn: "jane", want: approval.ReasonNodeRestriction},
		{name: "other case", signer: kubelet, user: "system:node:w", groups: nodes, cn: "system:node:W", want: approval.ReasonNodeRestriction},
		{name: "a name of another signer", signer: other, user: "system:node:w", groups: nodes, cn: "etcd-w"},
		{name: "user name of a node, not in its group", signer: kubelet, user: "system:node:w", groups: []string{"system:authenticated"}, cn: "system:node:v"},
		{name: "a token", signer: kubelet, user: "system:bootstrap:abcdef", groups: []string{"system:bootstrappers"}, cn: "system:node:v"},
		{name: "masters", signer: kubelet, user: "ada", cn: "ada", organizations: []string{"system:masters"}, want: approval.ReasonSubjectRestriction},
		{name: "masters of another signer", signer: other, user: "ada", cn: "ada", organizations: []string{"a", "system:masters"}, want: approval.ReasonSubjectRestriction},
		{name: "masters for themselves", signer: other, user: "root", groups: []string{"system:masters"}, cn: "root", organizations: []string{"system:masters"}, want: approval.ReasonSubjectRestriction},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := approval.CheckAdmission(approval.Request{
				SignerName: test.signer, User: test.user, Groups: test.groups,
				CSR: &x509.CertificateRequest{Subject: pkix.Name{CommonName: test.cn, Organization: test.organizations}},
			})
			var refused *approval.Error
			if test.want == "" && err != nil || test.want != "" && (!errors.As(err, &refused) || refused.Verdict != approval.Deny || refused.Reason != test.want) {
				t.Errorf("got %v, want reason %q", err, test.want)
			}
		})
	}
	if err := approval.CheckAdmission(approval.Request{}); err == nil {
		t.Error("empty request: got no error")
	}
}
