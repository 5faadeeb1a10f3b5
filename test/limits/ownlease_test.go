package limits

import (
	"testing"

	"github.com/kubejoin/kubejoin/server/controlplane/leases"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
)

// TestDeniesNodeNameOfOwnLease catches a node that takes the name of a Lease before kubejoin has created it.
func TestDeniesNodeNameOfOwnLease(t *testing.T) {
	harness.Parallel(t)
	s := harness.NewSite(t, cluster.Options{}, "--leader-elect=false")
	for _, flags := range [][]string{nil, {"--max-nodes=2"}, {"--node-name=kube*"}} {
		printed, stderr, code := s.RunKubejoin(t, append([]string{"token", "create"}, flags...)...) // prints a warning without a leader
		if code != 0 {
			t.Fatal(stderr)
		}
		token := s.ParseToken(t, printed)
		checkDenied(t, s, token, leases.Name, "NodeNameNotAllowed", "kubejoin's own Lease")
	}
}
