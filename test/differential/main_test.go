// Package differential compares the decisions and certificates of kubejoin with kube-controller-manager and kubeadm.
package differential

import (
	"testing"

	"github.com/kubejoin/kubejoin/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m, harness.CertificateIssued) }
