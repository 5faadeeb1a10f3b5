package atomicfile_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kubejoin/kubejoin/internal/host/atomicfile"
	"github.com/kubejoin/kubejoin/internal/testing/must"
)

// Catches a command of root whose output is /dev/null, and that replaces the device by a file with a key.
func TestPrepareRefusesWhatIsNoRegularFile(t *testing.T) {
	dir := t.TempDir()
	pipe, link := filepath.Join(dir, "pipe"), filepath.Join(dir, "link")
	must.OK(t, syscall.Mkfifo(pipe, 0o600))
	must.OK(t, os.Symlink(pipe, link))
	for _, file := range []string{pipe, link, dir, "/dev/stderr", "/dev/fd/1", "/proc/self/fd/1"} {
		before := must.Value(os.Lstat(file))(t)
		if err := atomicfile.Write(file, []byte("secret")); err == nil || !strings.Contains(err.Error(), "want a regular file") {
			t.Errorf("%s: got %v, want a refusal", file, err)
		}
		if after, err := os.Lstat(file); err != nil || after.Mode() != before.Mode() {
			t.Errorf("%s: got %v, %v, want it unchanged", file, after, err)
		}
	}
	// First a new file, then a replaced one.
	for _, file := range []string{filepath.Join(dir, "file"), filepath.Join(dir, "file")} {
		must.OK(t, atomicfile.Write(file, []byte("secret")))
		if info, err := os.Stat(file); err != nil || info.Mode() != fs.FileMode(0o600) {
			t.Errorf("got %v, %v, want mode 0600", info, err)
		}
	}
	if err := atomicfile.Write(filepath.Join(dir, "none", "file"), nil); err == nil {
		t.Error("wrote into a folder that does not exist")
	}
}

// Another user, for example of etcd, may read the file. Catches a renewal after which that user cannot read the file.
func TestKeepOwnerKeepsOwnerGroupAndMode(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write := func(content string) {
		t.Helper()
		r := must.Value(atomicfile.Prepare(file))(t)
		must.OK(t, r.KeepOwner())
		must.OK(t, r.Write([]byte(content), 0o600))
	}
	check := func(owner, group uint32, mode fs.FileMode) {
		t.Helper()
		info := must.Value(os.Stat(file))(t)
		if s := info.Sys().(*syscall.Stat_t); s.Uid != owner || s.Gid != group || info.Mode() != mode {
			t.Errorf("got owner %d, group %d and mode %v, want %d, %d and %v", s.Uid, s.Gid, info.Mode(), owner, group, mode)
		}
	}
	owner, group := uint32(os.Getuid()), uint32(os.Getgid())
	write("new")
	check(owner, group, 0o600)
	must.OK(t, os.Chmod(file, 0o640))
	if owner == 0 { // only root may change owners
		owner, group = 12, 34
		must.OK(t, os.Chown(file, int(owner), int(group)))
	}
	write("replaced")
	check(owner, group, 0o640)
}
