// Package outage tests that kubejoin recovers: from a dead API server, a dead leader, silent connections and failing
// writes.
package outage

import (
	"testing"

	"github.com/kubejoin/kubejoin/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m, harness.CertificateIssued) }
