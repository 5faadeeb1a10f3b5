package harness

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
)

// An AuditLog is kube-apiserver's own record of the requests that reached it. It also has refused writes, which no watch
// shows.
type AuditLog struct{ policy, file string }

// NewAuditLog records what the rules of an audit policy select. When the test ends, it looks for secrets in the log.
func NewAuditLog(t *testing.T, rules string) AuditLog {
	t.Helper()
	need.Long(t)
	dir := t.TempDir()
	a := AuditLog{filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")}
	must.OK(t, os.WriteFile(a.policy, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n"+rules), 0o600))
	t.Cleanup(func() {
		content, err := os.ReadFile(a.file)
		if err != nil {
			t.Error(err)
		}
		noForms(t, "the URLs that kube-apiserver saw", string(content))
	})
	return a
}

// Flags are the flags of kube-apiserver.
func (a AuditLog) Flags() []string {
	return []string{"--audit-policy-file=" + a.policy, "--audit-log-path=" + a.file}
}

// Content is what kube-apiserver recorded so far, one JSON document a line.
func (a AuditLog) Content(t *testing.T) []byte {
	t.Helper()
	return ReadFile(t, a.file)
}
