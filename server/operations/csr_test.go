package operations_test

import (
	"errors"
	"testing"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/operations"
)

func TestCSR(t *testing.T) {
	for text, ok := range map[string]bool{
		`{"apiVersion":"certificates.k8s.io/v1","kind":"CertificateSigningRequest","newer":1}`:  true,
		`{"apiVersion":"certificates.k8s.io/v1beta1","kind":"CertificateSigningRequest"}`:       false,
		`{"apiVersion":"certificates.k8s.io/v1","kind":"Secret"}`:                               false,
		`{"apiVersion":"certificates.k8s.io/v1","kind":"CertificateSigningRequest","spec":"x"}`: false,
		`[]`: false,
	} {
		_, err := operations.CSR([]byte(text))
		if invalid := (api.InvalidFields)(nil); errors.As(err, &invalid) == ok {
			t.Errorf("%s: got %v, want it accepted: %t", text, err, ok)
		}
	}
}
