// Package pkcs10 parses certificate requests (PKCS #10, RFC 2986). It refuses requests that no signer may sign,
// regardless of the requester: weak keys, CAs, and malformed or ambiguous subjects and names.
//
// Package approval decides whether a requester may have the certificate.
package pkcs10
