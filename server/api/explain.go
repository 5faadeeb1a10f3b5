package api

import "encoding/json"

// ExplainRequest asks what would be done about a certificate request: one of the two.
type ExplainRequest struct {
	// CSR is the name of a CertificateSigningRequest object.
	CSR string `json:"csr,omitempty"`
	// Object is such an object (certificates.k8s.io/v1), which need not exist.
	Object json.RawMessage `json:"object,omitempty"`
}
