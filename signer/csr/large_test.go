package csr_test

import (
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The API server accepts larger objects than kubejoin handles. If somebody approves one, it must fail and keep its
// labels.
func TestFailsLargeRequests(t *testing.T) {
	w := newWorld(t)
	w.startController()
	for _, test := range []struct {
		name                string
		extension, metadata int
		want                string
	}{
		{name: "request", extension: 100 << 10, want: "bytes, want at most 65536"},
		{name: "annotations", metadata: 100 << 10, want: "metadata and spec without the certificate request have"},
	} {
		t.Run(test.name, func(t *testing.T) {
			der := must.Value(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
				Subject:         pkix.Name{CommonName: "system:node:worker-1", Organization: []string{"system:nodes"}},
				ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 2, 3, 4}, Value: make([]byte, test.extension)}},
			}, csrtest.NewKey()))(t)
			asked := must.Value(w.bootstrap().CertificatesV1().CertificateSigningRequests().Create(t.Context(), &certificates.CertificateSigningRequest{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-", Labels: map[string]string{"kept": "yes"}, Annotations: map[string]string{"note": strings.Repeat("n", test.metadata)}},
				Spec: certificates.CertificateSigningRequestSpec{
					Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: kubelet,
					Usages: []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
				},
			}, metav1.CreateOptions{}))(t)
			if e := w.awaitEvent(asked, "SignerValidationFailure"); !strings.Contains(e.Message, test.want) {
				t.Errorf("got Event message %q, want %q in it", e.Message, test.want)
			}
			w.approve(asked.Name)
			object := w.await(asked.Name, "failure", func(o *certificates.CertificateSigningRequest) bool {
				return condition(o, certificates.CertificateFailed) != nil
			})
			if c := condition(object, certificates.CertificateFailed); c.Reason != "SignerValidationFailure" || !strings.Contains(c.Message, test.want) || len(object.Status.Certificate) > 0 {
				t.Errorf("got condition %+v, want %q in it", c, test.want)
			}
			if object.Labels["kept"] != "yes" || len(object.Annotations["note"]) != test.metadata {
				t.Errorf("got labels %q and an annotation of %d bytes, want %d", object.Labels, len(object.Annotations["note"]), test.metadata)
			}
		})
	}
}
