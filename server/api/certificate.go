package api

// SignCertificate requests a certificate. CSR is the request body; the other fields are query parameters.
type SignCertificate struct {
	// CSR is one PKCS #10 request in PEM.
	CSR []byte `json:"-"`
	// Signer is a signer name, for example "kubernetes.io/kubelet-serving". Empty means
	// kubernetes.io/kube-apiserver-client-kubelet for a bootstrap token and for a node. A node whose CSR has DNS
	// names or IP addresses gets kubernetes.io/kubelet-serving instead. All other callers must set it.
	Signer string `json:"signer,omitempty"`
	// Duration is a Go duration of at least 10m; empty means the default of the signer.
	Duration string `json:"duration,omitempty"`
	// Usages have the names of a CertificateSigningRequest. Nil means the usual usages for the signer and the key
	// type.
	Usages []string `json:"usages,omitempty"`
}
