package server_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	certificates "k8s.io/api/certificates/v1"
)

// Names that Kubernetes and kubeadm reserve also need the permission to approve. Catches a caller that may only sign
// for kube-apiserver-client and makes itself a cluster admin.
func TestReservedNamesNeedPermissionToApprove(t *testing.T) {
	s, kept := certifying(t)
	may := map[string]bool{"sign": true}
	s.Callers.Authorize = func(_ *http.Request, _ auth.User, a auth.Access) error {
		if may[a.Verb] && a.Resource == "signers" && a.Group == certificates.GroupName && a.Name == certificates.KubeAPIServerClientSignerName {
			return nil
		}
		return fmt.Errorf("%w: not %s", auth.ErrForbidden, a)
	}
	s.start(t)
	ask := func(subject pkix.Name) error {
		_, err := s.by(viewerBearer).Certificate(t.Context(), api.SignCertificate{CSR: []byte(csr(t, x509.CertificateRequest{Subject: subject}, nil)), Signer: certificates.KubeAPIServerClientSignerName})
		return err
	}
	free := []pkix.Name{{CommonName: "jane", Organization: []string{"dev"}}, {CommonName: "system"}, {CommonName: "system:node:w", Organization: []string{"system:nodes"}}}
	reserved := []pkix.Name{
		{CommonName: "jane", Organization: []string{"kubeadm:cluster-admins"}},
		{CommonName: "jane", Organization: []string{"dev", "system:cluster-admins"}},
		{CommonName: "system:kube-controller-manager"},
		{CommonName: "system:serviceaccount:kube-system:clusterrole-aggregation-controller"},
		{CommonName: "system:node:w"},
	}
	for _, subject := range free {
		if err := ask(subject); err != nil {
			t.Errorf("%s: %v", subject, err)
		}
	}
	for _, subject := range reserved {
		p := wantProblem(t, ask(subject), 403, "forbidden", "")
		if !strings.Contains(p.Detail, "may not approve signers.certificates.k8s.io kubernetes.io/kube-apiserver-client") || !strings.Contains(kept.last().Message, "approve") {
			t.Errorf("%s: %q, recorded %+v", subject, p.Detail, kept.last())
		}
	}
	const token = "8w4usg.qwertzuiopasdfgh" // part of a name that the problem shortens
	for n := range 100 {
		p := wantProblem(t, ask(pkix.Name{CommonName: "system:" + strings.Repeat("-", n) + token}), 403, "forbidden", "")
		if strings.Contains(p.Detail+kept.last().Message, "8w4usg.q") {
			t.Errorf("after %d: %q, recorded %q", n, p.Detail, kept.last().Message)
		}
	}
	may["approve"] = true
	for _, subject := range reserved {
		if err := ask(subject); err != nil {
			t.Errorf("%s with permission to approve: %v", subject, err)
		}
	}
	may["sign"] = false
	wantProblem(t, ask(free[0]), 403, "forbidden", "")
}

// The one signer of group system:masters needs the permission to approve, too. Each other signer refuses the group.
func TestSuperAdminNeedsPermissionToApprove(t *testing.T) {
	s, _ := certifying(t)
	all := s.Certificates.Authority.Signers()
	all[approval.SuperAdminSigner] = must.Get(signer.NewSigner(approval.SuperAdminSigner, signer.Fixed(s.ca), all[peerSigner].Profile(), func(approval.Request) error { return nil }))
	s.Certificates.Authority.Signers = signer.FixedSigners(all)
	may := map[string]bool{"sign": true}
	s.Callers.Authorize = func(_ *http.Request, _ auth.User, a auth.Access) error {
		if may[a.Verb] {
			return nil
		}
		return fmt.Errorf("%w: not %s", auth.ErrForbidden, a)
	}
	s.start(t)
	ask := func(signer, name string) error {
		subject := pkix.Name{CommonName: name, Organization: []string{"system:masters"}}
		_, err := s.by(viewerBearer).Certificate(t.Context(), api.SignCertificate{CSR: []byte(csr(t, x509.CertificateRequest{Subject: subject}, nil)), Signer: signer})
		return err
	}
	wantProblem(t, ask(approval.SuperAdminSigner, approval.SuperAdmin), 403, "forbidden", "")
	may["approve"] = true
	if err := ask(approval.SuperAdminSigner, approval.SuperAdmin); err != nil {
		t.Errorf("with both permissions: %v", err)
	}
	wantProblem(t, ask(approval.SuperAdminSigner, "jane"), 403, api.ProblemCertificateRefused, approval.ReasonSubjectRestriction)
	wantProblem(t, ask(peerSigner, approval.SuperAdmin), 403, api.ProblemCertificateRefused, approval.ReasonSubjectRestriction)
}
