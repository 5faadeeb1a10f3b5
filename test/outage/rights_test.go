package outage

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
)

// TestWorksOnceRightsExist starts kubejoin before its RBAC exists, as may happen with a static pod. It catches a kubejoin
// that exits, or that needs a restart to use its rights.
func TestWorksOnceRightsExist(t *testing.T) {
	cluster.NeedRoot(t)
	harness.Parallel(t)
	s := harness.PrepareSite(t, cluster.Options{})
	rights := filepath.Join(harness.RepositoryFile(t, "deploy/manifests"), "rbac.yaml")
	s.RunKubectl(t, "delete", "-f", rights)
	p := harness.Start(t, s.WorkDir, s.Curlrc(), s.Flags...)
	p.Secrets, s.Program = s.Secrets, p
	harness.Wait(t, "a readiness without rights", func() error {
		list, err := exec.CommandContext(t.Context(), "curl", "--silent", "--insecure", "https://"+p.Endpoint+"/readyz").Output()
		if !strings.Contains(string(list), "[-]leader failed") || !strings.Contains(p.Log(), "forbidden") {
			return fmt.Errorf("/readyz: %s, %w", list, err)
		}
		return nil
	})
	s.RunKubectl(t, "apply", "-f", rights)
	p.WaitReady(t, s.CAFile())
	args, _ := p.JoinArgs(t, "?maxNodes=1")
	if _, err := s.Join(t.Context(), "late-1", args); err != nil {
		t.Error(err)
	}
}
