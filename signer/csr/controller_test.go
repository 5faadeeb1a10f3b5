package csr_test

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/faults"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/kubejoin/kubejoin/signer/kubefacts"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

func TestFirstCertificateAndRenewal(t *testing.T) {
	w := newWorld(t)
	w.startController()
	key := csrtest.NewKey()
	asked := w.ask(w.bootstrap(), kubelet, "worker-1", nil, key)
	cert := w.awaitIssued(asked.Name)
	object := w.await(asked.Name, "approval", func(o *certificates.CertificateSigningRequest) bool {
		return condition(o, certificates.CertificateApproved) != nil
	})
	if c := condition(object, certificates.CertificateApproved); c.Reason != "AutoApproved" || c.Message != "Auto approving kubelet client certificate after SubjectAccessReview." {
		t.Errorf("got condition %+v", c)
	}
	if got := cert.NotAfter.Sub(cert.NotBefore); got != 24*time.Hour {
		t.Errorf("got lifetime %s, want 24h", got)
	}
	if got := writer(object); got != csr.FieldManager {
		t.Errorf("got field manager %q of the certificate, want that of kubejoin", got)
	}

	// The node renews with its first certificate.
	keyDER := must.Value(x509.MarshalPKCS8PrivateKey(key))(t)
	admin := w.cluster.AdminConfig()
	node := unlimited(t, &rest.Config{Host: admin.Host, TLSClientConfig: rest.TLSClientConfig{
		CAData: admin.CAData, CertData: object.Status.Certificate, KeyData: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
	}})
	renewal := w.ask(node, kubelet, "worker-1", nil, nil)
	w.awaitIssued(renewal.Name)
	renewal = w.await(renewal.Name, "approval", func(o *certificates.CertificateSigningRequest) bool {
		return condition(o, certificates.CertificateApproved) != nil
	})
	if c := condition(renewal, certificates.CertificateApproved); c.Message != "Auto approving self kubelet client certificate after SubjectAccessReview." {
		t.Errorf("got condition %+v", c)
	}

	for _, m := range []struct {
		name   string
		labels []string
		want   float64
	}{
		{"kubejoin_csr_decisions_total", []string{"signer=" + kubelet, "verdict=approve", "reason=AutoApproved"}, 2},
		{"kubejoin_csr_signed_total", []string{"signer=" + kubelet}, 2},
		{"kubejoin_csr_issue_seconds", []string{"signer=" + kubelet}, 2},
		{"kubejoin_csr_sign_failures_total", nil, 0},
		{"kubejoin_csr_signed_by_other_total", nil, 0},
	} {
		// The controller counts a certificate after the API server has it.
		wait.Until(w, fmt.Sprintf("%s%q to be %v", m.name, m.labels, m.want), func() bool { return w.count(m.name, m.labels...) == m.want })
	}
}

func TestApprovesOnlyWithPermission(t *testing.T) {
	w := newWorld(t)
	const name = "kubeadm:node-autoapprove-bootstrap"
	bindings := w.admin.RbacV1().ClusterRoleBindings()
	binding := must.Value(bindings.Get(t.Context(), name, metav1.GetOptions{}))(t)
	must.OK(t, bindings.Delete(t.Context(), name, metav1.DeleteOptions{}))
	restore := sync.OnceFunc(func() {
		binding.ObjectMeta = metav1.ObjectMeta{Name: name}
		if _, err := bindings.Create(context.Background(), binding, metav1.CreateOptions{}); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(restore)
	wait.Until(w, "the permission taken", func() bool { // the authorizer caches permissions
		allowed, err := (&kubefacts.Facts{Client: w.restrict}).Allowed(t.Context(), approvalRequest(), approval.Permission{Verb: "create", Resource: "certificatesigningrequests", Subresource: "nodeclient"})
		return err == nil && !allowed
	})
	w.startController()

	byHand := w.ask(w.bootstrap(), kubelet, "worker-1", nil, nil)
	byItself := w.ask(w.bootstrap(), kubelet, "worker-2", nil, nil)
	wait.Until(w, "both left alone", func() bool {
		return w.count("kubejoin_csr_decisions_total", "verdict=none", "reason=NotPermitted") >= 2
	})
	for _, o := range []*certificates.CertificateSigningRequest{byHand, byItself} {
		w.await(o.Name, "no condition", func(o *certificates.CertificateSigningRequest) bool { return len(o.Status.Conditions) == 0 })
	}
	w.approve(byHand.Name)
	w.awaitIssued(byHand.Name)
	restore()
	w.awaitIssued(byItself.Name) // the controller uses the new permission although the request does not change
}

func TestOtherSignersNeedManualApproval(t *testing.T) {
	w := newWorld(t)
	w.startController()
	node := w.as("system:node:worker-1", "system:nodes")
	server := w.ask(node, serving, "worker-1", &x509.CertificateRequest{
		DNSNames: []string{"worker-1"}, IPAddresses: []net.IP{net.IPv4(192, 0, 2, 1)},
	}, nil)
	person := w.ask(w.admin, user, "", &x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane", Organization: []string{"dev"}}}, nil)
	other := w.ask(w.admin, "example.com/other", "", &x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane"}}, nil)
	denied := w.ask(w.bootstrap(), serving, "worker-2", &x509.CertificateRequest{DNSNames: []string{"worker-2"}}, nil)
	w.decide(denied.Name, certificates.CertificateDenied)
	w.approve(other.Name)

	// A later request has its certificate, so the controller has also handled these requests.
	w.awaitIssued(w.ask(w.bootstrap(), kubelet, "worker-1", nil, nil).Name)
	for _, o := range []*certificates.CertificateSigningRequest{server, person} {
		if o = w.await(o.Name, "object", func(*certificates.CertificateSigningRequest) bool { return true }); len(o.Status.Conditions) > 0 || len(o.Status.Certificate) > 0 {
			t.Errorf("%s: got a decision, want none without manual approval", o.Spec.SignerName)
		}
	}
	w.approve(server.Name)
	w.approve(person.Name)
	if cert := w.awaitIssued(server.Name); !slices.Equal(cert.DNSNames, []string{"worker-1"}) || len(cert.IPAddresses) != 1 {
		t.Errorf("got names %q and addresses %q", cert.DNSNames, cert.IPAddresses)
	}
	if cert := w.awaitIssued(person.Name); cert.Subject.String() != "CN=jane,O=dev" {
		t.Errorf("got subject %s", cert.Subject)
	}
	for _, o := range []*certificates.CertificateSigningRequest{other, denied} {
		if o = w.await(o.Name, "object", func(*certificates.CertificateSigningRequest) bool { return true }); len(o.Status.Certificate) > 0 {
			t.Errorf("%s: got a certificate, want none", o.Name)
		}
	}
}

func TestSurvivesLostRequestsAndResponses(t *testing.T) {
	w := newWorld(t)
	connection := faults.Transport{Seed: 1, Rate: 0.4, Kinds: []faults.Kind{faults.Reset, faults.LostAnswer}}
	config := must.Value(w.cluster.Config(w.identity))(t)
	config.Wrap(connection.Wrap)
	authority := w.authority(signer.Fixed(w.ca))
	w.run(csr.Controller{Client: unlimited(t, config), Authority: authority, Approve: true, Sign: true, Registerer: w.metrics}.Run)
	const n = 30
	w.burst(n)
	wait.Until(w, "every certificate counted once", func() bool { return w.count("kubejoin_csr_signed_total") == n })
	if len(connection.Failed()) < 2 || w.count("kubejoin_csr_sign_failures_total", "reason=WriteFailed") == 0 {
		t.Error("the transport lost no call, so this test checks nothing")
	}
	if got := w.count("kubejoin_csr_signed_by_other_total"); got != 0 {
		t.Errorf("got %v certificates reported as those of another signer, want 0", got)
	}
}

// Approver and signer may run in two programs with separate permissions.
func TestApproverAndSignerInTwoPrograms(t *testing.T) {
	w := newWorld(t)
	informer := csr.NewInformer(w.restrict)
	w.run(func(ctx context.Context) error { informer.RunWithContext(ctx); return nil })
	w.run(csr.Controller{Client: w.restrict, Informer: informer, Authority: w.authority(signer.Fixed(w.ca)), Approve: true, Registerer: w.metrics}.Run)
	first := w.ask(w.bootstrap(), kubelet, "worker-1", nil, nil)
	w.await(first.Name, "approval", func(o *certificates.CertificateSigningRequest) bool {
		return condition(o, certificates.CertificateApproved) != nil
	})
	w.run(csr.Controller{Client: w.restrict, Informer: informer, Authority: w.authority(signer.Fixed(w.ca)), Sign: true, Registerer: w.metrics}.Run)
	w.awaitIssued(first.Name)
	w.awaitIssued(w.ask(w.bootstrap(), kubelet, "worker-2", nil, nil).Name)
	if got := w.count("kubejoin_csr_signed_by_other_total"); got != 0 {
		t.Errorf("got %v certificates reported as those of another signer, want 0", got)
	}
}
