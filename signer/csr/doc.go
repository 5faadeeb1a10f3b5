// Package csr handles CertificateSigningRequest objects: [Controller] approves and signs them as
// a signer.Authority says, and [Cleaner] deletes those that are over. Both take the place of the
// controllers of the same kind in kube-controller-manager, and may run beside them; but the
// limits of bootstrap tokens do not hold for what another signer signs.
//
// What may be approved and how it is signed is in packages signer/approval and signer; [Facts] and
// [Nodes] are what these ask of a cluster.
package csr
