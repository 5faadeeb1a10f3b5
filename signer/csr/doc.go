// Package csr handles CertificateSigningRequest objects. [Controller] approves and signs them as a
// signer.Authority decides. [Cleaner] deletes finished objects. Both replace the corresponding controllers of
// kube-controller-manager, and may run at the same time. But the limits of bootstrap tokens do not hold for
// certificates that another signer issues.
//
// Packages signer/approval and signer decide what may be approved and how it is signed. Package signer/kubefacts
// reads the facts about a cluster for them.
package csr
