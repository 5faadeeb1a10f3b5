// Package ca tests that kubejoin follows changed files of CAs, signers and the serving certificate.
package ca

import (
	"testing"

	"github.com/kubejoin/kubejoin/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m, harness.CertificateIssued) }
