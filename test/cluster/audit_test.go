package cluster_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
)

// TestAuditLogYieldsWholeLines catches a wrong call from an incomplete line, and a cut line that hides later lines.
func TestAuditLogYieldsWholeLines(t *testing.T) {
	dir := t.TempDir()
	log := must.Value(cluster.NewAuditLog(dir, "- level: None\n"))(t)
	must.OK(t, os.WriteFile(filepath.Join(dir, "audit.log"), []byte(`{"verb":"get","requestReceivedTimestamp":"2026-11-29T19:46:01.123456Z","sourceIPs":["127.0.0.1"]}
{"verb":"li{"verb":"list"}
{"verb":"watch"}
{"verb":"delete"}`), 0o600))
	var got []string
	for c, err := range log.Calls() {
		if err != nil {
			c.Verb = "error"
		}
		got = append(got, c.Verb)
	}
	if want := []string{"get", "error", "watch"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
