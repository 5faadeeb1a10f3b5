package harness

import (
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
	"github.com/kubejoin/kubejoin/test/cluster"
)

// NewAuditLog records the requests that the rules of an audit policy select. When the test ends, it looks for secrets in
// the log.
func NewAuditLog(t *testing.T, rules string) cluster.AuditLog {
	t.Helper()
	need.Long(t)
	a := must.Value(cluster.NewAuditLog(t.TempDir(), rules))(t)
	t.Cleanup(func() {
		content, err := a.Content()
		if err != nil {
			t.Error(err)
		}
		noForms(t, "the URLs that kube-apiserver saw", string(content))
	})
	return a
}
