package server_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

func TestReadinessAndMetrics(t *testing.T) {
	s := newSite(t)
	failure := errors.New("it is dark")
	s.Status.Checks = []server.Check{
		{Name: "good", Ready: func(context.Context) error { return nil }},
		{Name: "old", Ready: func(context.Context) error { return fmt.Errorf("well: %w", api.Notice("it ends soon")) }},
		{Name: "bad", Ready: func(context.Context) error { return failure }},
	}
	s.Status.Metrics = promhttp.HandlerFor(s.registry(), promhttp.HandlerOpts{})
	s.start(t)
	want := func(path string, status int, parts ...string) {
		t.Helper()
		got := s.do(t, "GET", path, adminBearer, "", "")
		for _, part := range parts {
			if got.status != status || !strings.Contains("\n"+got.body, "\n"+part+"\n") {
				t.Errorf("%s: got %d %s, want %d %s", path, got.status, got.body, status, part)
			}
		}
	}
	want("/healthz", 200, "ok")
	want("/version", 200, `{"version":"v0.0.0","goVersion":"","platform":""}`)
	want("/readyz", 503, "[+]good ok\n[+]old ok: it ends soon\n[-]bad failed: it is dark\nreadyz check failed")
	want("/metrics", 200, `kubejoin_ready{check="bad"} 0`, `kubejoin_ready{check="good"} 1`, `kubejoin_ready{check="old"} 1`, `kubejoin_build_info{version="v0.0.0"} 1`)
	failure = nil
	want("/readyz", 200, "ok")
	want("/readyz?verbose", 200, "[+]good ok\n[+]old ok: it ends soon\n[+]bad ok\nreadyz check passed")
	want("/metrics", 200, `kubejoin_ready{check="bad"} 1`)
}
