// Package load measures kubejoin under load: many tokens, connections and requests, and what is left after them.
package load

import (
	"testing"

	"github.com/kubejoin/kubejoin/test/harness"
)

func TestMain(m *testing.M) { harness.MainAlone(m, harness.CertificateIssued) }
