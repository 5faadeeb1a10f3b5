package pki

import (
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer/rotation"
)

// A Host is a machine with the files of kubeadm.
type Host struct {
	// Dir is the folder of kubeadm, usually /etc/kubernetes. KubeletDir is the folder of the kubelet, usually /var/lib/kubelet.
	Dir, KubeletDir string
	// Pins are the pins of CAs that the operator trusts, in kubeadm's form.
	Pins []string
	// Key returns the private key of the new CA; nil if there is none.
	Key func(ctx context.Context) (crypto.Signer, error)
	// Lock waits until no other control plane restarts anything, and stops others from it until release; nil locks nothing.
	Lock func(ctx context.Context) (release func(), err error)
	// Sign requests certificates with the kubelet's own credential; nil requests none.
	Sign credentials.SignFunc
	// KubeletReloads reports whether the kubelet re-reads a changed client CA file; nil means that it does not.
	KubeletReloads func(ctx context.Context) bool
	// Wait limits how long each restart may take.
	Wait time.Duration
	// Also are more files and folders to read. Restart are static pods that Apply may end in addition to kubeadm's.
	Also, Restart []string
	// NoRestart restarts no static pod. Apply reports the pods that have not read a file, and the next call may restart them.
	NoRestart bool
	// DryRun changes nothing.
	DryRun bool
	// Log gets one line for each thing that Apply does.
	Log func(line string)

	system      system                  // nil means this machine
	beforeWrite func(path string) error // for tests
}

// A Result is the result of [Host.Apply].
type Result struct {
	CA    rotation.CA    `json:"ca"`
	ID    string         `json:"id"`
	Stage rotation.Stage `json:"stage"`
	// Changed are the files that changed. With a dry run, they are the files that would change.
	Changed []string `json:"changed"`
	// Diff is a dry run's unified diff. Certificates are lines of text in it, and keys and other secrets are redacted.
	Diff string `json:"diff,omitempty"`
	// Restarted are the processes that were restarted. With a dry run, they are the processes that would be restarted.
	Restarted []string `json:"restarted,omitempty"`
	// Backup is the folder with the original files; empty after the end of the rotation.
	Backup string `json:"backup,omitempty"`
	// Unfit lists what on this host does not fit the stage, although Apply did its part.
	Unfit []string `json:"unfit,omitempty"`
	// Report is for the annotation of the Node; nil if the host has no file of this CA.
	Report *rotation.Report `json:"report,omitempty"`
}

var stages = []rotation.Stage{rotation.Prepare, rotation.Trust, rotation.Switch, rotation.Finish}

func (h Host) file(path ...string) string {
	return filepath.Join(append([]string{h.Dir}, path...)...)
}

func (h Host) fault(path string) error {
	if h.beforeWrite != nil {
		return h.beforeWrite(path)
	}
	return nil
}

// stageOf returns the stage of a host that trusts a bundle and has no backup.
func stageOf(bundle []byte, r rotation.Rotation) (rotation.Stage, error) {
	certs, err := pemfile.Certificates(bundle)
	if err != nil {
		return "", err
	}
	switch in := r.In(certs); {
	case in.Old && in.New:
		return rotation.Trust, nil
	case in.New:
		return rotation.Finish, nil
	}
	return rotation.Prepare, nil
}

// Apply brings the host to the stage of a rotation. It can be repeated at any time. Once the rotation has ended, it removes
// the backup and the cross certificate. It removes them only after clients have re-read their CA files. If the CA has no
// rotation, Apply only checks that this host has no backup of one.
func (h Host) Apply(ctx context.Context, r rotation.Rotation) (Result, error) {
	done := Result{CA: r.CA, ID: r.ID, Stage: r.Stage, Changed: []string{}}
	err := h.apply(ctx, r, &done)
	if err != nil && r.InProgress() && !h.DryRun && !errors.Is(err, errBusy) { // do not leave an outdated report
		done.Report = &rotation.Report{ID: r.ID, CA: r.CA, Stage: r.Stage, Since: r.Since, Failed: safetext.Text(err.Error(), safetext.MaxMessage)}
	}
	return done, err
}

// filled returns the host with defaults in place of zero values.
func (h Host) filled() (Host, error) {
	var err error
	if h.Dir, err = filepath.Abs(h.Dir); err == nil {
		h.Dir, err = resolve("", h.Dir)
	}
	if h.Log == nil {
		h.Log = func(string) {}
	}
	if h.system == nil {
		h.system = machine{}
	}
	return h, err
}

func (h Host) apply(ctx context.Context, r rotation.Rotation, done *Result) (err error) {
	if h, err = h.filled(); err != nil {
		return err
	}
	if err := h.checkBackups(r); err != nil || r.ID == "" {
		return err
	}
	if !h.DryRun {
		unlock, err := h.exclude()
		if err != nil {
			return err
		}
		defer unlock()
	}
	a, err := h.look(authorities[r.CA], r)
	if err != nil {
		return err
	}
	if !h.DryRun {
		if err := h.sweep(a); err != nil {
			return err
		}
	}
	if ended, err := h.ended(a, r); err != nil {
		return err
	} else if ended {
		return h.complete(ctx, nil, r, done)
	}
	b, err := h.openBackup(a, r)
	if err != nil {
		return err
	}
	if b.originals[a.bundle] == nil { // for example, a worker has no files of the etcd CA
		return nil
	}
	done.Backup = b.dir
	if until := r.Since.Add(rotation.Rereads); b.crosses(a, r) && time.Now().Before(until) {
		h.Log("clients may need the cross certificate until " + until.UTC().Format(time.RFC3339) + "; apply again after that")
		r.Ended = time.Time{} // as if the rotation is in progress: keep the cross certificate and the backup
	}
	walk := b.walk(r.Stage)
	if err := h.ready(ctx, b, a, r, walk); err != nil {
		return err
	}
	if h.DryRun {
		done.Backup = ""
		return h.compare(ctx, b, a, r, done)
	}
	for _, stage := range walk {
		if err := h.enter(ctx, b, a, r.At(stage), done); err != nil {
			return fmt.Errorf("stage %s: %w", stage, err) // return no report: the files look complete before the processes restart
		}
	}
	return h.complete(ctx, b, r, done)
}

// ControlPlane reports whether the host has static pods of a control plane, or of etcd.
func (h Host) ControlPlane() bool {
	return slices.ContainsFunc(kubeadmPods, func(name string) bool {
		_, err := os.Stat(h.file("manifests", name+".yaml"))
		return err == nil
	})
}

// errBusy is the error of Apply if another one runs on the same folder.
var errBusy = errors.New("another 'kubejoin ca apply' is running")

// exclude ensures that only one Apply at a time works on the host. It locks the folder of the backups, which only root
// can open, because any user can lock a folder that they can open. unlock removes this folder if it is empty.
func (h Host) exclude() (unlock func(), err error) {
	path := h.file(Backups)
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil { // another Apply may have removed the folder meanwhile
		var is, locked fs.FileInfo
		if locked, err = dir.Stat(); err == nil {
			if is, err = os.Stat(path); err == nil && !os.SameFile(is, locked) {
				err = syscall.EAGAIN
			}
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w on %s: %w; find its process with: fuser -v %s; then retry", errBusy, h.Dir, err, path), dir.Close())
	}
	return func() {
		_ = os.Remove(path) // fails if the folder contains a backup
		_ = dir.Close()
	}, nil
}

// ended reports whether the rotation has ended and this host has nothing to do for it.
func (h Host) ended(a authority, r rotation.Rotation) (bool, error) {
	if r.InProgress() {
		return false, nil
	}
	if _, err := os.Stat(h.backupDir(r)); err == nil {
		return false, nil
	}
	content, err := readAll(h.Dir, []string{a.bundle})
	if err != nil || content[a.bundle] == nil {
		return true, err
	}
	certs, err := pemfile.Certificates(content[a.bundle])
	if err != nil {
		return false, fmt.Errorf("%s: %w", h.file(a.bundle), err)
	}
	in := r.In(certs)
	if r.Stage == rotation.Finish {
		return !in.Old && !in.Replaced, nil
	}
	return !in.New && !in.Replaced, nil
}

// crosses reports whether a rotation has ended, and kube-apiserver of this host may still present its cross certificate.
func (b *backup) crosses(a authority, r rotation.Rotation) bool {
	return !r.InProgress() && r.Stage == rotation.Finish && len(r.Cross) > 0 && b.originals[a.serving] != nil
}

// walk returns the stages from the stage that the host reached to the given one. Files of two neighbouring stages
// work together.
func (b *backup) walk(to rotation.Stage) []rotation.Stage {
	from, end := slices.Index(stages, b.index.Stage), slices.Index(stages, to)
	var list []rotation.Stage
	for from < end {
		from++
		list = append(list, stages[from])
	}
	for from > end {
		from--
		list = append(list, stages[from])
	}
	if list == nil {
		list = []rotation.Stage{to}
	}
	return list
}

// ready checks that all stages of a walk are possible before the first file changes: the host may trust the CAs, no
// operator edited a file, the processes are restartable, and the certificates are signed.
func (h Host) ready(ctx context.Context, b *backup, a authority, r rotation.Rotation, walk []rotation.Stage) error {
	before, err := pemfile.Certificates(b.originals[a.bundle])
	if err != nil {
		return fmt.Errorf("%s: %w", h.file(a.bundle), err)
	}
	for _, pin := range h.Pins {
		if !slices.Contains(b.index.Pins, pin) {
			b.index.Pins = append(b.index.Pins, pin)
		}
	}
	for _, stage := range walk {
		if stage == rotation.Prepare && !r.In(before).New {
			continue // the way back restores the originals, see wanted
		}
		if err := checkTrust(before, b.index.Pins, r.At(stage)); err != nil {
			return err
		}
	}
	if err := h.checkEdited(b, a, before, r); err != nil {
		return err
	}
	if _, err := h.restartable(b, a); err != nil {
		return err
	}
	for _, c := range kubeletCertificates {
		if _, _, err := c.find(h); a.kubelet && err != nil {
			return err
		}
	}
	if r.Stage == rotation.Prepare && !r.Aborting { // report what a later stage would refuse before the first stage begins
		try, trial := h, *b
		try.DryRun, trial.signed = true, maps.Clone(b.signed)
		for _, stage := range stages {
			err := try.sign(ctx, &trial, a, r.At(stage))
			if err == nil {
				_, err = a.wanted(trial.originals, trial.signed, r.At(stage))
			}
			if err != nil {
				return fmt.Errorf("stage %s would fail here: %w", stage, err)
			}
		}
	}
	for _, stage := range walk {
		if err := h.sign(ctx, b, a, r.At(stage)); err != nil {
			return err
		}
	}
	return nil
}

// checkEdited refuses a file that is neither the original nor what Apply wrote. The kubelet writes kubelet.conf itself when
// it bootstraps, so the present kubelet.conf becomes the original.
func (h Host) checkEdited(b *backup, a authority, before []*x509.Certificate, r rotation.Rotation) error {
	present, err := readAll(h.Dir, a.files())
	if err != nil {
		return err
	}
	for _, name := range a.files() {
		is, was := present[name], b.originals[name]
		switch {
		case is == nil && was == nil, is != nil && was != nil && (digest(is) == digest(was) || slices.Contains(b.index.Written[name], digest(is))):
		case name == a.key && is != nil && was != nil && pemfile.IsEncrypted(is): // as docs/certificates.md advises
		// The kubelet or an operator wrote this file since the backup. Keep its content as the new original.
		case is != nil && (was == nil || name == kubeletConf || slices.Contains(a.trusting, name)):
			if err := h.keep(b, name, is); err != nil {
				return err
			}
		case name == a.bundle && is != nil && onlyOf(is, before, r):
		default:
			what := "was changed"
			if is == nil {
				what = "was removed"
			}
			return fmt.Errorf("%s %s by somebody else since the backup in %s; to undo that: cp %s %s; to keep it, move that folder away, and the present files become the originals; then retry",
				h.file(name), what, b.dir, filepath.Join(b.dir, originalsDir, name), h.file(name))
		}
	}
	return nil
}

// onlyOf reports whether all certificates of a bundle are in before or in the rotation. Then replacing the bundle loses none.
func onlyOf(bundle []byte, before []*x509.Certificate, r rotation.Rotation) bool {
	certs, err := pemfile.Certificates(bundle)
	known := slices.Concat(before, r.Old, r.New)
	return err == nil && !slices.ContainsFunc(certs, func(c *x509.Certificate) bool { return !slices.ContainsFunc(known, c.Equal) })
}

// enter brings the host to a stage that is adjacent to its current stage.
func (h Host) enter(ctx context.Context, b *backup, a authority, r rotation.Rotation, done *Result) error {
	want, err := a.wanted(b.originals, b.signed, r)
	if err != nil {
		return err
	}
	if side(r.At(b.index.Stage)) == side(r) {
		delete(want, a.key) // the key is in place, and an operator may have encrypted it since
	}
	noted := slices.Clone(b.index.Restart)
	if err := h.bring(ctx, b, a, want, done); err != nil {
		return err
	}
	if b.signed[side(r)][a.key] != nil { // remove the copy in the backup: one copy of a key is enough
		delete(b.signed[side(r)], a.key)
		if err := os.Remove(filepath.Join(b.dir, signedDirs[side(r)], a.key)); err != nil {
			return err
		}
	}
	if a.kubelet {
		if err := h.updateKubelet(ctx, b, a, r, done); err != nil {
			return err
		}
	}
	if b.index.Stage == r.Stage && slices.Equal(b.index.Restart, noted) {
		return nil
	}
	b.index.Stage = r.Stage
	return h.saveIndex(b)
}

// bring changes the files that differ from want, and restarts the static pods that read them only at start.
func (h Host) bring(ctx context.Context, b *backup, a authority, want contents, done *Result) error {
	present, err := readAll(h.Dir, a.files())
	if err != nil {
		return err
	}
	changed := a.changed(present, want)
	for _, name := range changed {
		if err := h.wrote(b, name, want[name]); err != nil {
			return err
		}
	}
	after := maps.Clone(present)
	maps.Copy(after, want)
	unread, err := a.unread(present, after)
	if err != nil {
		return err
	}
	for _, name := range unread {
		if !slices.Contains(b.index.Restart, name) {
			b.index.Restart = append(b.index.Restart, name)
		}
	}
	if len(changed) > 0 { // before the first write: after a crash, the next Apply must recognize these files
		if err := h.saveIndex(b); err != nil {
			return err
		}
	}
	for _, name := range changed {
		if !slices.Contains(done.Changed, name) {
			done.Changed = append(done.Changed, name)
		}
		h.Log("writing " + h.file(name))
		if err := h.replace(h.file(name), want[name]); err != nil {
			return err
		}
	}
	return h.restartPods(ctx, b, a, done)
}

// wrote records that Apply is about to write content.
func (h Host) wrote(b *backup, name string, content []byte) (err error) {
	if sum := digest(content); !slices.Contains(b.index.Written[name], sum) {
		b.index.Written[name] = append(b.index.Written[name], sum)
	}
	b.index.Boots[name], err = h.system.boot()
	return err
}
