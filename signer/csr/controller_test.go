package csr_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/faults"
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
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
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
		w.poll(fmt.Sprintf("%s%q to be %v", m.name, m.labels, m.want), func() bool { return w.count(m.name, m.labels...) == m.want })
	}
}

func TestApprovesOnlyWithPermission(t *testing.T) {
	w := newWorld(t)
	const name = "kubeadm:node-autoapprove-bootstrap"
	bindings := w.admin.RbacV1().ClusterRoleBindings()
	binding, err := bindings.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := bindings.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	restore := sync.OnceFunc(func() {
		binding.ObjectMeta = metav1.ObjectMeta{Name: name}
		if _, err := bindings.Create(context.Background(), binding, metav1.CreateOptions{}); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(restore)
	w.poll("the permission taken", func() bool { // the authorizer caches permissions
		allowed, err := (&kubefacts.Facts{Client: w.restrict}).Allowed(t.Context(), approvalRequest(), approval.Permission{Verb: "create", Resource: "certificatesigningrequests", Subresource: "nodeclient"})
		return err == nil && !allowed
	})
	w.startController()

	byHand := w.ask(w.bootstrap(), kubelet, "worker-1", nil, nil)
	byItself := w.ask(w.bootstrap(), kubelet, "worker-2", nil, nil)
	w.poll("both left alone", func() bool {
		return w.count("kubejoin_csr_decisions_total", "verdict=none", "reason=NotPermitted") >= 2
	})
	for _, o := range []*certificates.CertificateSigningRequest{byHand, byItself} {
		w.await(o.Name, "no condition", func(o *certificates.CertificateSigningRequest) bool { return len(o.Status.Conditions) == 0 })
	}
	w.approve(byHand.Name)
	w.awaitIssued(byHand.Name)
	restore()
	w.awaitIssued(byItself.Name) // the controller notices the permission although the request does not change
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

	// A later request is done, so the controller has handled these too.
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

func TestFailsHostileRequestsAfterManualApproval(t *testing.T) {
	w := newWorld(t)
	w.startController()
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	empty := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:", Organization: []string{"system:nodes"}}}
	uid := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane", ExtraNames: []pkix.AttributeTypeAndValue{
		{Type: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 2}, Value: "0"},
	}}}
	authority := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane"}, ExtraExtensions: []pkix.Extension{
		{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 3, 1, 1, 0xff}},
	}}
	for _, test := range []struct {
		name string
		ask  *certificates.CertificateSigningRequest
		want string
	}{
		{"empty node name", w.ask(w.bootstrap(), kubelet, "", empty, nil), "empty"},
		{"names of a server", w.ask(w.bootstrap(), kubelet, "worker-1", &x509.CertificateRequest{DNSNames: []string{"kubernetes.default.svc"}}, nil), "DNS"},
		{"weak key", w.ask(w.admin, user, "", &x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane"}}, weak), "1024 bits"},
		{"user ID", w.ask(w.admin, user, "", uid, nil), "UID"},
		{"CA", w.ask(w.admin, user, "", authority, nil), "CA certificate"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if len(test.ask.Status.Conditions) > 0 {
				t.Fatal("got a decision without manual approval")
			}
			w.approve(test.ask.Name) // manual approval without a check
			object := w.await(test.ask.Name, "failure", func(o *certificates.CertificateSigningRequest) bool {
				return condition(o, certificates.CertificateFailed) != nil
			})
			c := condition(object, certificates.CertificateFailed)
			if c.Reason != "SignerValidationFailure" || !strings.Contains(c.Message, test.want) || len(object.Status.Certificate) > 0 {
				t.Errorf("got condition %+v, want %q in it", c, test.want)
			}
			if e := w.awaitEvent(object, "SignerValidationFailure"); !strings.Contains(e.Message, test.want) {
				t.Errorf("got Event message %q", e.Message)
			}
		})
	}
	if got := w.count("kubejoin_csr_sign_failures_total", "reason=SignerValidationFailure"); got != 5 {
		t.Errorf("got %v counted failures, want 5", got)
	}
}

func TestIssuesOnceTheCAIsRepaired(t *testing.T) {
	w := newWorld(t)
	var broken atomic.Bool
	broken.Store(true)
	w.run(csr.Controller{
		Client: w.restrict, Approve: true, Sign: true, Registerer: w.metrics,
		Authority: w.authority(func() (*signer.CA, error) {
			if broken.Load() {
				return nil, errors.New("CA key /etc/x: no such file")
			}
			return w.ca, nil
		}),
	}.Run)
	object := w.ask(w.bootstrap(), kubelet, "worker-1", nil, nil)
	if e := w.awaitEvent(object, "SigningFailed"); !strings.Contains(e.Message, "/etc/x: no such file") || e.Namespace != "default" {
		t.Errorf("Event in %s: got message %q", e.Namespace, e.Message)
	}
	w.poll("retries", func() bool {
		return w.count("kubejoin_csr_sign_failures_total", "signer="+kubelet, "reason=SigningFailed") >= 3
	})
	w.await(object.Name, "approval alone", func(o *certificates.CertificateSigningRequest) bool {
		return condition(o, certificates.CertificateApproved) != nil && condition(o, certificates.CertificateFailed) == nil && len(o.Status.Certificate) == 0
	})
	broken.Store(false)
	w.awaitIssued(object.Name)
	if got := w.count("kubejoin_csr_decisions_total"); got != 1 {
		t.Errorf("got %v decisions, want 1", got)
	}
}

func TestSurvivesLostRequestsAndResponses(t *testing.T) {
	w := newWorld(t)
	connection := faults.Transport{Seed: 1, Rate: 0.4, Kinds: []faults.Kind{faults.Reset, faults.LostAnswer}}
	config, err := w.cluster.Config(w.identity)
	if err != nil {
		t.Fatal(err)
	}
	config.Wrap(connection.Wrap)
	authority := w.authority(signer.Fixed(w.ca))
	w.run(csr.Controller{Client: unlimited(t, config), Authority: authority, Approve: true, Sign: true, Registerer: w.metrics}.Run)
	const n = 30
	w.burst(n)
	w.poll("every certificate counted once", func() bool { return w.count("kubejoin_csr_signed_total") == n })
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

func TestRunRefusesMissingClient(t *testing.T) {
	if err := (csr.Controller{}).Run(t.Context()); err == nil {
		t.Error("controller without a client: got no error")
	}
	if err := (csr.Cleaner{}).Run(t.Context()); err == nil {
		t.Error("cleaner without a client: got no error")
	}
}
