package daemon

import "testing"

func TestBallastOnlyWithDefaultGCSettings(t *testing.T) {
	for _, test := range []struct {
		gogc, limit string
		want        int
	}{{"", "", garbageRoom}, {"100", "", 0}, {"off", "", 0}, {"", "64MiB", 0}} {
		t.Setenv("GOGC", test.gogc)
		t.Setenv("GOMEMLIMIT", test.limit)
		if got := len(gcBallast()); got != test.want {
			t.Errorf("GOGC=%q, GOMEMLIMIT=%q: got a ballast of %d bytes, want %d", test.gogc, test.limit, got, test.want)
		}
	}
}
