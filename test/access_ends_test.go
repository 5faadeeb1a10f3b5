package test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/test/cluster"
)

// Rights that are taken away, tokens that are revoked, and a kube-apiserver that is gone end what a
// caller may within the time that docs/access.md says, however often they call.
func TestAccessEnds(t *testing.T) {
	t.Parallel()
	s := newSite(t, cluster.Options{})
	viewer, second := caller{bearer: s.account(t, "viewer", "kubejoin:viewer")}, caller{bearer: s.account(t, "second", "kubejoin:viewer")}
	becomes := func(who caller, want int, within time.Duration) {
		t.Helper()
		start := time.Now()
		waitFor(t, within+10*time.Second, "status "+itoa(want), func() error {
			if status, body := s.sends(t, who, "GET", "/metrics", "", ""); status != want {
				return fmt.Errorf("%d %.300s", status, body)
			}
			return nil
		})
		took := time.Since(start)
		t.Logf("%d after %s", want, took.Round(time.Millisecond))
		if within > 0 && took > within {
			t.Errorf("%d after %s, want it within %s", want, took, within)
		}
	}
	const lag = 3 * time.Second // of RBAC's own caches, and of a machine that is busy with other tests
	becomes(viewer, 200, 0)
	becomes(second, 200, 0)
	s.kubectl(t, "delete", "clusterrolebinding", "viewer")
	becomes(viewer, 403, 5*time.Second+lag)
	s.kubectl(t, "create", "clusterrolebinding", "viewer", "--clusterrole", "kubejoin:viewer", "--serviceaccount", "default:viewer")
	becomes(viewer, 200, time.Second+lag)
	s.kubectl(t, "delete", "serviceaccount", "viewer")
	becomes(viewer, 401, 15*time.Second+lag)

	becomes(second, 200, 0)
	s.StopAPIServer()
	becomes(second, 503, 5*time.Second+lag)
	if status, body := s.sends(t, caller{bearer: "garbage-that-nobody-has-given-out"}, "GET", "/metrics", "", ""); status != 503 {
		t.Errorf("garbage while kube-apiserver is away: %d %s", status, body)
	}
	if status, body := s.sends(t, caller{}, "GET", "/metrics", "", ""); status != 401 {
		t.Errorf("nobody while kube-apiserver is away: %d %s", status, body)
	}
	if status, body := s.sends(t, caller{bearer: s.bearer(t)}, "GET", "/metrics", "", ""); status != 200 {
		t.Errorf("an admin of the token file while kube-apiserver is away: %d %s", status, body)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.StartAPIServer(ctx); err != nil {
		t.Fatal(err)
	}
	becomes(second, 200, 0)
}
