// Package doctor tests 'kubejoin doctor' with faults on a real control plane.
package doctor

import (
	"testing"

	"github.com/kubejoin/kubejoin/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
