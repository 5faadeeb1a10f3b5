// Package monitoring tests the alert rules and the dashboard of the chart, with promtool and with a real Prometheus that
// scrapes kubejoin.
package monitoring

import (
	"testing"

	"github.com/kubejoin/kubejoin/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
