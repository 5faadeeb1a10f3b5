package pemfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
)

// ErrExposed means that every user of the machine may read or write a private file.
var ErrExposed = errors.New("file is accessible to every user")

// Secret are the mode bits that a file with a key or a passphrase must not have.
const Secret fs.FileMode = 0o006

// ReadPrivate reads a file. It returns an error if the mode has one of the given bits. The group may have access,
// because the files of a Secret in a pod belong to a group.
func ReadPrivate(path string, bits fs.FileMode) (content []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if mode := info.Mode(); runtime.GOOS != "windows" && mode.IsRegular() && mode.Perm()&bits != 0 {
		return nil, fmt.Errorf("%s: %w: mode is %04o, want at most %04o (in a Secret volume, set defaultMode)", path, ErrExposed, mode.Perm(), mode.Perm()&^bits)
	}
	content, err = io.ReadAll(io.LimitReader(f, maxPrivate+1))
	if err == nil && len(content) > maxPrivate {
		err = fmt.Errorf("%s: want at most %d bytes", path, maxPrivate)
	}
	return content, err
}

// maxPrivate is the maximum size of a file in bytes.
const maxPrivate = 1 << 20
