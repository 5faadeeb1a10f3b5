package signer

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"testing"

	"github.com/kubejoin/kubejoin/signer/approval"
)

// requestOf returns a request with these subject attributes.
func requestOf(attributes ...pkix.AttributeTypeAndValue) *x509.CertificateRequest {
	csr := &x509.CertificateRequest{}
	csr.Subject.Names = attributes
	return csr
}

// cfssl would drop the street or postal code from a subject that kubejoin passes to it.
func TestRefusesUnknownAttributeWithStreetOrPostalCode(t *testing.T) {
	unknown := pkix.AttributeTypeAndValue{Type: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 1}, Value: "a@example.com"}
	street, postal := requestOf(unknown), requestOf(unknown)
	street.Subject.StreetAddress, postal.Subject.PostalCode = []string{"a"}, []string{"1"}
	for _, csr := range []*x509.CertificateRequest{street, postal} {
		var refused *approval.Error
		if subject, err := subjectOverride(csr); !errors.As(err, &refused) || refused.Verdict != approval.Deny || subject != nil {
			t.Errorf("subjectOverride = %v, %v, want a refusal", subject, err)
		}
	}
	if subject, err := subjectOverride(requestOf(unknown)); err != nil || subject == nil {
		t.Errorf("subjectOverride = %v, %v, want a subject without the attribute", subject, err)
	}
}
