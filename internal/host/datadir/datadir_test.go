//go:build unix

package datadir_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kubejoin/kubejoin/internal/host/datadir"
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

// Catches a kubejoin that creates a new store in a file that has lost its content.
func TestCheckStoreRefusesEmptyFileBesideOthers(t *testing.T) {
	for _, other := range []string{datadir.CA, datadir.Bundle, ""} {
		for _, content := range []string{"", "x", "none"} {
			dir := datadir.Dir(t.TempDir())
			if other != "" {
				must.OK(t, os.WriteFile(dir.Path(other), nil, 0o600))
			}
			if content != "none" {
				must.OK(t, os.WriteFile(dir.Path(datadir.Store), []byte(content), 0o600))
			}
			err := dir.CheckStore()
			if wanted := content == "" && other != ""; wanted && (err == nil || !strings.Contains(err.Error(), dir.Path(datadir.Store)+" is empty, although "+other)) || !wanted && err != nil {
				t.Errorf("%q with content %q: got %v", other, content, err)
			}
		}
	}
}
