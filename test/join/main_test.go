// Package join tests that machines join: every form of the join command, discovery, the webhook, and the kubelet's
// certificates.
package join

import (
	"testing"

	"github.com/kubejoin/kubejoin/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m, harness.CertificateIssued) }
