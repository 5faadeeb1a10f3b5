//go:build unix

package trustedpath_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kubejoin/kubejoin/internal/host/trustedpath"
	"github.com/kubejoin/kubejoin/internal/testing/need"
)

// stranger is the ID of a user and a group other than the caller.
const stranger = 61234

func TestChecksOwnerAndModeOnTheWay(t *testing.T) {
	const file, folder, above = "above/folder/file", "above/folder", "above"
	type step func(t *testing.T, path string)
	mode := func(m fs.FileMode) step {
		return func(t *testing.T, path string) { must(t, os.Chmod(path, m)) }
	}
	owner := func(uid, gid int) step {
		return func(t *testing.T, path string) { must(t, os.Lchown(path, uid, gid)) }
	}
	link := func(target string) step {
		return func(t *testing.T, path string) {
			must(t, os.Rename(path, filepath.Join(filepath.Dir(path), target)))
			must(t, os.Symlink(target, path))
		}
	}
	for name, c := range map[string]struct {
		at    string
		do    []step
		fault string // the path that the error names; empty for no error
		want  string
	}{
		"nothing wrong":                      {at: file},
		"file that the world can read":       {at: file, do: []step{mode(0o644)}},
		"file that its group can write":      {at: file, do: []step{mode(0o620)}, fault: file, want: "mode 0620, so other users can write to it; if you trust the content of this path, run: chmod go-w "},
		"file that the world can write":      {at: file, do: []step{mode(0o602)}, fault: file, want: "mode 0602"},
		"file of another user":               {at: file, do: []step{owner(stranger, 0)}, fault: file, want: "owner 61234, group 0 and mode 0600; want owner root, "},
		"folder of another user":             {at: folder, do: []step{owner(stranger, 0)}, fault: folder, want: "want owner root, "},
		"folder above of another user":       {at: above, do: []step{owner(stranger, 0)}, fault: above, want: "want owner root, "},
		"folder above that the world writes": {at: above, do: []step{mode(0o777)}, fault: above, want: "mode 0777, so other users can replace its contents; use another one, or: chmod go-w "},
		"folder above with the sticky bit":   {at: above, do: []step{mode(0o777 | fs.ModeSticky)}},
		"folder above of the caller's group": {at: above, do: []step{mode(0o775)}},
		"folder above of another group":      {at: above, do: []step{mode(0o775), owner(0, stranger)}, fault: above, want: "group 61234 and mode 0775"},
		"world-writable in the own group":    {at: above, do: []step{mode(0o757)}, fault: above, want: "mode 0757"},
		"link to a file":                     {at: file, do: []step{link("target")}},
		"link of another user":               {at: file, do: []step{link("target"), owner(stranger, 0)}, fault: file, want: "want owner root, "},
		"link to a file of another user":     {at: file, do: []step{owner(stranger, 0), link("target")}, fault: "above/folder/target", want: "want owner root, "},
		"link to a folder that others write": {at: folder, do: []step{mode(0o777), link("target")}, fault: "above/target", want: "mode 0777"},
	} {
		t.Run(name, func(t *testing.T) {
			need.Root(t) // gives a file to another user
			dir := t.TempDir()
			must(t, os.MkdirAll(filepath.Join(dir, folder), 0o700))
			must(t, os.WriteFile(filepath.Join(dir, file), nil, 0o600))
			for _, do := range c.do {
				do(t, filepath.Join(dir, c.at))
			}
			err := trustedpath.Check(filepath.Join(dir, file))
			if c.fault == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if path := filepath.Join(dir, c.fault); err == nil || !strings.Contains(err.Error(), path+" has owner ") || !strings.HasSuffix(err.Error(), path) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want an error about %s with %q and a command", err, path, c.want)
			}
		})
	}
}

// In a Secret volume of a pod, files belong to root and the pod's group may read them. Their paths lead through two
// symbolic links in a folder that everyone may write to.
func TestTrustsSecretVolume(t *testing.T) {
	need.Root(t) // gives a file to another user
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "..2026_11_22"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "..2026_11_22/tls.key"), nil, 0o640))
	must(t, os.Chown(filepath.Join(dir, "..2026_11_22/tls.key"), 0, stranger))
	must(t, os.Symlink("..2026_11_22", filepath.Join(dir, "..data")))
	must(t, os.Symlink("..data/tls.key", filepath.Join(dir, "tls.key")))
	must(t, os.Chown(dir, 0, stranger))
	must(t, os.Chmod(dir, 0o777|fs.ModeSticky|fs.ModeSetgid))
	if err := trustedpath.Check(filepath.Join(dir, "tls.key")); err != nil {
		t.Error(err)
	}
}

func TestTrustsOnlyRootAndCaller(t *testing.T) {
	need.Root(t) // gives a file to another user
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o755))
	must(t, os.Chmod(filepath.Dir(dir), 0o755))
	for name, owner := range map[string]int{"root's": 0, "own": stranger, "another's": stranger + 1} {
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
		must(t, os.Chown(filepath.Join(dir, name), owner, 0))
	}
	must(t, syscall.Setreuid(-1, stranger))
	defer func() { must(t, syscall.Setreuid(-1, 0)) }()
	for _, name := range []string{"root's", "own"} {
		if err := trustedpath.Check(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	if err := trustedpath.Check(filepath.Join(dir, "another's")); err == nil || !strings.Contains(err.Error(), "want owner root or 61234, ") {
		t.Errorf("%v, want an error about the owner", err)
	}
}

func TestFollowsLinksOfThePathAsTheSystemDoes(t *testing.T) {
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "a/b"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "a/file"), nil, 0o600))
	must(t, os.Symlink(filepath.Join(dir, "a/b/../b"), filepath.Join(dir, "absolute")))
	must(t, os.Symlink("absolute/.././file", filepath.Join(dir, "link")))
	must(t, os.Symlink("loop", filepath.Join(dir, "loop")))
	t.Chdir(dir)
	for _, path := range []string{"link", "./absolute/../file", "a//file", "a"} {
		if err := trustedpath.Check(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, path := range []string{"missing", "a/file/below", "loop"} {
		if err := trustedpath.Check(path); err == nil {
			t.Errorf("%s: no error", path)
		}
	}
}

// A shell passes open files to commands by names such as /dev/fd/63.
func TestTrustsOpenFilesOfTheCaller(t *testing.T) {
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		t.Skip("this system has no /proc/self/fd")
	}
	read, write, err := os.Pipe()
	must(t, err)
	defer func() { _, _ = read.Close(), write.Close() }()
	unnamed, err := os.CreateTemp(t.TempDir(), "")
	must(t, err)
	defer func() { _ = unnamed.Close() }()
	must(t, os.Remove(unnamed.Name()))
	for _, f := range []*os.File{read, unnamed} {
		if err := trustedpath.Check(filepath.Join("/proc/self/fd", fmt.Sprint(f.Fd()))); err != nil {
			t.Error(err)
		}
	}
	must(t, unnamed.Chmod(0o602))
	if err := trustedpath.Check(filepath.Join("/proc/self/fd", fmt.Sprint(unnamed.Fd()))); err == nil {
		t.Error("no error for an open file that the world can write")
	}
}

// Another user may choose the name of a folder, which must not become a command in the error.
func TestErrorQuotesPathsThatOtherUsersChose(t *testing.T) {
	for name, want := range map[string]string{
		"a b'$(id)":       `/a b'\''$(id)'`,
		"line\nbreak\x1b": "chmod go-w PATH",
	} {
		dir := filepath.Join(t.TempDir(), name)
		must(t, os.Mkdir(dir, 0o700))
		must(t, os.Chmod(dir, 0o777))
		err := trustedpath.Check(dir)
		if err == nil || !strings.Contains(err.Error(), want) || strings.ContainsAny(err.Error(), "\n\x1b") {
			t.Errorf("%q, want %q in it", err, want)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
