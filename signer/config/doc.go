// Package config reads a SignerConfiguration: the signers, and for each signer its CA, durations and allowed
// requests. [Open] reads a file and returns the signers of a signer.Authority.
//
// The package watches no file and prints nothing. [Errors] holds the mistakes in a file, each with file, line
// and field.
package config
