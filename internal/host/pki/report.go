package pki

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/tokens"
)

// maxUnfit is the maximum number of lines in [Result.Unfit].
const maxUnfit = 1000

// complete adds the report to the result. If the rotation has ended, it removes the backup. b is nil without a backup.
func (h Host) complete(ctx context.Context, b *backup, r rotation.Rotation, done *Result) error {
	a, err := h.look(authorities[r.CA], r) // re-read the changed files
	if err != nil {
		return err
	}
	node, err := h.NodeName()
	if err != nil {
		return err
	}
	whole := h.report(ctx, b, a, r)
	done.Unfit = r.Unfit(node, whole)
	if rest := len(done.Unfit) - maxUnfit; rest > 0 {
		done.Unfit = append(done.Unfit[:maxUnfit], fmt.Sprintf("%d more; first change these files, or leave them behind", rest))
	}
	done.Report = cut(whole, r, node)
	if r.InProgress() || h.DryRun {
		return nil
	}
	if err := h.removeBackup(r); err != nil {
		return err
	}
	done.Backup, done.Report.Ended = "", true
	if r.Stage != rotation.Finish {
		return nil
	}
	return h.removeFormer(r)
}

// report looks at the present files and processes. It omits what it cannot read.
func (h Host) report(ctx context.Context, b *backup, a authority, r rotation.Rotation) rotation.Report {
	report := rotation.Report{ID: r.ID, CA: r.CA, Stage: r.Stage, Since: r.Since}
	add := func(name string, trusts, presents []*x509.Certificate) {
		f := rotation.File{Name: name}
		if len(trusts) > 0 {
			f.Trusts = new(r.In(trusts))
		}
		if f.From = r.Find(presents); f.Trusts != nil || f.From != "" {
			report.Files = append(report.Files, f)
		}
	}
	present := contents{}
	for _, name := range a.files() {
		if content, err := readFile(h.file(name)); err == nil {
			present[name] = content
		}
	}
	certs := func(name string) []*x509.Certificate { list, _ := pemfile.Certificates(present[name]); return list }
	add(a.bundle, certs(a.bundle), nil)
	for _, name := range a.leaves {
		add(name, nil, certs(name))
	}
	for _, name := range slices.Concat(a.kubeconfigs, a.trusting, []string{kubeletConf}) {
		if present[name] == nil {
			continue
		}
		config, err := credentials.ParseKubeconfig(present[name])
		if err != nil {
			continue
		}
		trusts, _ := pemfile.Certificates(config.Cluster.CertificateAuthorityData)
		if file := config.Cluster.CertificateAuthority; file != "" && len(trusts) == 0 {
			if real, err := resolve("", absolute(filepath.Dir(h.file(name)), file)); err == nil {
				content, _ := readFile(real)
				trusts, _ = pemfile.Certificates(content)
			}
		}
		var presents []*x509.Certificate // Apply changes no certificate in the kubeconfigs of trusting: others lists them
		if name == kubeletConf {
			_, presents, _ = h.clientCertificate()
		} else if !slices.Contains(a.trusting, name) {
			presents, _ = pemfile.Certificates(config.User.ClientCertificateData)
		}
		add(name, trusts, presents)
	}
	if key := present[a.key]; key != nil {
		f := rotation.File{Name: a.key, From: rotation.FromOther}
		switch {
		case matches(key, r.New):
			f.From = rotation.FromNew
		case matches(key, r.Old):
			f.From = rotation.FromOld
		}
		report.Files = append(report.Files, f)
	}
	for _, c := range kubeletCertificates {
		if link, presents, err := c.find(h); a.kubelet && err == nil && c.prefix != "" {
			add(link, nil, presents)
		}
	}
	for _, f := range a.others {
		f.Name, f.Unseen = safetext.Text(f.Name, safetext.MaxName), safetext.Text(f.Unseen, safetext.MaxName)
		report.Files = append(report.Files, f)
	}
	report.Restart = h.allStale(ctx, b, a, r)
	return report
}

// cut shortens a report to the size that an annotation of the Node can hold. More counts the dropped files that do not fit the
// stage.
func cut(whole rotation.Report, r rotation.Rotation, node string) *rotation.Report {
	report := whole
	// A later report names the processes beyond the limit, after these have been restarted.
	report.Files, report.Restart = nil, whole.Restart[:min(len(whole.Restart), rotation.MaxRestart)]
	encoded := func(v any) int { text, _ := json.Marshal(v); return len(text) } //nolint:errchkjson // they are strings
	const more = 100                                                            // bytes of fields that are set later
	room, others := rotation.MaxReport-encoded(report)-more, 0
	var fit []rotation.File
	keep := func(f rotation.File) bool {
		if room -= encoded(f) + 1; room < 0 || len(report.Files) == rotation.MaxFiles {
			return false
		}
		report.Files = append(report.Files, f)
		return true
	}
	for _, f := range whole.Files {
		switch behind := len(r.Unfit(node, rotation.Report{Files: []rotation.File{f}})) > 0; {
		case !behind:
			fit = append(fit, f)
		case f.Other && others == maxNamed || !keep(f):
			report.More++
		case f.Other:
			others++
		}
	}
	for _, f := range fit {
		if !keep(f) {
			break
		}
	}
	return &report
}

// allStale returns the names of the processes that run, or may run, with old files.
func (h Host) allStale(ctx context.Context, b *backup, a authority, r rotation.Rotation) (names []string) {
	if b == nil {
		return nil // nothing has changed yet
	}
	add := func(s service, err error) {
		if err == nil {
			var old bool
			if old, err = h.stale(s); err == nil && !old {
				return
			}
		}
		names = append(names, s.name)
	}
	for _, p := range a.pods {
		add(h.podService(b, a, p))
	}
	if a.kubelet && b.originals[kubeletConf] != nil {
		s, err := h.kubeletService()
		if err == nil {
			s.changed, err = h.kubeletChanged(ctx, b, a, r)
		}
		add(s, err)
	}
	return names
}

// NodeName returns the name of the node that the kubelet's client certificate is for.
func (h Host) NodeName() (string, error) {
	_, chain, err := h.clientCertificate()
	switch {
	case len(chain) > 0:
		return nodeName(chain[0])
	case err == nil:
		err = fmt.Errorf("%s: want a client certificate", h.file(kubeletConf))
	}
	return "", err
}

func nodeName(leaf *x509.Certificate) (string, error) {
	name, found := strings.CutPrefix(leaf.Subject.CommonName, tokens.NodeUserPrefix)
	if !found {
		return "", errors.New("the kubelet's client certificate is not that of a node")
	}
	return name, tokens.CheckNodeName(name)
}

// kubeletFile is the name of a file in which the kubelet keeps one certificate and its key.
var kubeletFile = regexp.MustCompile(`^kubelet-(client|server)-[0-9-]+\.pem$`)

// removeFormer removes former certificates of the kubelet that the replaced CA issued.
func (h Host) removeFormer(r rotation.Rotation) error {
	dir := filepath.Join(h.KubeletDir, "pki")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	current := map[string]bool{}
	for _, link := range []string{"kubelet-client-current.pem", "kubelet-server-current.pem"} {
		if target, err := filepath.EvalSymlinks(filepath.Join(dir, link)); err == nil {
			current[filepath.Base(target)] = true
		}
	}
	for _, e := range entries {
		if !kubeletFile.MatchString(e.Name()) || current[e.Name()] {
			continue
		}
		content, failed := readFile(filepath.Join(dir, e.Name()))
		certs := pemfile.Presented(content)
		if failed == nil && len(certs) > 0 && slices.ContainsFunc(r.Old, func(ca *x509.Certificate) bool { return issuedBy(certs[0], ca) }) {
			err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return err
}
