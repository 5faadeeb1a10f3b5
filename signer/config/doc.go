// Package config reads a SignerConfiguration: the signers, and for each its CA, durations and what requests
// it allows. [Open] reads a file and returns the signers of a signer.Authority.
//
// It watches no file and prints nothing. [Errors] holds the mistakes in a file, each with file, line and
// field.
package config
