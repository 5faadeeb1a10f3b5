// Package standalone tests kubejoin without Kubernetes.
package standalone

import (
	"testing"

	"github.com/kubejoin/kubejoin/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
