// Package load measures kubejoin under load, with many tokens, connections and requests, and looks for leaks afterwards.
package load

import (
	"testing"

	"github.com/kubejoin/kubejoin/test/harness"
)

func TestMain(m *testing.M) { harness.MainAlone(m, harness.CertificateIssued) }
