// Package ha runs several replicas of kubejoin on one etcd cluster, and breaks replicas, members and the network between
// them.
package ha

import (
	"testing"

	"github.com/kubejoin/kubejoin/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m, harness.CertificateIssued) }
