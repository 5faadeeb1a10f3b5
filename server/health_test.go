package server_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/server"
)

func TestNoticeKeepsReadiness(t *testing.T) {
	s := newSite(t)
	s.Checks = []server.Check{
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
