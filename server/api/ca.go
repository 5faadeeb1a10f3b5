package api

import "time"

// A CABundle holds the CA certificates that joining nodes should trust, in the order of cluster-info.
type CABundle struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Items      []CA   `json:"items"`
}

// A CA is one CA certificate.
type CA struct {
	// Subject has the form of RFC 2253.
	Subject   string    `json:"subject"`
	NotBefore time.Time `json:"notBefore"`
	NotAfter  time.Time `json:"notAfter"`
	// Pin is the value for kubeadm's --discovery-token-ca-cert-hash.
	Pin string `json:"pin"`
	// Certificate is in PEM.
	Certificate string `json:"certificate"`
}

// GetCA selects the format of the CA bundle.
type GetCA struct {
	// Format is "pem" or "json". If it is empty, clients whose Accept header asks for application/json receive JSON,
	// and all others PEM.
	Format string `json:"format,omitempty"`
}
