package api

// SignCertificate asks for a certificate. CSR is the body, the other fields are the query.
type SignCertificate struct {
	// CSR is one PKCS #10 request in PEM.
	CSR []byte `json:"-"`
	// Signer is such as "kubernetes.io/kubelet-serving". Empty is, for a bootstrap token,
	// kubernetes.io/kube-apiserver-client-kubelet; for a node the same, or
	// kubernetes.io/kubelet-serving if the request has names or addresses. Everybody else says
	// which.
	Signer string `json:"signer,omitempty"`
	// Duration is a Go duration from 10m up; empty is the signer's.
	Duration string `json:"duration,omitempty"`
	// Usages are as in a CertificateSigningRequest; nil is what is usual for the signer and the
	// kind of key.
	Usages []string `json:"usages,omitempty"`
}
