package outage

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
)

// TestReplacesSilentConnections silences all connections to the API server. It catches a kubejoin that waits for these
// connections instead of opening new ones.
func TestReplacesSilentConnections(t *testing.T) {
	harness.Parallel(t)
	s := harness.PrepareSite(t, cluster.Options{})
	p := must.Value(cluster.NewProxy(s.Address, nil))(t)
	t.Cleanup(p.Close)
	kubeconfig := must.Value(os.ReadFile(s.OwnKubeconfig))(t)
	through := filepath.Join(s.WorkDir, "through.conf")
	must.OK(t, os.WriteFile(through, bytes.ReplaceAll(kubeconfig, []byte(s.Address), []byte(p.Address())), 0o600))
	s.Start(t, "--kubeconfig="+through)
	s.WaitLeader(t)
	l := harness.NewLedger(t, s.Cluster)
	machine := harness.AsMachine(t, s.Cluster)
	must.OK(t, harness.CreateRequest(t.Context(), machine, "before", "kubernetes.io/kube-apiserver-client-kubelet", "worker-1"))
	l.WaitIssued(t, []string{"before"})

	p.Silence()
	began := time.Now()
	must.OK(t, harness.CreateRequest(t.Context(), machine, "after", "kubernetes.io/kube-apiserver-client-kubelet", "worker-2"))
	var m minted
	if _, err := m.ask(t.Context(), s.Program, s.Bearer(t)); err != nil {
		t.Error(err)
	}
	took := time.Since(began)
	last := l.WaitIssued(t, []string{"after"}).Sub(began)
	t.Logf("a join command after %s, a certificate after %s; responses: %v", took.Round(time.Millisecond), last.Round(time.Millisecond), m.statuses)
	if max(took, last) > 35*time.Second {
		t.Errorf("join command after %s, certificate after %s, want at most 35s: silent connections time out after 15 s", took, last)
	}
	m.check(t, s.Client())
	if strings.Count(s.Log(), "became leader, starting controllers") > 2 {
		t.Error("kubejoin became leader more than twice, want at most 2")
	}
}
