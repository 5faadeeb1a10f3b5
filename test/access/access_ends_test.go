package access

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
)

// TestAccessEndsWithinDocumentedTime catches a review cache that outlives a deleted binding, a deleted service account
// or a stopped kube-apiserver for longer than documented.
func TestAccessEndsWithinDocumentedTime(t *testing.T) {
	harness.Parallel(t)
	s := harness.NewSite(t, cluster.Options{})
	viewer, second := caller{bearer: createServiceAccount(t, s, "viewer", "kubejoin:viewer")}, caller{bearer: createServiceAccount(t, s, "second", "kubejoin:viewer")}
	waitStatus := func(who caller, want int, within time.Duration) {
		t.Helper()
		start := time.Now()
		var last time.Duration // send time of the last request whose status was not want
		harness.Wait(t, "status "+strconv.Itoa(want), func() error {
			sent := time.Since(start)
			if status, body := sendAs(t, s.Program, who, "GET", "/metrics", "", ""); status != want {
				last = sent
				return fmt.Errorf("%d %.300s", status, body)
			}
			return nil
		})
		t.Logf("status %d for requests after %s", want, last.Round(time.Millisecond))
		if within > 0 && last > within {
			t.Errorf("got another status than %d until %s, want it at most until %s", want, last, within)
		}
	}
	const lag = 5 * time.Second // allows for RBAC's caches, and for other tests that slow down this machine
	waitStatus(viewer, 200, 0)
	waitStatus(second, 200, 0)
	s.RunKubectl(t, "delete", "clusterrolebinding", "viewer")
	waitStatus(viewer, 403, 5*time.Second+lag)
	s.RunKubectl(t, "create", "clusterrolebinding", "viewer", "--clusterrole", "kubejoin:viewer", "--serviceaccount", "default:viewer")
	waitStatus(viewer, 200, time.Second+lag)
	s.RunKubectl(t, "delete", "serviceaccount", "viewer")
	waitStatus(viewer, 401, 15*time.Second+lag)

	waitStatus(second, 200, 0)
	s.StopAPIServer()
	waitStatus(second, 503, 5*time.Second+lag)
	if status, body := sendAs(t, s.Program, caller{bearer: "unknown-bearer-token-of-this-test"}, "GET", "/metrics", "", ""); status != 503 {
		t.Errorf("unknown bearer while kube-apiserver is down: got %d %s, want 503", status, body)
	}
	if status, body := sendAs(t, s.Program, caller{}, "GET", "/metrics", "", ""); status != 401 {
		t.Errorf("no credential while kube-apiserver is down: got %d %s, want 401", status, body)
	}
	if status, body := sendAs(t, s.Program, caller{bearer: s.Bearer(t)}, "GET", "/metrics", "", ""); status != 200 {
		t.Errorf("admin of the token file while kube-apiserver is down: got %d %s, want 200", status, body)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must.OK(t, s.StartAPIServer(ctx))
	waitStatus(second, 200, 0)
}
