// Package issuance is the record of certificates that were issued, refused or could not be
// issued: what an entry says, lines of JSON to write entries to, and what can be asked of a record
// that is kept. Package signer decides what is recorded. Package
// signer/issuance/boltrecord keeps a record that can be asked.
package issuance
