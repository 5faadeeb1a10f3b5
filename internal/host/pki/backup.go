package pki

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/kubejoin/kubejoin/internal/host/atomicfile"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer/rotation"
)

// Backups is the folder below /etc/kubernetes with one folder for each rotation.
const Backups = "kubejoin-ca"

const (
	// unfinished is the suffix of a folder that is being created or removed.
	unfinished = ".unfinished"

	originalsDir, indexFile = "original", "index.json"

	maxFile = 1 << 20
)

// signedDirs maps each CA to the folder with the files that it signed again.
var signedDirs = map[rotation.From]string{rotation.FromNew: "signed", rotation.FromOld: "signed-old"}

// A backup has the files from before the rotation, the newly signed files, and how far Apply got.
type backup struct {
	dir       string
	originals contents
	signed    signed
	index     index
}

// An index is the part of a backup that changes from stage to stage.
type index struct {
	// Stage is the last stage that the host reached.
	Stage rotation.Stage `json:"stage"`
	// Pins are the CA pins that the operator gave.
	Pins []string `json:"pins,omitempty"`
	// Written maps each file to the SHA-256 of every content that Apply wrote or was about to write. Somebody else
	// wrote any other content.
	Written map[string][]string `json:"written,omitempty"`
	// Restart are the static pods that may not have read all that Apply wrote.
	Restart []string `json:"restart,omitempty"`
	// Boots maps each file to the boot during which Apply last wrote it.
	Boots map[string]boot `json:"boots,omitempty"`
}

// upToDate records that a static pod has read all that Apply wrote.
func (b *backup) upToDate(pod string) {
	b.index.Restart = slices.DeleteFunc(b.index.Restart, func(name string) bool { return name == pod })
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// backupDir returns the folder of a rotation's backup.
func (h Host) backupDir(r rotation.Rotation) string {
	return h.file(Backups, string(r.CA)+"-"+r.ID)
}

// openBackup returns the backup of a rotation. If there is none, it creates one from the present files. With
// h.DryRun, it writes nothing.
func (h Host) openBackup(a authority, r rotation.Rotation) (*backup, error) {
	dir := h.backupDir(r)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return h.newBackup(dir, a, r)
	}
	b, err := h.readBackup(dir, a)
	if err != nil {
		return nil, err
	}
	if b.originals[a.bundle] == nil {
		return nil, fmt.Errorf("%s does not exist; to start again from the present files, move %s away", filepath.Join(dir, originalsDir, a.bundle), dir)
	}
	present, err := readAll(h.Dir, a.trusting)
	for name, content := range present {
		if b.originals[name] == nil && err == nil { // the file was created after the backup
			err = h.keep(b, name, content)
		}
	}
	return b, err
}

func newIndex(stage rotation.Stage) index {
	return index{Stage: stage, Written: map[string][]string{}, Boots: map[string]boot{}}
}

// readBackup reads a backup.
func (h Host) readBackup(dir string, a authority) (*backup, error) {
	b := &backup{dir: dir, signed: signed{}, index: newIndex("")}
	content, err := readFile(filepath.Join(dir, indexFile))
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&b.index); err != nil || !slices.Contains(stages, b.index.Stage) {
		return nil, fmt.Errorf("%s is damaged; to start again from the present files, move the folder away", filepath.Join(dir, indexFile))
	}
	if b.originals, err = readAll(filepath.Join(dir, originalsDir), a.files()); err != nil {
		return nil, err
	}
	for of, name := range signedDirs {
		if _, err := os.Stat(filepath.Join(dir, name)); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if b.signed[of], err = readAll(filepath.Join(dir, name), a.files()); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// keep stores content, which somebody else wrote to a file, as the original of the file.
func (h Host) keep(b *backup, name string, content []byte) error {
	b.originals[name] = content
	for of, again := range b.signed { // the new signature was made for the previous original
		delete(again, name)
		if !h.DryRun {
			if err := os.Remove(filepath.Join(b.dir, signedDirs[of], name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	if h.DryRun {
		return nil
	}
	return h.save(filepath.Join(b.dir, originalsDir, name), content)
}

// newBackup copies the present files.
func (h Host) newBackup(dir string, a authority, r rotation.Rotation) (*backup, error) {
	b := &backup{dir: dir, signed: signed{}, index: newIndex("")}
	var err error
	if b.originals, err = readAll(h.Dir, a.files()); err != nil || b.originals[a.bundle] == nil {
		return b, err
	}
	if b.index.Stage, err = stageOf(b.originals[a.bundle], r); err != nil {
		return nil, fmt.Errorf("%s: %w", h.file(a.bundle), err)
	}
	if h.DryRun {
		return b, nil
	}
	b.dir = dir + unfinished
	for name, content := range b.originals {
		if err := h.save(filepath.Join(b.dir, originalsDir, name), content); err != nil {
			return nil, err
		}
	}
	if err := h.saveIndex(b); err != nil {
		return nil, err
	}
	b.dir = dir
	return b, h.rename(dir+unfinished, dir)
}

func (h Host) saveIndex(b *backup) error {
	content, err := json.MarshalIndent(b.index, "", "  ")
	if err != nil {
		return err
	}
	return h.save(filepath.Join(b.dir, indexFile), append(content, '\n'))
}

// backups returns the IDs of the rotations of a CA that have a backup.
func (h Host) backups(ca rotation.CA) (ids []string, err error) {
	entries, err := os.ReadDir(h.file(Backups))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if id, found := strings.CutPrefix(e.Name(), string(ca)+"-"); found && !strings.HasSuffix(id, unfinished) {
			ids = append(ids, id)
		}
	}
	return ids, err
}

// checkBackups returns an error if there is a backup of a rotation that is neither the cluster's last rotation nor an earlier
// one. Then the cluster or the host was restored from a backup, so a missing rotation does not prove that it has ended.
func (h Host) checkBackups(r rotation.Rotation) error {
	ids, err := h.backups(r.CA)
	for _, id := range ids {
		if id == r.ID || r.Past(id) {
			continue
		}
		dir, last := h.file(Backups, string(r.CA)+"-"+id), "no rotation of this CA"
		if r.ID != "" {
			last = "rotation " + r.ID
		}
		return fmt.Errorf("%s is the backup of a rotation that the cluster does not know: it has %s; was the cluster or this host restored from a backup? "+
			"compare %s with the files of other hosts, and restore the newer state; to give up that rotation here, move %s away: it has keys of CAs", dir, last, h.file(authorities[r.CA].bundle), dir)
	}
	return err
}

// removeBackup removes the backup of this rotation, which has ended, and the backups of earlier rotations.
func (h Host) removeBackup(r rotation.Rotation) error {
	ids, err := h.backups(r.CA)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if id != r.ID && !r.Past(id) {
			continue
		}
		dir := h.file(Backups, string(r.CA)+"-"+id)
		if err := h.rename(dir, dir+unfinished); err != nil { // so that sweep completes the removal after a crash
			return err
		}
		if err := os.RemoveAll(dir + unfinished); err != nil {
			return err
		}
	}
	return nil
}

// sweep removes what a killed Apply left: unfinished folders, and temporary files, which may contain a key.
func (h Host) sweep(a authority) error {
	for _, pattern := range []string{h.file(Backups, "*"+unfinished), h.file(Backups, "*", "*"+unfinished)} {
		all, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, dir := range all {
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
		}
	}
	for _, name := range a.files() {
		dir, base := filepath.Split(h.file(name))
		if err := atomicfile.Sweep(dir, func(name string) bool { return name == base }); err != nil {
			return err
		}
	}
	if !a.kubelet {
		return nil
	}
	return atomicfile.Sweep(filepath.Join(h.KubeletDir, "pki"), kubeletFile.MatchString)
}

// save writes a file of the backup, and creates its folder.
func (h Host) save(file string, content []byte) error {
	if err := h.fault(file); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(file, content)
}

// rename renames a folder, and syncs the change to disk.
func (h Host) rename(from, to string) error {
	if err := h.fault(to); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(to))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// replace writes a file of the host, and keeps the owner and mode of the file.
func (h Host) replace(file string, content []byte) error {
	if err := h.fault(file); err != nil {
		return err
	}
	return atomicfile.Replace(file, content)
}

// readAll reads the named files below dir; it skips files that do not exist.
func readAll(dir string, names []string) (contents, error) {
	all := contents{}
	for _, name := range names {
		content, err := readFile(filepath.Join(dir, filepath.FromSlash(name)))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		default:
			all[name] = content
		}
	}
	return all, nil
}

// readFile reads a file. It refuses pipes, large files, and symbolic links, because Apply would replace a link by a file.
// Another user may exchange the file at any time, so readFile checks the opened file, not the path.
func readFile(file string) ([]byte, error) {
	refused := fmt.Errorf("%s: want a regular file of at most %d bytes, not a link", safetext.Printable(file), maxFile)
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) {
		return nil, refused
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // read-only, so Close loses nothing
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, cmp.Or(err, refused)
	}
	content, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(content) > maxFile {
		return nil, refused
	}
	return content, err
}
