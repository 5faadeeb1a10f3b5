package hostca

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/tokens"
)

// report looks at the present files and processes. It leaves out what cannot be read.
func (h Host) report(ctx context.Context, b *backup, a authority, r rotation.Rotation) *rotation.Report {
	report := &rotation.Report{ID: r.ID, CA: r.CA, Stage: r.Stage, Since: r.Since}
	add := func(name string, trusts, presents []*x509.Certificate) {
		f := rotation.File{Name: name}
		if len(trusts) > 0 {
			if in, err := r.In(trusts); err == nil {
				f.Trusts = &in
			}
		}
		if len(presents) > 0 {
			f.From, _ = r.Find(presents) // empty if the rotation cannot be read, which was checked
		}
		if f.Trusts != nil || f.From != "" {
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
	for _, name := range append(slices.Clone(a.kubeconfigs), kubeletConf) {
		if present[name] == nil {
			continue
		}
		config, user, err := loadKubeconfig(present[name])
		if err != nil {
			continue
		}
		cluster := config.Clusters[config.Contexts[config.CurrentContext].Cluster]
		trusts, _ := pemfile.Certificates(cluster.CertificateAuthorityData)
		if content, err := readFile(cluster.CertificateAuthority); err == nil && len(trusts) == 0 {
			trusts, _ = pemfile.Certificates(content)
		}
		presents, _ := pemfile.Certificates(user.ClientCertificateData)
		if name == kubeletConf && len(presents) == 0 {
			_, presents, _ = h.clientCertificate()
		}
		add(name, trusts, presents)
	}
	if key := present[a.key]; key != nil {
		f := rotation.File{Name: a.key, From: rotation.FromOther}
		if old, err := r.OldCerts(); err == nil && matches(key, old) {
			f.From = rotation.FromOld
		}
		if fresh, err := r.NewCerts(); err == nil && matches(key, fresh) {
			f.From = rotation.FromNew
		}
		report.Files = append(report.Files, f)
	}
	if serving := filepath.Join(h.KubeletDir, "pki", "kubelet-server-current.pem"); a.kubelet {
		_, presents, _ := linked(serving)
		add(serving, nil, presents)
	}
	report.Restart = h.allStale(ctx, b, a, r)
	return report
}

// allStale returns the names of the processes that run with old files, or may do so.
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
	if err != nil {
		return "", err
	}
	if len(chain) == 0 {
		return "", fmt.Errorf("%s: want a client certificate", h.file(kubeletConf))
	}
	return nodeName(chain[0])
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

// remains removes former certificates of the kubelet that the replaced CA issued, and returns the files that still have a
// certificate of that CA.
func (h Host) remains(r rotation.Rotation) (files []string, err error) {
	current := map[string]bool{}
	for _, link := range []string{"kubelet-client-current.pem", "kubelet-server-current.pem"} {
		if target, err := filepath.EvalSymlinks(filepath.Join(h.KubeletDir, "pki", link)); err == nil {
			current[target] = true
		}
	}
	look := func(file string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := readFile(file)
		if err != nil || !h.ofOld(content, r) {
			return nil // too large for a certificate
		}
		if filepath.Dir(file) == filepath.Join(h.KubeletDir, "pki") && kubeletFile.MatchString(filepath.Base(file)) && !current[file] {
			return os.Remove(file)
		}
		files = append(files, file)
		return nil
	}
	return files, errors.Join(filepath.WalkDir(h.Dir, look), filepath.WalkDir(filepath.Join(h.KubeletDir, "pki"), look))
}

// ofOld reports whether a file has a certificate of the old CA, or one that it issued.
func (h Host) ofOld(content []byte, r rotation.Rotation) bool {
	old, err := r.OldCerts()
	if err != nil {
		return false
	}
	fresh, _ := r.NewCerts()
	cross, _ := pemfile.Certificates([]byte(r.Cross)) // behind the kubelet's serving certificate
	fresh = append(fresh, cross...)
	certs := pemfile.Presented(content)
	if !bytes.Contains(content, []byte("certificate-authority")) {
		// To parse other YAML, for example an audit policy, may take 200 times its size.
	} else if config, user, err := loadKubeconfig(content); err == nil {
		certs = append(certs, pemfile.Presented(user.ClientCertificateData)...)
		for _, cluster := range config.Clusters {
			certs = append(certs, pemfile.Presented(cluster.CertificateAuthorityData)...)
		}
	}
	return slices.ContainsFunc(certs, func(c *x509.Certificate) bool {
		if slices.ContainsFunc(fresh, c.Equal) {
			return false // the old CA may have signed it
		}
		return slices.ContainsFunc(old, func(ca *x509.Certificate) bool {
			return c.Equal(ca) || c.CheckSignatureFrom(ca) == nil
		})
	})
}
