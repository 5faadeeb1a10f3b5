// Package signer issues certificates from a cluster's CA. [Authority] checks every request against the rules of its
// signer, regardless of who approved it, and signs it. Package signer/approval decides whether a requester may have a
// certificate. Package signer/admission decides which machine may have which node name. Package signer/csr handles
// CertificateSigningRequest objects.
//
// cfssl makes the certificates. It logs a line for each certificate to the standard logger. This package disables
// that log, because cfssl also returns its errors. To enable it, set Level in github.com/cloudflare/cfssl/log when
// the program starts.
package signer
