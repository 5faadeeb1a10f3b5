package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"time"
)

// file is a file of an archive, or a folder if its name ends in a slash.
type file struct {
	name    string
	mode    int64
	content []byte
}

// newArchive returns a tar archive in which root owns all files, and all files have the same time.
func newArchive(files []file, t time.Time) ([]byte, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content)), ModTime: t}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return archive.Bytes(), nil
}

// setTimes sets the times of all files in a compressed archive.
func setTimes(name string, t time.Time) error {
	old, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	unzip, err := gzip.NewReader(bytes.NewReader(old))
	if err != nil {
		return err
	}
	var files []file
	r := tar.NewReader(unzip)
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		files = append(files, file{header.Name, header.Mode, content})
	}
	archive, err := newArchive(files, t)
	if err != nil {
		return err
	}
	var zipped bytes.Buffer
	zip := gzip.NewWriter(&zipped)
	zip.Header = unzip.Header
	if _, err := zip.Write(archive); err != nil {
		return err
	}
	if err := zip.Close(); err != nil {
		return err
	}
	return write(name, zipped.Bytes())
}
