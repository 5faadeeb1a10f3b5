package outage

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/kubejoin/kubejoin/test/harness"
)

// writesOfKubejoin are audit rules that record each write to the kinds of objects that kubejoin writes.
const writesOfKubejoin = `- level: Metadata
  verbs: [create, update, patch, delete]
  resources:
  - {group: certificates.k8s.io}
  - {group: "", resources: [configmaps, secrets]}
- level: None
`

// A write is a write request, as recorded by an audit.k8s.io/v1 log.
type write struct {
	Verb string
	User struct{ Username string }
	// ObjectRef is the written object.
	ObjectRef      struct{ Resource, Namespace, Name, Subresource string }
	ResponseStatus struct{ Code int }
}

func writes(t *testing.T, a harness.AuditLog) []write {
	t.Helper()
	var all []write
	for line := range bytes.Lines(a.Content(t)) {
		var w write
		if err := json.Unmarshal(line, &w); err != nil {
			t.Logf("audit log: %v", err) // cut off when kube-apiserver was killed
			continue
		}
		all = append(all, w)
	}
	return all
}

// checkRequests fails the test if a CSR was approved or issued more than once, or if the API server refused such a
// write for another reason than a conflict.
func checkRequests(t *testing.T, a harness.AuditLog) {
	t.Helper()
	done := map[string]int{}
	refused := 0
	for _, w := range writes(t, a) {
		if w.ObjectRef.Resource != "certificatesigningrequests" || w.ObjectRef.Subresource == "" {
			continue
		}
		what := w.ObjectRef.Subresource + " of " + w.ObjectRef.Name
		switch w.ResponseStatus.Code {
		case 200:
			if done[what]++; done[what] > 1 {
				t.Errorf("%s: got %d writes, want 1", what, done[what])
			}
		case 409:
			refused++
		case 400, 403, 404, 422:
			t.Errorf("%s: got status %d, want 200 or a conflict", what, w.ResponseStatus.Code)
		}
	}
	if len(done) == 0 {
		t.Error("the audit log has no write to a CSR, want some to check")
	}
	t.Logf("%d writes to CSRs, each once; %d conflicts", len(done), refused)
}
