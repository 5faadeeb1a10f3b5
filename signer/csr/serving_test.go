package csr_test

import (
	"context"
	"crypto/x509"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/kubejoin/kubejoin/signer/kubefacts"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// createNode creates or updates a Node that reports addresses. The Node is deleted after the test.
func (w *world) createNode(name string, addresses ...string) {
	w.Helper()
	nodes := w.admin.CoreV1().Nodes()
	node, err := nodes.Create(w.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		node, err = nodes.Get(w.Context(), name, metav1.GetOptions{})
	} else {
		w.Cleanup(func() { _ = nodes.Delete(context.Background(), name, metav1.DeleteOptions{}) })
	}
	if err != nil {
		w.Fatal(err)
	}
	node.Status.Addresses = nil
	for i, address := range addresses {
		kind := corev1.NodeInternalIP
		if net.ParseIP(address) == nil {
			kind = []corev1.NodeAddressType{corev1.NodeHostName, corev1.NodeInternalDNS, corev1.NodeExternalDNS}[i%3]
		}
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: kind, Address: address})
	}
	if _, err := nodes.UpdateStatus(w.Context(), node, metav1.UpdateOptions{}); err != nil {
		w.Fatal(err)
	}
}

// waitForPermissions waits until the API server knows the permissions of the controller.
func (w *world) waitForPermissions() {
	w.Helper()
	wait.Until(w, "the controller's rights", func() bool {
		_, err := w.restrict.NetworkingV1().ServiceCIDRs().List(w.Context(), metav1.ListOptions{})
		if err != nil && !apierrors.IsForbidden(err) {
			w.Fatal(err)
		}
		return err == nil
	})
}

// The rule for serving certificates works with real Nodes and CSR objects.
func TestApprovesServingCertificatesOnEvidence(t *testing.T) {
	w := newWorld(t)
	w.createNode("serving-1", "198.51.100.1", "serving-1")
	w.createNode("serving-2", "198.51.100.2", "serving-2")
	nodes := kubefacts.OpenNodes(t.Context(), w.restrict)
	facts := &kubefacts.Facts{Client: w.restrict, Nodes: nodes, APIServers: func(context.Context) ([]string, error) { return []string{"198.51.100.10"}, nil }}
	rule := must.Get(approval.NewKubeletServing(approval.ServingScope{CIDRs: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("10.0.0.0/8")}}))
	signers := must.Get(signer.KubernetesSigners(signer.Fixed(w.ca), time.Hour))
	s := signers[serving]
	s.Rules = []approval.Rule{rule}
	signers[serving] = s
	w.run(csr.Controller{
		Client: w.restrict, Authority: &signer.Authority{Facts: facts, Signers: signer.FixedSigners(signers)}, Approve: true, Sign: true, Registerer: w.metrics,
	}.Run)

	askAs := func(client kubernetes.Interface, node string, addresses ...string) string {
		t.Helper()
		template := &x509.CertificateRequest{}
		for _, text := range addresses {
			if a, err := netip.ParseAddr(text); err == nil {
				template.IPAddresses = append(template.IPAddresses, a.AsSlice())
			} else {
				template.DNSNames = append(template.DNSNames, text)
			}
		}
		return w.ask(client, serving, node, template, nil).Name
	}
	as := func(node string) kubernetes.Interface { return w.as("system:node:"+node, "system:nodes") }

	name := askAs(as("serving-1"), "serving-1", "198.51.100.1", "serving-1")
	w.await(name, "certificate", func(r *certificates.CertificateSigningRequest) bool { return len(r.Status.Certificate) > 0 })
	for _, test := range []struct {
		node      string
		addresses []string
		reason    string
	}{
		{"serving-1", []string{"198.51.100.1", "kubernetes.default.svc"}, approval.ReasonNameForbidden},
		{"serving-1", []string{"198.51.100.10"}, approval.ReasonNameReserved},
	} {
		name := askAs(as(test.node), test.node, test.addresses...)
		w.await(name, test.reason, func(r *certificates.CertificateSigningRequest) bool {
			if len(r.Status.Certificate) > 0 || condition(r, certificates.CertificateApproved) != nil {
				t.Fatalf("%v: %v", test, r.Status.Conditions)
			}
			c := condition(r, certificates.CertificateDenied)
			return c != nil && c.Reason == test.reason
		})
	}

	// The request gets None until the other Node is deleted.
	taken := askAs(as("serving-1"), "serving-1", "198.51.100.2")
	wait.Until(w, "left alone", func() bool {
		return w.count("kubejoin_csr_decisions_total", "verdict=none", "reason="+approval.ReasonNameOfOther) > 0
	})
	w.createNode("serving-1", "198.51.100.1", "198.51.100.2", "serving-1")
	must.OK(t, w.admin.CoreV1().Nodes().Delete(t.Context(), "serving-2", metav1.DeleteOptions{}))
	w.await(taken, "certificate", func(r *certificates.CertificateSigningRequest) bool { return len(r.Status.Certificate) > 0 })

	// The request waits for a Node and its address, and is approved when both exist.
	early := askAs(as("serving-3"), "serving-3", "198.51.100.3", "serving-3")
	waits := func(reason string) {
		t.Helper()
		wait.Until(w, reason, func() bool { return w.count("kubejoin_csr_decisions_total", "verdict=wait", "reason="+reason) > 0 })
	}
	waits(approval.ReasonNodeNotFound)
	w.createNode("serving-3")
	waits(approval.ReasonAddressNotReported)
	w.createNode("serving-3", "198.51.100.3", "serving-3")
	w.await(early, "certificate", func(r *certificates.CertificateSigningRequest) bool { return len(r.Status.Certificate) > 0 })

}
