package harness

import (
	"bytes"
	"encoding/json"
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

// A Call is a request to kube-apiserver, as an audit.k8s.io/v1 log has it.
type Call struct {
	Verb, RequestURI, UserAgent string
	User                        struct{ Username string }
	ObjectRef                   struct{ APIGroup, Resource, Namespace, Name, Subresource string }
	ResponseStatus              struct{ Code int }
}

// Calls returns what kube-apiserver recorded so far, without a last line that is not complete yet. Malformed are the lines
// that a killed kube-apiserver has cut off.
func (a AuditLog) Calls(t *testing.T) (all []Call, malformed []string) {
	t.Helper()
	for line := range bytes.Lines(a.Content(t)) {
		var c Call
		switch err := json.Unmarshal(line, &c); {
		case !bytes.HasSuffix(line, []byte("\n")):
		case err != nil:
			malformed = append(malformed, string(line))
		default:
			all = append(all, c)
		}
	}
	return all, malformed
}
