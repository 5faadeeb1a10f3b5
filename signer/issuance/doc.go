// Package issuance defines the record of certificates that were issued, refused or could not be issued: its
// entries, a log of JSON lines, and queries. Package signer decides what is recorded. Package
// signer/issuance/rowrecord stores a record that can be queried.
package issuance
