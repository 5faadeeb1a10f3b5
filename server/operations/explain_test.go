package operations_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/operations"
	certificates "k8s.io/api/certificates/v1"
)

func TestExplainsOnlyRequestsOfKnownAPI(t *testing.T) {
	type object = certificates.CertificateSigningRequest
	o := operations.Operations{ExplainCSR: func(context.Context, string, *object) (e api.RequestExplanation, err error) { return e, nil }}
	for text, ok := range map[string]bool{
		`{"apiVersion":"certificates.k8s.io/v1","kind":"CertificateSigningRequest","newer":1}`:  true,
		`{"apiVersion":"certificates.k8s.io/v1beta1","kind":"CertificateSigningRequest"}`:       false,
		`{"apiVersion":"certificates.k8s.io/v1","kind":"Secret"}`:                               false,
		`{"apiVersion":"certificates.k8s.io/v1","kind":"CertificateSigningRequest","spec":"x"}`: false,
		`[]`: false,
	} {
		_, err := o.ExplainRequest(t.Context(), api.ExplainRequest{Object: json.RawMessage(text)}, func(*object) error { return nil })
		if invalid := (api.InvalidFields)(nil); errors.As(err, &invalid) == ok {
			t.Errorf("%s: got %v, want it accepted: %t", text, err, ok)
		}
	}
}
