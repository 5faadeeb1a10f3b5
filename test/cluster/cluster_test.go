package cluster_test

import (
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/test/cluster"
)

func TestMain(m *testing.M) { cluster.Main(m) }

func TestControlPlane(t *testing.T) {
	c := cluster.Shared(t)
	out, err := c.Kubectl(t.Context(), "get", "configmaps,secrets", "-A")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"kubeadm-config", "kubelet-config", "cluster-info"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %s in the cluster:\n%s", want, out)
		}
	}
	if strings.Contains(out, "bootstrap-token-") {
		t.Errorf("a token is left over:\n%s", out)
	}
}
