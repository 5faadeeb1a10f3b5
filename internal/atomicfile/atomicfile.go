// Package atomicfile writes a file wholly or not at all: a reader, and a machine that loses power, see
// either the old content or the new one.
package atomicfile

import (
	"errors"
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

// A Replacement takes the place of a file.
type Replacement struct {
	file      string
	temporary *os.File // in the same folder; nil after Write or Drop
}

// Prepare makes sure that a file can be written. The file stays as it is until Write.
func Prepare(file string) (*Replacement, error) {
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

// Drop leaves the file as it is. After Write it does nothing.
func (r *Replacement) Drop() {
	if r.temporary != nil {
		_ = errors.Join(r.temporary.Close(), os.Remove(r.temporary.Name())) // only a temporary file would stay
		r.temporary = nil
	}
}
