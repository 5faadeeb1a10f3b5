package rowstate

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/internal/host/atomicfile"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/signer/rotation"
)

// Files are the files of a CA: its certificates and its key. Both may be one file.
type Files struct {
	Cert, Key string
	// Rows is the file with the rows of the store; empty if replicas share the rows. With Rows, decrypting the stored
	// key also needs a file in the same folder. So a later copy of the rows and the old key do not reveal the new key.
	Rows string
	// Fixed says why kubejoin must not write the files, even if it has the permission; empty if it may write them.
	Fixed string

	beforeWrite func() error // for tests
}

var (
	// ErrEdited is wrapped if the files do not match any stage of the rotation.
	ErrEdited = errors.New("somebody changed it during the CA rotation")
	// ErrLeftBehind is wrapped if the rotation has ended, the files do not match its last stage, and kubejoin has no
	// key to update them.
	ErrLeftBehind = errors.New("it is from before the end of the CA rotation")
)

// Writable returns an error with the name of the file that kubejoin cannot replace.
func (f Files) Writable() error {
	if f.Fixed != "" {
		return errors.New(f.Fixed)
	}
	for _, path := range []string{f.Cert, f.Key} {
		r, err := atomicfile.Prepare(path)
		if err == nil {
			err = r.KeepOwner()
			r.Drop()
		}
		if err != nil {
			return fmt.Errorf("kubejoin cannot replace %s: %w", path, err)
		}
	}
	return nil
}

// A content is the content of the files. If certificate and key are in one file, both fields have its content.
type content struct{ cert, key []byte }

// read reads the files, with suffix added to their names.
func (f Files) read(suffix string) (c content, err error) {
	var err2 error
	c.cert, err = os.ReadFile(f.Cert + suffix)
	c.key, err2 = os.ReadFile(f.Key + suffix)
	return c, errors.Join(err, err2)
}

// of compares the content with a rotation. now reports whether it is exactly what the stage requires. known
// reports whether it has only certificates and a key of the rotation.
func (c content) of(r rotation.Rotation) (now, known bool, err error) {
	certs, err := pemfile.Certificates(c.cert)
	if err != nil {
		return false, false, err
	}
	key, err := pemfile.Key(c.key)
	if err != nil {
		return false, false, err
	}
	signsNew := rotation.Matches(key, r.New[0])
	signsOld := slices.ContainsFunc(r.Old, func(c *x509.Certificate) bool { return rotation.Matches(key, c) })
	known = (signsNew || signsOld) && within(certs, slices.Concat(r.Old, r.New))
	return known && signsNew == r.SignsNew() && within(certs, r.Trusted()) && within(r.Trusted(), certs), known, nil
}

// checkBehind returns an error if the files have a CA that an earlier rotation has replaced.
func (f Files) checkBehind(r rotation.Rotation) error {
	if r.HasKey { // follow checks this rotation itself
		r = rotation.Rotation{Replaced: r.Replaced}
	}
	if r.ID == "" && len(r.Replaced) == 0 {
		return nil
	}
	now, err := os.ReadFile(f.Cert)
	if err != nil {
		return err
	}
	certs, err := pemfile.Certificates(now)
	if err != nil {
		return fmt.Errorf("%s: %w", f.Cert, err)
	}
	if r.Outdated(certs...) {
		return fmt.Errorf("%s: %w; copy the CA files of another replica", f.Cert, ErrLeftBehind)
	}
	return nil
}

func within(some, all []*x509.Certificate) bool {
	return !slices.ContainsFunc(some, func(c *x509.Certificate) bool { return !slices.ContainsFunc(all, c.Equal) })
}

// Suffixes between the name of a file and the ID of a rotation. copySuffix is for the copy from before the rotation,
// secretSuffix for the file that decrypting the stored key needs.
const (
	copySuffix   = ".before-"
	secretSuffix = ".secret-"
)

// follow updates the files to match the stage of the rotation, and reports whether they have changed. The result
// depends only on the rotation, the new key, and the files from before the rotation, which follow copies. open decrypts
// the new key with the old key file and returns it in PEM. follow does not change files that do not belong to the
// rotation: see [ErrEdited].
func (f Files) follow(r rotation.Rotation, open func(oldKey []byte) ([]byte, error)) (changed bool, err error) {
	now, err := f.read("")
	if err != nil {
		return false, err
	}
	followed, known, err := now.of(r)
	if err != nil {
		return false, fmt.Errorf("%s: %w", f.Cert, err)
	}
	suffix := copySuffix + r.ID
	before, err := f.read(suffix)
	copied := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if unchanged, _, err := now.of(r.At(rotation.Prepare)); err == nil && unchanged && !copied && r.InProgress() {
		if err := f.copy(now, suffix); err != nil {
			return false, err
		}
		before, copied = now, true
	}
	finished, _, err := now.of(r.At(rotation.Finish))
	if err != nil {
		return false, err
	}
	switch {
	case followed && r.InProgress():
		return false, nil
	case finished && !copied && r.InProgress() && !r.Aborting:
		return false, nil // the store is older than the files: repeated steps have nothing to change
	case followed:
		return false, f.dropCopies()
	case !copied && !r.InProgress() && !known:
		return false, nil // the operator replaced the files after the rotation
	case !copied && !r.InProgress():
		return false, fmt.Errorf("%s: %w %s; copy the CA files of another replica", f.Cert, ErrLeftBehind, r.ID)
	case !known && !copied:
		return false, fmt.Errorf("%s: %w %s, or it had other CAs when that began; copy the CA files of another replica", f.Cert, ErrEdited, r.ID)
	case !known:
		return false, fmt.Errorf("%s: %w %s, want a file that kubejoin wrote; copy %s%s to it, then run: kubejoin ca status", f.Cert, ErrEdited, r.ID, f.Cert, suffix)
	case !copied:
		return false, fmt.Errorf("%s is of another stage of the CA rotation %s, and %s is missing; copy the CA files of another replica", f.Cert, r.ID, f.Cert+suffix)
	}
	if certs, err := pemfile.Certificates(now.cert); err != nil {
		return false, err
	} else if !within(r.Trusted(), certs) && r.TrustsNew() { // a writer of the store could add a CA
		if _, err := open(before.key); err != nil {
			return false, err
		}
	}
	newKey := func() ([]byte, error) {
		if signsNew, _, err := now.of(r.At(rotation.Switch)); err == nil && signsNew {
			return keyOf(now.key)
		}
		return open(before.key)
	}
	want, err := f.contents(r, before, newKey)
	if err != nil {
		return false, err
	}
	if f.Cert != f.Key && !bytes.Equal(now.key, want.key) { // at any time, the certificates must match the key
		if err := f.write(f.Cert, pemfile.Encode(r.At(rotation.Switch).Trusted()...)); err != nil {
			return false, err
		}
		if err := f.write(f.Key, want.key); err != nil {
			return true, err
		}
	}
	return true, f.write(f.Cert, want.cert)
}

// contents returns the contents of the files in a stage.
func (f Files) contents(r rotation.Rotation, before content, newKey func() ([]byte, error)) (want content, err error) {
	if !r.TrustsNew() {
		return before, nil
	}
	want = content{pemfile.Encode(r.Trusted()...), before.key}
	switch {
	case r.SignsNew():
		want.key, err = newKey()
	case f.Cert == f.Key:
		want.key, err = keyOf(before.key)
	}
	if f.Cert == f.Key {
		want.cert = append(want.cert, want.key...)
		want.key = want.cert
	}
	return want, err
}

// keyOf returns the content of a file except certificates.
func keyOf(file []byte) ([]byte, error) {
	var content bytes.Buffer
	blocks, err := pemfile.Blocks(file)
	for _, b := range blocks {
		if b.Type != pemfile.Certificate {
			_ = pem.Encode(&content, b)
		}
	}
	return content.Bytes(), err
}

// write replaces a file, which keeps its owner and mode, unless it has this content.
func (f Files) write(path string, content []byte) error {
	if now, err := os.ReadFile(path); err == nil && bytes.Equal(now, content) {
		return nil
	}
	if f.beforeWrite != nil {
		if err := f.beforeWrite(); err != nil {
			return err
		}
	}
	return atomicfile.Replace(path, content)
}

// copy makes a copy of the files from before the rotation.
func (f Files) copy(c content, suffix string) error {
	if err := f.write(f.Key+suffix, c.key); err != nil {
		return err
	}
	return f.write(f.Cert+suffix, c.cert)
}

// dropCopies deletes the copies of all rotations.
func (f Files) dropCopies() error {
	return errors.Join(drop(f.Cert, copySuffix, ""), drop(f.Key, copySuffix, ""))
}

// drop deletes the files that rotations have added beside a file, except files of the rotation with the ID keep. It
// also deletes incomplete files of an interrupted kubejoin, which may contain a key.
func drop(path, suffix, keep string) error {
	base, dir := filepath.Base(path), filepath.Dir(path)
	added := func(name string) bool {
		id := addedBy(name, base, suffix)
		return id != "" && id != keep
	}
	if err := atomicfile.Sweep(dir, func(name string) bool { return name == base || added(name) }); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !added(e.Name()) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) { // replicas may share files
			return err
		}
	}
	return nil
}

// addedBy returns the ID of the rotation that has added a file with a suffix beside file; empty if no rotation has.
func addedBy(name, file, suffix string) string {
	id, found := strings.CutPrefix(name, file+suffix)
	if !found || len(id) != 16 || strings.Trim(id, "0123456789abcdef") != "" {
		return ""
	}
	return id
}

// IsAdded reports whether a rotation has added the file name beside file.
func IsAdded(name, file string) bool {
	return addedBy(name, file, copySuffix)+addedBy(name, file, secretSuffix) != ""
}
