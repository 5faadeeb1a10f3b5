package atomicfile_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kubejoin/kubejoin/internal/atomicfile"
)

// Catches that a command of root with an output such as /dev/null replaces the device with a file that has a key.
func TestPrepareRefusesWhatIsNoRegularFile(t *testing.T) {
	dir := t.TempDir()
	pipe, link := filepath.Join(dir, "pipe"), filepath.Join(dir, "link")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(pipe, link); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{pipe, link, dir} {
		before, err := os.Lstat(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := atomicfile.Write(file, []byte("secret")); err == nil || !strings.Contains(err.Error(), "want a regular file") {
			t.Errorf("%s: got %v, want a refusal", file, err)
		}
		if after, err := os.Lstat(file); err != nil || after.Mode() != before.Mode() {
			t.Errorf("%s: got %v, %v, want it unchanged", file, after, err)
		}
	}
	for _, file := range []string{filepath.Join(dir, "file"), filepath.Join(dir, "file")} { // new, then replaced
		if err := atomicfile.Write(file, []byte("secret")); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(file); err != nil || info.Mode() != fs.FileMode(0o600) {
			t.Errorf("got %v, %v, want mode 0600", info, err)
		}
	}
	if err := atomicfile.Write(filepath.Join(dir, "none", "file"), nil); err == nil {
		t.Error("wrote into a folder that does not exist")
	}
}
