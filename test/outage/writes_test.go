package outage

import (
	"testing"

	"github.com/kubejoin/kubejoin/test/cluster"
)

// writesOfKubejoin are audit rules that record each write to the kinds of objects that kubejoin writes.
const writesOfKubejoin = `- level: Metadata
  verbs: [create, update, patch, delete]
  resources:
  - {group: certificates.k8s.io}
  - {group: "", resources: [configmaps, secrets]}
- level: None
`

// checkRequests fails the test if kubejoin approved or issued a CSR more than once, or if the API server refused such a
// write for another reason than a conflict.
func checkRequests(t *testing.T, a cluster.AuditLog) {
	t.Helper()
	done := map[string]int{}
	refused := 0
	for w, err := range a.Calls() {
		// Ignore cut lines: a killed kube-apiserver does not complete its last line.
		if err != nil || w.ObjectRef.Resource != "certificatesigningrequests" || w.ObjectRef.Subresource == "" {
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
