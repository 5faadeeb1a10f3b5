package kubefacts_test

import (
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func TestMain(m *testing.M) {
	cluster.Main(m)
}

// newClient returns an administrator's client of the shared cluster, with a changed configuration.
func newClient(t *testing.T, change func(*rest.Config)) kubernetes.Interface {
	t.Helper()
	config := cluster.Shared(t).AdminConfig()
	config.QPS = -1
	change(config)
	return must.Value(kubernetes.NewForConfig(config))(t)
}
