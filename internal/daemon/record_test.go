package daemon

import (
	"testing"

	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// Two requests read the number of dropped entries, and the second request reports first. A Prometheus counter panics
// on a negative increment.
func TestCountsDroppedEntriesInAnyOrder(t *testing.T) {
	w := &watchedRecord{dropped: metrics.Counter(nil, "dropped_total", "").WithLabelValues()}
	w.drops(6)
	if w.drops(5) {
		t.Error("an old count is reported as new")
	}
	w.drops(7)
	if got := testutil.ToFloat64(w.dropped); got != 7 {
		t.Errorf("%v counted, want 7", got)
	}
}
