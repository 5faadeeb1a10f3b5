// Package signer issues certificates from a cluster's CA: [Authority] is the one door to a
// certificate, and checks every request against the rules of its signer, whoever approved it.
// Whether a requester may have a certificate at all is package signer/approval's to decide, and
// CertificateSigningRequest objects are handled by package signer/csr.
//
// Signing itself is cfssl's. It writes a line for each certificate to the standard logger unless
// the program sets log.Level of github.com/cloudflare/cfssl/log higher than LevelInfo, once, at
// its start.
package signer
