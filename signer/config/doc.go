// Package config reads a SignerConfiguration: which signers there are, each with its CA, its
// durations and what may be asked of it. [Load] a file, and [Configuration.Build] makes of it what
// signer.Authority goes by.
//
// It follows no file and prints nothing: what is wrong with a file is in [Errors], each with file,
// line and field.
package config
