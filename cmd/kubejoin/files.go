package main

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/host/atomicfile"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/spf13/cobra"
)

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil || !errors.Is(err, fs.ErrNotExist)
}

// readInput reads a file of at most limit bytes, or standard input if file is -, until the context of cmd ends.
func readInput(cmd *cobra.Command, file string, limit int64) ([]byte, error) {
	in := cmd.InOrStdin()
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }() // read only
		in = f
	} else {
		file = "standard input"
		defer waiting{what: "for the end of standard input"}.begin(cmd)()
	}
	var content []byte
	var err error
	read := make(chan struct{})
	go func() {
		defer close(read)
		content, err = io.ReadAll(io.LimitReader(in, limit+1))
	}()
	select {
	case <-read:
	case <-cmd.Context().Done():
		return nil, cmd.Context().Err()
	}
	if int64(len(content)) > limit {
		err = fmt.Errorf("%s is too large, want at most %d bytes", file, limit)
	}
	return content, err
}

// isStdout reports whether --output-file means standard output. kubejoin must not replace the link /dev/stdout by a file.
func isStdout(file string) bool { return file == "" || file == "-" || file == "/dev/stdout" }

// emit writes content to a file that only its owner can read, or to stdout. The content may be a credential.
func emit(file string, content []byte, stdout io.Writer) error {
	if isStdout(file) {
		_, err := stdout.Write(content)
		return err
	}
	return atomicfile.Write(file, content)
}

// A destination is an output that was checked to be writable.
type destination struct {
	write func(chain []byte) error
	drop  func() // removes the output if nothing was written; does nothing after write
}

// destination opens the output before the request. Without an output, the certificate would be lost, and with it a slot of
// the token, maybe the only one.
func (o *signOptions) destination(stdout io.Writer) (destination, error) {
	if isStdout(o.file) {
		return destination{func(chain []byte) error { _, err := stdout.Write(chain); return err }, func() {}}, nil
	}
	const anybody = 0o644
	if info, err := os.Lstat(o.file); err == nil && !info.Mode().IsRegular() { // a pipe or device: write to it, do not replace it
		f, err := os.OpenFile(o.file, os.O_WRONLY|os.O_CREATE, anybody)
		if err != nil {
			return destination{}, err
		}
		return destination{func(chain []byte) error {
			if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
				if err := f.Truncate(0); err != nil {
					return errors.Join(err, f.Close())
				}
			}
			_, err := f.Write(chain)
			return errors.Join(err, f.Close())
		}, func() { _ = f.Close() }}, nil
	}
	r, err := atomicfile.Prepare(o.file)
	if err != nil {
		return destination{}, err
	}
	return destination{func(chain []byte) error { return r.Write(chain, anybody) }, r.Drop}, nil
}

func readKey(file string) (crypto.Signer, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	key, err := pemfile.Key(content)
	if err != nil {
		err = fmt.Errorf("%s: %w", file, err)
	}
	return key, err
}

// readCAs reads the certificates in the CA bundle of --ca-file.
func readCAs(file string) ([]*x509.Certificate, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--ca-file: %w", err)
	}
	cas, err := clusterinfo.ParseCAs(content)
	if err != nil {
		return nil, fmt.Errorf("--ca-file: %s: %w", file, err)
	}
	return cas, nil
}

// bundle returns certificates in PEM.
func bundle(cas []*x509.Certificate) (content []byte) {
	for _, ca := range cas {
		content = append(content, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw})...)
	}
	return content
}
