// Package approval decides whether a requester may have the certificate it asks for: ordered
// rules look at a [Request] and at [Facts], and answer approve, deny or wait with a reason.
//
// It signs nothing and talks to nobody: signing is package signer's, and the Facts of a cluster
// are package signer/csr's.
package approval
