package csr_test

import (
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/kubejoin/kubejoin/signer/revocation"
	certificates "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A replica has made a certificate before its requester is revoked, and writes it afterwards. Catches an API server
// that still accepts the certificate, and an error for a request that was changed or deleted meanwhile. Also
// catches the withdrawal of another requester's request, and a missing permission of kubejoin.
func TestWithdrawnRequestGetsNoCertificate(t *testing.T) {
	w := newWorld(t)
	requests := w.admin.CertificatesV1().CertificateSigningRequests()
	revoked, other := w.as("system:bootstrap:fffff1", "system:bootstrappers", bootstrapGroup), w.as("system:bootstrap:fffff2", "system:bootstrappers", bootstrapGroup)
	approved, deleted, free := w.ask(revoked, kubelet, "worker-1", nil, nil), w.ask(revoked, kubelet, "worker-1", nil, nil), w.ask(other, kubelet, "worker-1", nil, nil)
	for _, object := range []*certificates.CertificateSigningRequest{approved, deleted, free} {
		w.approve(object.Name)
	}
	signs := func(name string) bool { return name == kubelet }
	foreign := w.ask(revoked, "example.com/signer", "worker-1", nil, nil)
	w.approve(foreign.Name)
	pending := w.ask(revoked, kubelet, "worker-1", nil, nil)
	late := must.Value(requests.Get(t.Context(), approved.Name, metav1.GetOptions{}))(t)
	must.OK(t, csr.Withdraw(t.Context(), w.controllerIdentity(), signs, func(c revocation.Certificate) bool {
		if c.TokenID != "fffff1" {
			return false
		}
		current := must.Value(requests.Get(t.Context(), approved.Name, metav1.GetOptions{}))(t)
		current.Labels["kept"] += "s"
		must.Value(requests.Update(t.Context(), current, metav1.UpdateOptions{}))(t)
		if err := requests.Delete(t.Context(), deleted.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
		return true
	}))
	late.Status.Certificate = []byte("any")
	if _, err := requests.UpdateStatus(t.Context(), late, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("the certificate: got %v, want a conflict", err)
	}
	for name, want := range map[string]int{approved.Name: 2, free.Name: 1, foreign.Name: 1, pending.Name: 0} {
		object := must.Value(requests.Get(t.Context(), name, metav1.GetOptions{}))(t)
		if conditions := object.Status.Conditions; len(conditions) != want || want == 2 && (conditions[1].Type != certificates.CertificateFailed || conditions[1].Reason != revocation.Reason) {
			t.Errorf("%s: got conditions %+v, want %d", name, conditions, want)
		}
	}
}
