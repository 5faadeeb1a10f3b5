// Package pkcs10 parses certificate requests (PKCS #10, RFC 2986) and refuses what no signer gives a certificate for,
// whoever asks: weak keys, CAs, malformed or ambiguous subjects and names.
//
// Whether a requester may have the certificate is the question of package approval.
package pkcs10
