package cluster

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/need"
)

// ForTest starts a control plane and closes it when the test ends. With -short it skips the test. If the test
// failed, ForTest logs the end of the log of each component.
func ForTest(t testing.TB, o Options) *Cluster {
	t.Helper()
	need.Long(t)
	if o.Progress == nil {
		o.Progress = t.Output()
	}
	c, err := Start(t.Context(), o)
	if err != nil {
		t.Fatalf("starting a control plane: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("logs of the control plane:\n%s", c.Logs())
		}
		if err := c.Close(); err != nil {
			t.Errorf("closing the control plane: %v", err)
		}
	})
	return c
}

// shared is the control plane of the test binary.
var shared struct {
	sync.Mutex
	main    bool
	cluster *Cluster
	err     error
}

// Main runs the tests of a package that uses [Shared]:
//
//	func TestMain(m *testing.M) { cluster.Main(m) }
func Main(m *testing.M) {
	shared.main = true
	code := m.Run()
	if shared.cluster != nil {
		if err := shared.cluster.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "closing the shared control plane:", err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// Shared returns one control plane with zero Options for all tests of a package. The first call starts it. With
// -short it skips the test. The tests share its state, so each test uses its own names. The package needs [Main].
func Shared(t testing.TB) *Cluster {
	t.Helper()
	need.Long(t)
	shared.Lock()
	defer shared.Unlock()
	if !shared.main {
		t.Fatal("cluster.Shared: the package needs 'func TestMain(m *testing.M) { cluster.Main(m) }'")
	}
	if shared.cluster == nil && shared.err == nil {
		// Do not use the context of the test, because the cluster runs longer than this test.
		shared.cluster, shared.err = Start(context.Background(), Options{Progress: t.Output()})
	}
	if shared.err != nil {
		t.Fatalf("starting the shared control plane: %v", shared.err)
	}
	c := shared.cluster
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("logs of the shared control plane:\n%s", c.Logs())
		}
	})
	return c
}

// NeedRoot skips a test that joins nodes if it does not run as root, or with -short. In CI, a test without root
// fails instead.
func NeedRoot(t testing.TB) {
	t.Helper()
	need.Long(t)
	need.Root(t) // joins need mount namespaces
}
