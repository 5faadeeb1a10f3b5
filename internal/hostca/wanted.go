package hostca

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// contents maps paths below /etc/kubernetes to the content of files.
type contents map[string][]byte

// wanted returns what the files of originals contain in the stage of a rotation. signed has the key of the new CA, and
// the certificates and kubeconfigs that were signed with it; stages in which the old CA signs do not need it.
func wanted(originals, signed contents, r rotation.Rotation) (contents, error) {
	a := authorities[r.CA]
	before, err := pemfile.Certificates(originals[a.bundle])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.bundle, err)
	}
	in, err := r.In(before)
	if err != nil {
		return nil, err
	}
	all := maps.Clone(originals)
	if r.Stage == rotation.Prepare && !in.New { // a host that joined during the rotation had the new CA from the beginning
		return all, nil
	}
	bundle, err := bundleOf(before, r)
	if err != nil {
		return nil, err
	}
	all[a.bundle] = bundle
	for _, name := range append([]string{a.key}, a.signed()...) {
		if originals[name] == nil {
			continue
		}
		var content []byte // what the new CA signed
		if r.SignsNew() {
			if content = signed[name]; content == nil {
				return nil, fmt.Errorf("%s was not signed with the key of the new CA", name)
			}
		}
		switch {
		case slices.Contains(a.kubeconfigs, name):
			if all[name], err = kubeconfig(originals[name], bundle, content, r); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		case content != nil && name == a.serving && r.InProgress(): // clients may know only the old CA
			all[name] = slices.Concat(content, []byte(r.Cross))
		case content != nil:
			all[name] = content
		}
	}
	if a.kubelet && originals[kubeletConf] != nil { // the kubelet has its certificate elsewhere
		if all[kubeletConf], err = kubeconfig(originals[kubeletConf], bundle, nil, r); err != nil {
			return nil, fmt.Errorf("%s: %w", kubeletConf, err)
		}
	}
	return all, nil
}

// bundleOf returns what a host trusts in a stage, in PEM, and whatever else it trusted before. The CA that signs comes
// first, because kubeadm reads only the first certificate.
func bundleOf(before []*x509.Certificate, r rotation.Rotation) ([]byte, error) {
	certs, err := r.Trusted()
	if err != nil {
		return nil, err
	}
	old, err := r.OldCerts()
	if err != nil {
		return nil, err
	}
	fresh, err := r.NewCerts()
	if err != nil {
		return nil, err
	}
	if r.SignsNew() {
		certs = slices.DeleteFunc(certs, func(c *x509.Certificate) bool { return slices.ContainsFunc(fresh, c.Equal) })
		certs = slices.Concat(fresh, certs)
	}
	for _, c := range before {
		if !slices.ContainsFunc(old, c.Equal) && !slices.ContainsFunc(fresh, c.Equal) {
			certs = append(certs, c)
		}
	}
	var text bytes.Buffer
	for _, c := range certs {
		_ = pem.Encode(&text, &pem.Block{Type: pemfile.Certificate, Bytes: c.Raw}) // a Buffer takes every write
	}
	return text.Bytes(), nil
}

// kubeconfig returns a kubeconfig with another bundle. signed is the same kubeconfig with a new client certificate, or nil.
// The errors have no part of the file.
func kubeconfig(original, bundle, signed []byte, r rotation.Rotation) ([]byte, error) {
	config, _, err := loadKubeconfig(original)
	if err != nil {
		return nil, err
	}
	for _, cluster := range config.Clusters {
		certs, err := pemfile.Certificates(cluster.CertificateAuthorityData)
		if err != nil {
			continue // it names a file, or trusts the CAs of the machine
		}
		if in, err := r.In(certs); err != nil || !in.Old && !in.New {
			continue // of another cluster
		}
		cluster.CertificateAuthorityData = bundle
	}
	if signed != nil {
		_, user, err := loadKubeconfig(signed)
		if err != nil {
			return nil, err
		}
		config.AuthInfos[config.Contexts[config.CurrentContext].AuthInfo].ClientCertificateData = user.ClientCertificateData
	}
	return clientcmd.Write(*config)
}

// loadKubeconfig parses a kubeconfig and returns its current user. Errors of the parser may have parts of the file.
func loadKubeconfig(content []byte) (*clientcmdapi.Config, *clientcmdapi.AuthInfo, error) {
	config, err := clientcmd.Load(content)
	if err != nil {
		return nil, nil, fmt.Errorf("want a kubeconfig")
	}
	at := config.Contexts[config.CurrentContext]
	if at == nil || config.AuthInfos[at.AuthInfo] == nil || config.Clusters[at.Cluster] == nil {
		return nil, nil, fmt.Errorf("want a kubeconfig with a current context, a cluster and a user")
	}
	return config, config.AuthInfos[at.AuthInfo], nil
}

// unread returns the names of the static pods that read something else from one set of files than from another.
func (a authority) unread(before, after contents) (names []string, err error) {
	for _, p := range a.pods {
		was, err := p.reads(before, a.bundle)
		if err != nil {
			return nil, err
		}
		is, err := p.reads(after, a.bundle)
		if err != nil {
			return nil, err
		}
		if is != was {
			names = append(names, p.name)
		}
	}
	return names, nil
}

// reads returns what the pod reads of the files when it starts.
func (p pod) reads(all contents, bundle string) (string, error) {
	var text strings.Builder
	if p.bundle { // the order does not matter
		certs, err := pemfile.Certificates(all[bundle])
		if err != nil {
			return "", fmt.Errorf("%s: %w", bundle, err)
		}
		slices.SortFunc(certs, func(a, b *x509.Certificate) int { return bytes.Compare(a.Raw, b.Raw) })
		for _, c := range certs {
			_, _ = text.Write(c.Raw) // never fails
		}
	}
	_, _ = text.Write(all[p.kubeconfig])
	return text.String(), nil
}
