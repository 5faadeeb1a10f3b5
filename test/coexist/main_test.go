// Package coexist tests kubejoin beside kube-controller-manager, and beside other writers of cluster-info and token Secrets.
package coexist

import (
	"testing"

	"github.com/kubejoin/kubejoin/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m, harness.CertificateIssued) }
