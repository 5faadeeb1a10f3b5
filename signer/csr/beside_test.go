package csr_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func approvalRequest() approval.Request {
	return approval.Request{User: "system:bootstrap:abc123", Groups: []string{"system:bootstrappers", bootstrapGroup, "system:authenticated"}}
}

// burst requests n certificates at once and waits until all are issued. It returns the time from the first request
// to the last certificate.
func (w *world) burst(n int) time.Duration {
	w.Helper()
	client := w.bootstrap()
	began := time.Now()
	var asking sync.WaitGroup
	for i := range 10 {
		asking.Go(func() {
			for range n/10 + min(1, max(0, n%10-i)) {
				w.ask(client, kubelet, "worker-1", nil, nil)
			}
		})
	}
	asking.Wait()
	wait.Until(w, "all certificates", func() bool {
		list, err := w.admin.CertificatesV1().CertificateSigningRequests().List(w.Context(), metav1.ListOptions{})
		if err != nil {
			w.Fatal(err)
		}
		issued := 0
		for _, o := range list.Items {
			if len(o.Status.Certificate) > 0 {
				issued++
			}
		}
		return issued == n
	})
	took := time.Since(began)
	list, err := w.admin.CertificatesV1().CertificateSigningRequests().List(w.Context(), metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	serials := map[string]bool{}
	for i, o := range list.Items {
		if len(o.Status.Conditions) != 1 {
			w.Errorf("%s: got %d conditions, want 1", o.Name, len(o.Status.Conditions))
		}
		if i%50 == 0 {
			serials[w.certificate(&o).SerialNumber.String()] = true
		}
	}
	if len(serials) != (n+49)/50 {
		w.Error("got repeated serial numbers")
	}
	return took
}

func TestCountsEachCertificateOnceBesideKCM(t *testing.T) {
	w := newWorld(t)
	kcm := must.Value(w.cluster.StartKCM(t.Context(), "--kube-api-qps=5000", "--kube-api-burst=5000"))(t)
	t.Cleanup(func() { kcm.Stop(10 * time.Second) })
	w.startController()
	const n = 200
	w.burst(n)
	var byOther int
	list := must.Value(w.admin.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{}))(t)
	for _, o := range list.Items {
		if writer(&o) == "kube-controller-manager" {
			byOther++
		}
	}
	t.Logf("kube-controller-manager signed %d of %d", byOther, n)
	wait.Until(w, "every certificate counted once", func() bool {
		return w.count("kubejoin_csr_signed_total") == float64(n-byOther) && w.count("kubejoin_csr_signed_by_other_total", "signer="+kubelet) == float64(byOther)
	})
	if got := w.count("kubejoin_csr_sign_failures_total"); got != 0 {
		t.Errorf("got %v failures, want 0", got)
	}
}

func TestReportsCertificateOfOtherSignerOnlyWhileRunning(t *testing.T) {
	w := newWorld(t)
	requests := w.admin.CertificatesV1().CertificateSigningRequests()
	write := func(o *certificates.CertificateSigningRequest) {
		t.Helper()
		o.Status.Certificate = w.someCertificate()
		must.Value(requests.UpdateStatus(t.Context(), o, metav1.UpdateOptions{FieldManager: "somebody"}))(t)
	}
	nobody := w.as("nobody", "nobodies") // without permissions, so kubejoin approves nothing
	must.OK(t, w.allowAsking("nobodies"))
	before := w.ask(nobody, kubelet, "worker-1", nil, nil)
	write(before)
	w.startController()
	during := w.ask(nobody, kubelet, "worker-2", nil, nil)
	wait.Until(w, "the request seen", func() bool { return w.count("kubejoin_csr_decisions_total", "verdict=none") >= 1 }) // each retry increments the count
	live := must.Value(requests.Get(t.Context(), during.Name, metav1.GetOptions{}))(t)
	write(live)
	w.awaitEvent(during, "SignedByOther")
	if got := w.count("kubejoin_csr_signed_by_other_total", "signer="+kubelet); got != 1 {
		t.Errorf("got %v reports, want 1: only the certificate that was issued while the controller ran", got)
	}
}

// The API server keeps no managed fields of an object that was created with only a name and a spec. kubejoin must
// still recognize the certificates that it wrote.
func TestRecognizesOwnCertificatesWithoutManagedFields(t *testing.T) {
	w := newWorld(t)
	w.startController()
	requests := w.bootstrap().CertificatesV1().CertificateSigningRequests()
	const n = 100
	var asking sync.WaitGroup
	for i := range n {
		asking.Go(func() {
			_, err := requests.Create(t.Context(), &certificates.CertificateSigningRequest{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("named-%d", i)},
				Spec: certificates.CertificateSigningRequestSpec{
					Request: w.requestPEM(), SignerName: kubelet, Usages: []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
				},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Error(err)
			}
		})
	}
	asking.Wait()
	wait.Until(w, "all counted", func() bool {
		return w.count("kubejoin_csr_signed_total")+w.count("kubejoin_csr_signed_by_other_total") == n
	})
	if got := w.count("kubejoin_csr_signed_by_other_total"); got != 0 {
		t.Errorf("got %v own certificates reported as those of another signer, want 0", got)
	}
}

// requestPEM returns the CSR of a kubelet in PEM, without creating an object.
func (w *world) requestPEM() []byte {
	csr := parsedCSR(w, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:worker-1", Organization: []string{"system:nodes"}}})
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr.Raw})
}

// someCertificate returns a certificate that no request of the test is for.
func (w *world) someCertificate() []byte {
	w.Helper()
	object := w.ask(w.bootstrap(), kubelet, "x", nil, nil)
	parsed, err := pkcs10.Parse(object.Spec.Request)
	if err != nil {
		w.Fatal(err)
	}
	if err := w.admin.CertificatesV1().CertificateSigningRequests().Delete(w.Context(), object.Name, metav1.DeleteOptions{}); err != nil {
		w.Fatal(err)
	}
	usages := []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth}
	chain, err := must.Get(signer.NewProfile(signer.ProfileConfig{Usages: usages})).Issue(w.ca, signer.Template{CSR: parsed, Usages: usages}, time.Now())
	if err != nil {
		w.Fatal(err)
	}
	return chain
}
