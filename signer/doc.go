// Package signer issues certificates from a cluster's CA: [Authority] is the one door to a
// certificate, and checks every request against the rules of its signer, whoever approved it.
// Who may have which node's name is package signer/admission's to decide, and whether a requester
// may have a certificate at all package signer/approval's. CertificateSigningRequest objects are
// handled by package signer/csr.
//
// Signing itself is cfssl's. Its own log, a line for each certificate to the standard logger, is
// turned off when this package is imported: its errors are returned. A program that wants it sets
// Level in github.com/cloudflare/cfssl/log when it starts.
package signer
