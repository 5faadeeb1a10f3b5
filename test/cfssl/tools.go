//go:build tools

// Package cfssl pins the cfssl program that 'make bench' compares POST /v1/certificate with. It is a
// separate module, so that importers of kubejoin do not require cfssl.
package cfssl

import _ "github.com/cloudflare/cfssl/cmd/cfssl"
