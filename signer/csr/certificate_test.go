package csr_test

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	certificates "k8s.io/api/certificates/v1"
)

// awaitIssued waits for the certificate of a request and verifies it.
func (w *world) awaitIssued(name string) *x509.Certificate {
	w.Helper()
	object := w.await(name, "certificate", func(o *certificates.CertificateSigningRequest) bool { return len(o.Status.Certificate) > 0 })
	return w.certificate(object)
}

func (w *world) certificate(object *certificates.CertificateSigningRequest) *x509.Certificate {
	w.Helper()
	block, rest := pem.Decode(object.Status.Certificate)
	if block == nil || len(rest) > 0 {
		w.Fatalf("%s: got a certificate that is not one PEM block", object.Name)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		w.Fatal(err)
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: w.roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		w.Errorf("%s: %v", object.Name, err)
	}
	if object.Labels["kept"] != "yes" {
		w.Errorf("%s: the object lost its labels", object.Name)
	}
	return cert
}

// writer returns the field manager that wrote the certificate.
func writer(object *certificates.CertificateSigningRequest) string {
	for _, m := range object.ManagedFields {
		if m.Subresource == "status" && strings.Contains(m.FieldsV1.GetRawString(), "f:certificate") {
			return m.Manager
		}
	}
	return ""
}

// parsedCSR returns a parsed CSR without creating an object.
func parsedCSR(t testing.TB, template *x509.CertificateRequest) *x509.CertificateRequest {
	t.Helper()
	der := must.Value(x509.CreateCertificateRequest(rand.Reader, template, csrtest.NewKey()))(t)
	return must.Value(x509.ParseCertificateRequest(der))(t)
}
