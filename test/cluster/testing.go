package cluster

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
)

// ForTest starts a control plane that ends with the test. When the test has failed it logs the
// end of what each component printed.
func ForTest(t testing.TB, o Options) *Cluster {
	t.Helper()
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

// Shared is one control plane with zero Options for all tests of a package, started by the
// first that asks. Tests share its state: each takes names of its own. The package needs
// [Main].
func Shared(t testing.TB) *Cluster {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if !shared.main {
		t.Fatal("cluster.Shared: the package needs 'func TestMain(m *testing.M) { cluster.Main(m) }'")
	}
	if shared.cluster == nil && shared.err == nil {
		// Not the test's context: the cluster outlives it.
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

// NeedRoot skips a test that joins nodes where it is not run as root; in CI it fails instead.
func NeedRoot(t testing.TB) {
	t.Helper()
	switch {
	case os.Geteuid() == 0:
	case os.Getenv("CI") != "":
		t.Fatal("joining a node needs root (mount namespaces), and in CI no test is skipped")
	default:
		t.Skip("joining a node needs root (mount namespaces): sudo env \"PATH=$PATH\" make test")
	}
}
