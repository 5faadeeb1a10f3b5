// Package atomicfile replaces a file completely or not at all. After a crash or a power failure, the file has either
// the old or the new content.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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
}

// Prepare checks that a file can be written. The file does not change until Write. Prepare refuses a file that exists
// and is not a regular one, because Write would replace a device such as /dev/null.
func Prepare(file string) (*Replacement, error) {
	if info, err := os.Stat(file); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: want a regular file", file)
	}
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*") // mode 0600
	if err != nil {
		return nil, err
	}
	return &Replacement{file, f}, nil
}

// Write replaces the file. It can be called once.
func (r *Replacement) Write(content []byte, mode fs.FileMode) error {
	f := r.temporary
	r.temporary = nil
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
