package test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// auditPolicy notes all writes of what kubejoin writes.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  verbs: [create, update, patch, delete]
  resources:
  - {group: certificates.k8s.io}
  - {group: "", resources: [configmaps, secrets]}
- level: None
`

// An auditLog is kube-apiserver's own record of each write that reached it, also of those that
// it refused, which no watch shows.
type auditLog struct{ policy, file string }

func newAuditLog(t *testing.T) auditLog {
	t.Helper()
	dir := t.TempDir()
	a := auditLog{filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")}
	if err := os.WriteFile(a.policy, []byte(auditPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		content, err := os.ReadFile(a.file)
		if err != nil {
			t.Error(err)
		}
		noForms(t, "the URLs that kube-apiserver saw", string(content))
	})
	return a
}

// flags are kube-apiserver's.
func (a auditLog) flags() []string {
	return []string{"--audit-policy-file=" + a.policy, "--audit-log-path=" + a.file}
}

// A write is a request as audit.k8s.io/v1 has it.
type write struct {
	Verb string
	User struct{ Username string }
	// ObjectRef says what was written.
	ObjectRef      struct{ Resource, Namespace, Name, Subresource string }
	ResponseStatus struct{ Code int }
}

func (a auditLog) writes(t *testing.T) []write {
	t.Helper()
	content, err := os.ReadFile(a.file)
	if err != nil {
		t.Fatal(err)
	}
	var all []write
	for line := range bytes.Lines(content) {
		var w write
		if err := json.Unmarshal(line, &w); err != nil {
			t.Logf("audit log: %v", err) // cut off when kube-apiserver was killed
			continue
		}
		all = append(all, w)
	}
	return all
}

// checkRequests fails the test if any CSR was approved or given a certificate more than once, or
// if the API server had to refuse either for another reason than that the object had changed.
func (a auditLog) checkRequests(t *testing.T) {
	t.Helper()
	done := map[string]int{}
	refused := 0
	for _, w := range a.writes(t) {
		if w.ObjectRef.Resource != "certificatesigningrequests" || w.ObjectRef.Subresource == "" {
			continue
		}
		what := w.ObjectRef.Subresource + " of " + w.ObjectRef.Name
		switch w.ResponseStatus.Code {
		case 200:
			if done[what]++; done[what] > 1 {
				t.Errorf("%s was written %d times", what, done[what])
			}
		case 409:
			refused++
		case 400, 403, 404, 422:
			t.Errorf("%s was refused: %d", what, w.ResponseStatus.Code)
		}
	}
	if len(done) == 0 {
		t.Error("the audit log has no write of a CSR: this check could not fail")
	}
	t.Logf("%d writes of CSRs, each once; %d came too late and changed nothing", len(done), refused)
}
