package api

import "encoding/json"

// ExplainRequest asks what kubejoin would decide about a certificate request. Exactly one field must be set.
type ExplainRequest struct {
	// CSR is the name of a CertificateSigningRequest object.
	CSR string `json:"csr,omitempty"`
	// Object is a CertificateSigningRequest (certificates.k8s.io/v1), which need not exist in the cluster.
	Object json.RawMessage `json:"object,omitempty"`
}
