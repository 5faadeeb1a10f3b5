// Package csr handles CertificateSigningRequest objects. [Controller] approves and signs them as a
// signer.Authority decides. [Cleaner] deletes them when they are done. Both replace the controllers of the
// same kind in kube-controller-manager, and may run beside them. But the limits of bootstrap tokens do not
// hold for certificates that another signer issues.
//
// Packages signer/approval and signer decide what may be approved and how it is signed. Package signer/kubefacts
// reads the facts about a cluster for them.
package csr
