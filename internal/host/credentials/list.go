package credentials

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/caexpiry"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/signer/rotation"
)

// A CertificateStatus is the state of one certificate in a folder of KubeadmFiles.
type CertificateStatus struct {
	Name string `json:"name"`
	CA   string `json:"certificateAuthority,omitempty"` // empty for a CA
	// NotAfter is when the certificate or its CA expires, whichever is earlier.
	NotAfter *time.Time `json:"notAfter,omitempty"`
	// KeyOnHost is true for a CA whose key is on the host.
	KeyOnHost bool `json:"keyOnHost,omitempty"`
	// Problem says why the certificate cannot be used; empty if it can.
	Problem string `json:"problem,omitempty"`
	// Note says how a renewed certificate differs, for example in groups of an older kubeadm, or why it cannot be renewed.
	// For a CA, Note warns if the CA that expires last in the file expires soon.
	Note string `json:"note,omitempty"`
}

// List returns the certificates and then the CAs in the folder, like 'kubeadm certs check-expiration'. It also returns
// kubeconfigs that name files, and every CA of a bundle: the second CA of ca.crt has the name ca-2.
func (k KubeadmFiles) List() ([]CertificateStatus, error) {
	list := []CertificateStatus{}
	var leaves []*x509.Certificate
	for _, p := range parts {
		status := CertificateStatus{Name: p.name, CA: caName(p.ca)}
		l, err := k.read(p)
		if l != nil && l.leaf != nil {
			leaves = append(leaves, l.leaf)
		}
		switch {
		case errors.Is(err, ErrNoCA) && p.ca == etcdCA: // with an external etcd, the host has no CA of etcd
			status.Note = err.Error()
			if l.leaf != nil {
				status.NotAfter = &l.leaf.NotAfter
			}
		case err != nil:
			status.Problem = err.Error()
		case l == nil:
			if _, err := os.Stat(k.file(p.certificate())); err != nil {
				continue
			}
			status.Problem = "there is no key " + k.file(p.path+".key")
		default:
			if l.leaf != nil {
				end := l.end(k.now())
				status.NotAfter, status.Note = &end, l.note()
			}
			if err := l.problem(l.leaf, l.chain, k.now()); err != nil {
				status.Problem = err.Error()
			}
		}
		list = append(list, status)
	}
	for _, of := range []struct {
		path string
		ca   rotation.CA
	}{{clusterCA, rotation.Cluster}, {etcdCA, rotation.Etcd}, {frontProxyCA, rotation.FrontProxy}} {
		path := of.path
		content, _, err := readSmall(k.file(path + ".crt"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var cas []*x509.Certificate
		if err == nil {
			cas, err = pemfile.Certificates(content)
		}
		if err != nil {
			list = append(list, CertificateStatus{Name: caName(path), Problem: fmt.Sprintf("%s: %v", k.file(path+".crt"), err)})
		}
		_, noKey := os.Stat(k.file(path + ".key"))
		content, _, _ = readSmall(k.file(path + ".key"))
		key, _ := pemfile.Key(content)
		ofKey := func(ca *x509.Certificate) bool { return key != nil && matches(key, ca.PublicKey) }
		ofOne := slices.ContainsFunc(cas, ofKey) // whether the key belongs to a CA in the file
		for i, ca := range cas {
			status := CertificateStatus{Name: caName(path), NotAfter: &ca.NotAfter, Problem: notNow(ca, k.now())}
			if i > 0 {
				status.Name += fmt.Sprintf("-%d", i+1)
			}
			issued := func(leaf *x509.Certificate) bool {
				return bytes.Equal(leaf.RawIssuer, ca.RawSubject) && leaf.CheckSignatureFrom(ca) == nil
			}
			if status.Problem != "" && len(cas) > 1 && !slices.ContainsFunc(leaves, issued) {
				status.Note, status.Problem = status.Problem+"; it issued no certificate of this host, so it can be removed from the file", ""
			}
			if !ca.IsCA {
				status.Problem = "not a CA certificate"
			}
			status.KeyOnHost = noKey == nil && (!ofOne || ofKey(ca))
			// During a rotation, the file contains another CA that expires later. Then no warning is needed.
			last := !slices.ContainsFunc(cas, func(other *x509.Certificate) bool { return other.NotAfter.After(ca.NotAfter) })
			if days, _ := caexpiry.Within(ca.NotAfter, k.now()); days > 0 && last {
				status.Note = fmt.Sprintf("expires within %d days; %s", days, caexpiry.Prepare(of.ca))
			}
			list = append(list, status)
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s has no certificates of kubeadm", k.Dir)
	}
	return list, nil
}

// note returns how a renewed certificate differs, or why it cannot be renewed.
func (l *loaded) note() string {
	_, changes, err := l.renewal(l.leaf, nil)
	if err != nil {
		return err.Error()
	}
	return strings.Join(changes, "; ")
}

// caName returns kubeadm's name of a CA.
func caName(path string) string {
	return strings.ReplaceAll(strings.TrimPrefix(path, "pki/"), "/", "-")
}
