// Package host tests the ways to run kubejoin on a machine: the static pod, and the systemd unit. It runs the exact
// command of each in namespaces that resemble its sandbox, beside a real API server.
package host

import (
	"testing"

	"github.com/kubejoin/kubejoin/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
