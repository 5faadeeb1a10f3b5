package access

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/harness"
)

// kubejoinUser is the service account that the manifests create for kubejoin.
const kubejoinUser = "system:serviceaccount:kubejoin-system:kubejoin"

// A call is a request to kube-apiserver, as recorded by an audit.k8s.io/v1 log.
type call struct {
	Verb           string
	RequestURI     string
	ObjectRef      struct{ APIGroup, Resource, Namespace, Name, Subresource string }
	ResponseStatus struct{ Code int }
}

func (c call) String() string { return c.Verb + " " + c.RequestURI }

// newCallLog makes kube-apiserver log every request of kubejoin.
func newCallLog(t *testing.T) harness.AuditLog {
	t.Helper()
	return harness.NewAuditLog(t, "- {level: Metadata, users: [\""+kubejoinUser+"\"]}\n- level: None\n")
}

// calls returns the logged calls about objects, without repetitions. It skips a last line that is not complete yet.
func calls(t *testing.T, a harness.AuditLog) []call {
	t.Helper()
	var all []call
	for line := range bytes.Lines(a.Content(t)) {
		var c call
		if !bytes.HasSuffix(line, []byte("\n")) {
			continue
		}
		must.OK(t, json.Unmarshal(line, &c))
		if c.ObjectRef.Resource != "" && !slices.Contains(all, c) {
			all = append(all, c)
		}
	}
	return all
}
