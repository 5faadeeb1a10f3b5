package pki

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer/rotation"
)

// A Renewal selects the kubeadm certificates that [Host.Renew] renews, and the way to sign them.
type Renewal struct {
	// Before is the remaining lifetime at which a certificate is renewed, at most half of its lifetime; 0 means one
	// third of its lifetime.
	Before time.Duration
	// Now renews the certificates in Names (all if Names is empty), regardless of when they expire.
	Now   bool
	Names []string
	// Signer returns the Signing to use. Renew calls it only if a certificate is due.
	Signer func(ctx context.Context) (Signing, error)
}

// A Signing is a way to sign kubeadm's certificates.
type Signing struct {
	Sign credentials.SignFunc
	// Missing maps the name of a certificate to the reason why Sign cannot sign it.
	Missing map[string]string
	// Add maps a certificate to the names and addresses to add.
	Add map[string][]string
	// Stop releases what Sign uses.
	Stop func()
}

// A Renewed is the result of [Host.Renew].
type Renewed struct {
	// Due are the certificates that are renewed. With a dry run, they are the certificates that would be renewed.
	Due []string `json:"due"`
	// Renewed lists the renewed certificates, the certificates that were skipped because their CA is missing, and how the new
	// certificates differ.
	credentials.Renewed
	// Backup is the folder with the files from before the last renewal; empty without one.
	Backup string `json:"backup,omitempty"`
	// Changed, Restarted and Unfit have the same meaning as in [Result].
	Changed   []string `json:"changed"`
	Restarted []string `json:"restarted,omitempty"`
	Unfit     []string `json:"unfit,omitempty"`
}

// renewalDir is the folder in [Backups] with the files from before the last renewal.
const renewalDir = "renewal"

// Renew renews the certificates of kubeadm that expire soon, for the same keys, and restarts the static pods that read them
// only at start. It can be repeated at any time. Renew skips certificates of a CA whose rotation is in progress on this host,
// because the rotation replaces them. The kubelet renews its own certificates.
func (h Host) Renew(ctx context.Context, r Renewal) (done Renewed, err error) {
	done = Renewed{Due: []string{}, Changed: []string{}}
	if h, err = h.filled(); err != nil {
		return done, err
	}
	a, due, held, err := h.renewable(r)
	if err != nil {
		return done, err
	}
	done.Due = append(done.Due, due...)
	for _, name := range held {
		done.Unfit = append(done.Unfit, "certificate "+name+" is due, and changes only with the rotation of its CA; next: kubejoin ca status")
	}
	dir := h.file(Backups, renewalDir)
	_, err = os.Stat(dir)
	earlier := !errors.Is(err, fs.ErrNotExist)
	switch {
	case r.Now && len(due)+len(held) == 0:
		return done, fmt.Errorf("%s has no certificates of kubeadm", h.Dir)
	case h.DryRun || !earlier && len(due) == 0:
		return done, nil
	}
	unlock, err := h.exclude()
	if err != nil {
		return done, err
	}
	defer unlock()
	if err := h.sweep(a); err != nil {
		return done, err
	}
	if _, err := h.restartable(&backup{}, a); err != nil {
		return done, err
	}
	var result Result
	before := newIndex(rotation.Finish)
	if earlier { // the earlier renewal may have been killed
		if before, err = h.resume(ctx, dir, a, &result); err != nil {
			return done, err
		}
		if _, due, _, err = h.renewable(r); err != nil {
			return done, err
		}
	}
	if len(due) > 0 {
		result.Unfit = nil
		issued, err := h.renew(ctx, r, due, dir, before)
		if err != nil {
			return done, err
		}
		for _, n := range issued.SetAside {
			result.Unfit = append(result.Unfit, "certificate "+n.Name+" cannot be renewed here: "+n.Text+"; next: kubejoin certs renew --name "+n.Name+" with --url URL or --pki-dir DIR")
		}
		if _, err := h.resume(ctx, dir, a, &result); err != nil {
			return done, fmt.Errorf("%w; the certificates were issued: repeat the command, which replaces the files that are left", err)
		}
		done.Renewed, done.Backup = issued, filepath.Join(dir, originalsDir)
	}
	done.Changed, done.Restarted, done.Unfit = append(done.Changed, result.Changed...), result.Restarted, append(done.Unfit, result.Unfit...)
	if r.Now {
		return done, nil
	}
	_, still, _, err := h.renewable(r)
	for _, name := range still {
		if !slices.ContainsFunc(done.Unfit, func(line string) bool { return strings.HasPrefix(line, "certificate "+name+" ") }) {
			done.Unfit = append(done.Unfit, "certificate "+name+" still ends soon; next: kubejoin certs check")
		}
	}
	return done, err
}

// resume completes the renewal whose files are in a backup. The renewal may have been killed.
func (h Host) resume(ctx context.Context, dir string, a authority, done *Result) (index, error) {
	b, err := h.readBackup(dir, a)
	if err != nil {
		return index{}, err
	}
	want := contents{}
	present, err := readAll(h.Dir, slices.Collect(maps.Keys(b.originals)))
	if err != nil {
		return index{}, err
	}
	for name, original := range b.originals { // keep a file that somebody else has changed since the backup
		if b.index.Stage == rotation.Prepare && bytes.Equal(present[name], original) {
			want[name] = b.signed[rotation.FromNew][name]
		}
	}
	if err := h.bring(ctx, b, a, want, done); err != nil {
		return index{}, err
	}
	b.index.Stage = rotation.Finish
	if err := h.saveIndex(b); err != nil {
		return index{}, err
	}
	for _, name := range h.allStale(ctx, b, a, rotation.Rotation{}) {
		next := "kubejoin host apply --restart " + safetext.Quote(name)
		if h.NoRestart && slices.Contains(kubeadmPods, name) {
			next = "kubejoin host apply"
		} else if slices.Contains(kubeadmPods, name) {
			next = "crictl ps -a --name " + name + "   shows why; then kubejoin host apply"
		}
		done.Unfit = append(done.Unfit, "process "+name+" has not read its changed files; next: "+next)
	}
	return b.index, nil
}

// renewable returns all files that can be renewed here, and the names of the certificates that are due. held are also due, but
// a rotation of their CA is in progress on this host.
func (h Host) renewable(r Renewal) (all authority, due, held []string, err error) {
	var of []string
	for _, ca := range rotation.CAs {
		ids, err := h.backups(ca)
		if err != nil {
			return all, nil, nil, err
		}
		if len(ids) > 0 {
			continue
		}
		a := authorities[ca]
		all.leaves, all.kubeconfigs = append(all.leaves, a.leaves...), append(all.kubeconfigs, a.kubeconfigs...)
		for _, p := range a.pods {
			if p.kubeconfig != "" {
				all.pods = append(all.pods, pod{name: p.name, kubeconfig: p.kubeconfig})
			}
		}
		for _, file := range a.signed() {
			of = append(of, credentials.CertificateIn(file))
		}
	}
	l, err := h.newLook(all)
	if err != nil {
		return all, nil, nil, err
	}
	l.readPods()
	names := r.Names
	if len(names) == 0 {
		names, err = credentials.KubeadmFiles{Dir: h.Dir}.Due(r.due)
	}
	for _, name := range names {
		if slices.Contains(of, name) || !slices.Contains(credentials.Renewable(), name) {
			due = append(due, name)
		} else {
			held = append(held, name)
		}
	}
	return l.authority, due, held, err
}

// due reports whether a certificate is renewed.
func (r Renewal) due(leaf *x509.Certificate) bool {
	life := leaf.NotAfter.Sub(leaf.NotBefore)
	before := min(r.Before, life/2)
	if r.Before == 0 {
		before = life / 3
	}
	return r.Now || time.Until(leaf.NotAfter) < before
}

// renew requests new certificates, and stores them with the present files in a new backup. The new backup takes over the index
// of the old one. No file of the host changes yet.
func (h Host) renew(ctx context.Context, r Renewal, due []string, dir string, before index) (done credentials.Renewed, err error) {
	with, err := r.Signer(ctx)
	if err != nil {
		return done, err
	}
	if with.Stop != nil {
		defer with.Stop()
	}
	all, done, err := credentials.KubeadmFiles{Dir: h.Dir, NoCA: with.Missing}.Renew(ctx, with.Sign, credentials.Renewal{Names: due, Add: with.Add, LeaveOut: len(r.Names) == 0})
	if err != nil {
		return done, err
	}
	present, err := readAll(h.Dir, slices.Collect(maps.Keys(all)))
	if err != nil {
		return done, err
	}
	b := &backup{dir: dir + unfinished, index: before}
	b.index.Stage = rotation.Prepare
	for sub, files := range map[string]contents{originalsDir: present, signedDirs[rotation.FromNew]: all} {
		for name, content := range files {
			if err := h.save(filepath.Join(b.dir, sub, name), content); err != nil {
				return done, err
			}
		}
	}
	if err := h.saveIndex(b); err != nil {
		return done, err
	}
	if err := os.RemoveAll(dir); err != nil {
		return done, err
	}
	return done, h.rename(b.dir, dir)
}
