package csr

import (
	"slices"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// Catches a request whose certificate another replica may be writing, and that Requested leaves out, or one that can get no
// certificate any more and that Requested returns.
func TestRequestedReturnsApprovedRequestsWithoutCertificate(t *testing.T) {
	request := func(name string, conditions ...certificates.RequestConditionType) *certificates.CertificateSigningRequest {
		csr := &certificates.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: certificates.CertificateSigningRequestSpec{
			Username: "system:bootstrap:" + name, Groups: []string{"system:bootstrappers"}}}
		for _, kind := range conditions {
			csr.Status.Conditions = append(csr.Status.Conditions, certificates.CertificateSigningRequestCondition{Type: kind, Status: corev1.ConditionTrue})
		}
		return csr
	}
	malformed := request("fffff4", certificates.CertificateApproved)
	malformed.Status.Certificate = []byte("by another signer")
	client := fake.NewClientset(request("fffff0"), request("fffff1", certificates.CertificateApproved), malformed,
		request("fffff2", certificates.CertificateDenied), request("fffff3", certificates.CertificateApproved, certificates.CertificateFailed))
	var open []string
	for _, c := range must.Value(Requested(t.Context(), client))(t) {
		if c.Fingerprint == "" {
			open = append(open, c.TokenID)
		}
	}
	if !slices.Equal(open, []string{"fffff1"}) {
		t.Errorf("got %q, want the approved request without a certificate", open)
	}
}
