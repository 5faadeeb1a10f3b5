package limits

import (
	"testing"

	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
)

// TestDeniesNodeNameOfOwnLease catches the node name "kubejoin" being issued if leader election is off and no such
// Lease exists.
func TestDeniesNodeNameOfOwnLease(t *testing.T) {
	harness.Parallel(t)
	s := harness.NewSite(t, cluster.Options{}, "--leader-elect=false")
	for _, flags := range [][]string{nil, {"--max-nodes=2"}, {"--node-name=kube*"}} {
		printed, stderr, code := s.RunKubejoin(t, append([]string{"token", "create"}, flags...)...) // prints a warning without a leader
		if code != 0 {
			t.Fatal(stderr)
		}
		token := s.ParseToken(t, printed)
		checkDenied(t, s, token, "kubejoin", "NodeNameNotAllowed", "kubejoin's own Lease")
	}
}
