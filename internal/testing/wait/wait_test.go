package wait_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/wait"
)

// Catches a wait that never ends, and a wait that hides why the last check failed.
func TestPollEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		checks, start := 0, time.Now()
		err := wait.Poll(time.Minute, func() error { checks++; return fmt.Errorf("check %d", checks) })
		took := time.Since(start)
		if err == nil || !strings.HasSuffix(err.Error(), fmt.Sprint("not after 1m0s: check ", checks)) || checks < 100 || took < time.Minute || took > 61*time.Second {
			t.Errorf("got %v after %s", err, took)
		}
		checks = 0
		wait.Until(t, "the third check", func() bool { checks++; return checks == 3 })
		if checks != 3 {
			t.Errorf("got %d checks, want 3", checks)
		}
	})
}
