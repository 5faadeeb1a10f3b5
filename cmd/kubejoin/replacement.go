package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// writeFile writes a file that only its owner can read, wholly or not at all.
func writeFile(file string, content []byte) error {
	r, err := replace(file)
	if err != nil {
		return err
	}
	return r.write(content, 0o600)
}

// A replacement takes the place of a file, wholly or not at all.
type replacement struct {
	file      string
	temporary *os.File // beside it; nil once it is written or dropped
}

// replace makes sure that a file can be written, and leaves it as it is until write.
func replace(file string) (*replacement, error) {
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*") // mode 0600
	if err != nil {
		return nil, err
	}
	return &replacement{file, f}, nil
}

// write puts content in the place of the file, once.
func (r *replacement) write(content []byte, mode fs.FileMode) error {
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

// drop leaves the file as it is, unless it is written already.
func (r *replacement) drop() {
	if r.temporary != nil {
		_ = errors.Join(r.temporary.Close(), os.Remove(r.temporary.Name())) // nobody misses it
		r.temporary = nil
	}
}
