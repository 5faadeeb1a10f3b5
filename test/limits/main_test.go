// Package limits tests limited tokens and claims of node names: with concurrent requests, after edits, and on failures.
package limits

import (
	"testing"

	"github.com/kubejoin/kubejoin/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m, harness.CertificateIssued) }
