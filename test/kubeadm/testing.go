package kubeadm

import (
	"path/filepath"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
	"github.com/kubejoin/kubejoin/test/cluster"
)

// ForTest creates a cluster without machines, and deletes it when the test ends. If the test failed, ForTest logs the end
// of each log, and keeps all logs below bin/test/kubeadm-logs. It skips tests like [Need].
func ForTest(t *testing.T) *Cluster {
	t.Helper()
	Need(t)
	c := must.Value(New(t.Context(), t.Output()))(t)
	t.Cleanup(func() {
		if t.Failed() {
			keepLogs(t, c)
		}
		if err := c.Delete(); err != nil {
			t.Errorf("deleting the cluster: %v", err)
		}
	})
	return c
}

// Need skips a test without root or the programs that a cluster needs. In CI the test fails instead.
func Need(t *testing.T) {
	t.Helper()
	cluster.NeedRoot(t)
	need.Programs(t, programs...)
}

func keepLogs(t *testing.T, c *Cluster) {
	t.Logf("logs of the machines:\n%s", c.Logs())
	root, err := cluster.Repository()
	if err != nil {
		t.Error(err)
		return
	}
	folder := filepath.Join(root, "bin", "test", "kubeadm-logs", t.Name())
	if err := c.KeepLogs(folder); err != nil {
		t.Error(err)
	}
	t.Logf("all logs are in %s", folder)
}
