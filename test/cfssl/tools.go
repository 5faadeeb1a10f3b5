//go:build tools

// Package cfssl pins the cfssl program that 'make bench' compares POST /v1/certificate with. It is
// built from its published module here, in a module of its own, so that no importer of kubejoin
// ever requires what it requires.
package cfssl

import _ "github.com/cloudflare/cfssl/cmd/cfssl"
