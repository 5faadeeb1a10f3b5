package csr_test

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/fuzzing"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/csr"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// allowsAll grants every permission. It has no other facts.
type allowsAll struct{ approval.Facts }

func (allowsAll) Allowed(context.Context, approval.Request, approval.Permission) (bool, error) {
	return true, nil
}

// FuzzObject handles CertificateSigningRequests that no API server would accept. The controller must refuse or
// decide them, and may only approve client certificates of kubelets.
func FuzzObject(f *testing.F) {
	key := csrtest.NewKey()
	for _, subject := range []pkix.Name{
		{CommonName: "system:node:worker-1", Organization: []string{"system:nodes"}},
		{CommonName: "system:node:", Organization: []string{"system:nodes"}},
		{CommonName: "jane", Organization: []string{"system:masters"}},
	} {
		der := must.Value(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key))(f)
		request := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
		f.Add(request, kubelet, "system:bootstrap:abc123", "system:bootstrappers", "digital signature,client auth", int32(3600), "", "", []byte{})
		f.Add(request, serving, "system:node:worker-1", "system:nodes", "server auth", int32(600), "Approved=True", "", []byte{})
		f.Add(append(request, request...), serving, "system:node:worker-1", "", "server auth", int32(-1), "Approved=True,Failed=Unknown", `{"f:status":{"f:certificate":{}}}`, []byte("x"))
	}
	f.Add([]byte("-----BEGIN"), "", "", ",,", "", int32(0), "Denied,Approved=", "\xff", []byte{0})
	f.Fuzz(func(t *testing.T, request []byte, signerName, user, groups, usages string, seconds int32, conditions, managed string, certificate []byte) {
		object := func() *certificates.CertificateSigningRequest {
			o := &certificates.CertificateSigningRequest{
				ObjectMeta: metav1.ObjectMeta{Name: "csr-x", UID: "u", ManagedFields: []metav1.ManagedFieldsEntry{
					{Manager: "m", Subresource: "status", FieldsV1: metav1.NewFieldsV1(managed)}, {Manager: "n", Subresource: "status"},
				}},
				Spec: certificates.CertificateSigningRequestSpec{
					Request: request, SignerName: signerName, Username: user, Groups: strings.Split(groups, ","),
					Extra: map[string]certificates.ExtraValue{user: {groups}}, ExpirationSeconds: &seconds,
				},
				Status: certificates.CertificateSigningRequestStatus{Certificate: certificate},
			}
			for u := range strings.SplitSeq(usages, ",") {
				o.Spec.Usages = append(o.Spec.Usages, certificates.KeyUsage(u))
			}
			for c := range strings.SplitSeq(conditions, ",") {
				kind, status, _ := strings.Cut(c, "=")
				o.Status.Conditions = append(o.Status.Conditions, certificates.CertificateSigningRequestCondition{
					Type: certificates.RequestConditionType(kind), Status: corev1.ConditionStatus(status),
				})
			}
			return o
		}
		fuzzing.RunWithinLimit(t, func() {
			o := object()
			if wanted := csr.Wanted(o); wanted && len(certificate) > 0 {
				t.Error("Wanted is true for an issued request")
			}
			r, err := csr.Cached(o)
			if err != nil {
				if refused := (*approval.Error)(nil); !errors.As(err, &refused) || refused.Verdict != approval.Deny || refused.Reason == "" || refused.Message == "" {
					t.Errorf("got %v, want a refusal with a reason", err)
				}
				return
			}
			if len(certificate) > 0 {
				t.Error("the cache keeps the whole issued request")
			}
			if r.Expiration <= 0 || r.CSR == nil || r.User != user {
				t.Errorf("got request %+v", r)
			}
			d, err := approval.Decide(context.Background(), approval.Kubelet(), r, allowsAll{})
			if err != nil {
				t.Error(err)
			}
			if name, found := strings.CutPrefix(r.CSR.Subject.CommonName, "system:node:"); d.Verdict == approval.Approve &&
				(!found || name == "" || signerName != kubelet || len(r.CSR.Subject.Organization) != 1 || r.CSR.Subject.Organization[0] != "system:nodes") {
				t.Errorf("approved subject %q for signer %q", r.CSR.Subject, signerName)
			}
		})
	})
}
