package server_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/server"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

func TestNoticeKeepsReadiness(t *testing.T) {
	s := newSite(t)
	s.Status.Checks = []server.Check{
		{Name: "good", Ready: func(context.Context) error { return nil }},
		{Name: "old", Ready: func(context.Context) error { return fmt.Errorf("well: %w", server.Notice("it ends soon")) }},
	}
	s.start(t)
	for path, want := range map[string]string{"/readyz": "ok\n", "/readyz?verbose": "[+]good ok\n[+]old ok: it ends soon\nreadyz check passed\n"} {
		if got := s.do(t, "GET", path, "", "", ""); got.status != 200 || got.body != want {
			t.Errorf("%s: %d %q, want 200 %q", path, got.status, got.body, want)
		}
	}
}

// edited is a cluster-info that a person made malformed.
type edited struct{ server.ClusterInfo }

func (edited) JSON(context.Context) ([]byte, error) {
	return nil, fmt.Errorf("%w: users: 1 given", clusterinfo.ErrKubeconfig)
}

func TestMalformedClusterInfoIsAnError(t *testing.T) {
	s := newSite(t)
	s.ClusterInfo = edited{s.ClusterInfo}
	s.start(t)
	if got := s.do(t, "GET", infoPath, "", "", ""); got.status != 500 || !strings.Contains(got.body, `"kind":"Status"`) || !strings.Contains(got.body, "users: 1 given") {
		t.Errorf("got %d %s, want 500 with the cause", got.status, got.body)
	}
}

func TestMetricsHaveTheChecks(t *testing.T) {
	s := newSite(t)
	var failure error
	s.Status.Checks = []server.Check{
		{Name: "good", Ready: func(context.Context) error { return nil }},
		{Name: "old", Ready: func(context.Context) error { return server.Notice("it ends soon") }},
		{Name: "broken", Ready: func(context.Context) error { return failure }},
	}
	s.Status.Metrics = promhttp.HandlerFor(s.registry(), promhttp.HandlerOpts{})
	s.start(t)
	for value, err := range map[string]error{"0": errors.New("it is missing"), "1": nil} {
		failure = err
		got := s.do(t, "GET", "/metrics", adminBearer, "", "")
		for _, want := range []string{`kubejoin_ready{check="broken"} ` + value, `kubejoin_ready{check="good"} 1`, `kubejoin_ready{check="old"} 1`, `kubejoin_build_info{version="v0.0.0"} 1`} {
			if got.status != 200 || !strings.Contains(got.body, "\n"+want+"\n") {
				t.Errorf("got %d, want %s in\n%s", got.status, want, got.body)
			}
		}
	}
}

// Catches a client that disconnects and so makes the metric report a failure.
func TestCanceledRequestDoesNotFailChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		finish := make(chan struct{})
		s.Status.Checks = []server.Check{{Name: "slow", Ready: func(ctx context.Context) error {
			select {
			case <-finish:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}}}
		handler := s.Handler()
		ctx, cancel := context.WithCancel(t.Context())
		go handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/readyz", nil))
		synctest.Wait()
		cancel()
		synctest.Wait()
		close(finish)
		synctest.Wait()
		if ready := s.gauge(t, "kubejoin_ready", "slow"); ready != 1 {
			t.Errorf("got kubejoin_ready %v, want 1", ready)
		}
	})
}
