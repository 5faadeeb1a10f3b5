package test

import (
	"testing"

	"github.com/kubejoin/kubejoin/test/cluster"
)

// Without leader election there is no Lease kubejoin, and its name is refused all the same.
func TestDeniesNodeNameOfOwnLease(t *testing.T) {
	t.Parallel()
	s := newSite(t, cluster.Options{}, "--leader-elect=false")
	for _, flags := range [][]string{nil, {"--max-nodes=2"}, {"--node-name=kube*"}} {
		printed, stderr, code := s.command(t, append([]string{"token", "create"}, flags...)...) // which warns without a leader
		if code != 0 {
			t.Fatal(stderr)
		}
		token := s.created(t, printed)
		s.refuses(t, token, "kubejoin", "NodeNameNotAllowed", "kubejoin's own Lease")
	}
}
