// Package atomicfile replaces a file completely or not at all. After a crash or a power failure, the file has either
// the old or the new content.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
)

// Write writes a file that only its owner can read.
func Write(file string, content []byte) error {
	r, err := Prepare(file)
	if err != nil {
		return err
	}
	return r.Write(content, 0o600)
}

// A Replacement is the pending replacement of a file.
type Replacement struct {
	file      string
	temporary *os.File // in the same folder; nil after Write or Drop
	mode      fs.FileMode
}

// Prepare checks that a file can be written. The file does not change until Write. Prepare refuses an existing file
// that is not a regular file, because Write would replace a device such as /dev/null, or a link such as /dev/stderr.
func Prepare(file string) (*Replacement, error) {
	whole, err := filepath.Abs(file)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(file); err == nil && !info.Mode().IsRegular() || strings.HasPrefix(whole, "/dev/") || strings.HasPrefix(whole, "/proc/") {
		return nil, fmt.Errorf("%s: want a regular file", file)
	}
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*") // mode 0600
	if err != nil {
		return nil, err
	}
	return &Replacement{file: file, temporary: f}, nil
}

// Replace writes a file, and keeps the owner and mode of the file that it replaces. Use it only if both files contain the
// same secrets. If no file exists, the new file has mode 0600.
func Replace(file string, content []byte) error {
	r, err := Prepare(file)
	if err != nil {
		return err
	}
	defer r.Drop()
	if err := r.KeepOwner(); err != nil {
		return err
	}
	return r.Write(content, 0o600)
}

// temporary matches the name of a file that Prepare created.
var temporary = regexp.MustCompile(`\A\.(.+)\.[0-9]+\z`)

// Sweep removes temporary files that a killed process left in a folder. It removes only temporary files for a name for
// which the function is returns true. Sweep ignores a missing folder.
func Sweep(dir string, is func(name string) bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, entry := range entries {
		if m := temporary.FindStringSubmatch(entry.Name()); m != nil && is(m[1]) {
			if err := os.Remove(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// KeepOwner makes Write keep the owner, the group, the mode and, on Linux, the ACL and other extended attributes of the file
// that it replaces. It does nothing if there is no such file. Use it only if the old file had the same secrets, because the
// readers of the old file can read the new content. It refuses a symbolic link, because Write would replace the link by a file.
func (r *Replacement) KeepOwner() error {
	info, err := os.Lstat(r.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = NoLink(r.file, info)
	}
	if err != nil {
		return err
	}
	r.mode = info.Mode().Perm()
	owner := info.Sys().(*syscall.Stat_t) // documented for these systems
	if err := r.temporary.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
		return fmt.Errorf("%s: keep its owner: %w", r.file, errors.Unwrap(err))
	}
	return keepAttributes(r.file, r.temporary.Name())
}

// NoLink returns an error for a symbolic link.
func NoLink(file string, info fs.FileInfo) error {
	if info.Mode()&fs.ModeSymlink != 0 {
		return fmt.Errorf("%s is a symbolic link, want a regular file: replace it by a copy, or give the file that it names", file)
	}
	return nil
}

// Write replaces the file. It can be called once. mode is the mode of a new file.
func (r *Replacement) Write(content []byte, mode fs.FileMode) error {
	f := r.temporary
	r.temporary = nil
	if r.mode != 0 {
		mode = r.mode
	}
	_, err := f.Write(content)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), r.file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	dir, err := os.Open(filepath.Dir(r.file))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Drop discards the replacement and keeps the file. After Write it does nothing.
func (r *Replacement) Drop() {
	if r.temporary != nil {
		_ = errors.Join(r.temporary.Close(), os.Remove(r.temporary.Name())) // on failure only a temporary file remains
		r.temporary = nil
	}
}
