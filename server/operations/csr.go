package operations

import (
	"github.com/kubejoin/kubejoin/server/api"
	certificates "k8s.io/api/certificates/v1"
	kjson "sigs.k8s.io/json"
)

// CSR parses a CertificateSigningRequest. It ignores unknown fields, because kubectl prints those of newer APIs.
func CSR(content []byte) (*certificates.CertificateSigningRequest, error) {
	var object certificates.CertificateSigningRequest
	if err := kjson.UnmarshalCaseSensitivePreserveInts(content, &object); err != nil {
		return nil, api.InvalidField("object", "want a CertificateSigningRequest in JSON")
	}
	if object.APIVersion != certificates.SchemeGroupVersion.String() || object.Kind != "CertificateSigningRequest" {
		return nil, api.InvalidField("object", "apiVersion %.60q and kind %.60q given, want %s and CertificateSigningRequest", object.APIVersion, object.Kind, certificates.SchemeGroupVersion)
	}
	return &object, nil
}
