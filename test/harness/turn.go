package harness

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
)

// Parallel is [testing.T.Parallel] across packages: all packages together run at most -parallel tests at once. go test runs
// several packages at once, and many tests measure time.
func Parallel(t *testing.T) {
	t.Helper()
	t.Parallel()
	slots := must.Value(strconv.Atoi(flag.Lookup("test.parallel").Value.String()))(t)
	began := time.Now()
	for {
		for i := range slots {
			unlock, err := lock("slot-"+strconv.Itoa(i), syscall.LOCK_EX|syscall.LOCK_NB)
			if err == nil {
				t.Cleanup(unlock)
				if waited := time.Since(began); waited > time.Second {
					t.Logf("waited %s for tests of other packages", waited.Round(time.Second))
				}
				return
			}
			if !errors.Is(err, syscall.EWOULDBLOCK) {
				t.Fatal(err)
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// lock calls [cluster.Flock] for a file below bin/test of the repository.
func lock(name string, how int) (unlock func(), err error) {
	root, err := cluster.Repository()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(root, "bin", "test")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return cluster.Flock(filepath.Join(dir, name+".lock"), how)
}
