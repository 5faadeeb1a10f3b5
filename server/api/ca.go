package api

import "time"

// A CABundle is the CA certificates that joining nodes are to trust, in the order of cluster-info.
type CABundle struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Items      []CA   `json:"items"`
}

// A CA is one CA certificate.
type CA struct {
	// Subject is in the form of RFC 2253.
	Subject   string    `json:"subject"`
	NotBefore time.Time `json:"notBefore"`
	NotAfter  time.Time `json:"notAfter"`
	// Pin is the argument of kubeadm's --discovery-token-ca-cert-hash.
	Pin string `json:"pin"`
	// Certificate is in PEM.
	Certificate string `json:"certificate"`
}

// GetCA says in which form the CA bundle is wanted.
type GetCA struct {
	// Format is "pem" or "json"; empty is JSON for who asks for application/json by the header
	// Accept, and PEM for everybody else.
	Format string `json:"format,omitempty"`
}
