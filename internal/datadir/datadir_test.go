//go:build unix

package datadir_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kubejoin/kubejoin/internal/datadir"
	"github.com/kubejoin/kubejoin/internal/testing/must"
)

func TestOpenRefusesAFolderThatOthersCanRead(t *testing.T) {
	dir := datadir.Dir(filepath.Join(t.TempDir(), "data"))
	old := syscall.Umask(0)
	err := dir.Open()
	syscall.Umask(old)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(string(dir)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("made with mode %04o, %v; want 0700", info.Mode().Perm(), err)
	}
	for bit := os.FileMode(1); bit <= 0o040; bit <<= 1 {
		mode := 0o700 | bit
		must.OK(t, os.Chmod(string(dir), mode))
		if err := dir.Open(); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("mode %04o", mode)) || !strings.Contains(err.Error(), ": chmod ") {
			t.Errorf("mode %04o: %v, want a refusal with the command that mends it", mode, err)
		}
	}
	must.OK(t, os.Chmod(string(dir), 0o500))
	if err := dir.Open(); err != nil {
		t.Errorf("mode 0500: %v", err)
	}
}
