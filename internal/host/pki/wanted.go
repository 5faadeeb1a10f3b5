package pki

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"k8s.io/client-go/tools/clientcmd"
)

// contents maps paths below /etc/kubernetes to the content of files.
type contents map[string][]byte

// signed maps a CA to the files that it signed again, and to its key.
type signed map[rotation.From]contents

// side returns the CA that signs in a stage.
func side(r rotation.Rotation) rotation.From {
	if r.SignsNew() {
		return rotation.FromNew
	}
	return rotation.FromOld
}

// wanted returns what the files of originals contain in the stage of a rotation. again has the files that the CA of the stage
// signed again, and its key. While the old CA signs, again is needed only for originals that the new CA had signed before the
// backup was made.
func (a authority) wanted(originals contents, again signed, r rotation.Rotation) (contents, error) {
	before, err := pemfile.Certificates(originals[a.bundle])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.bundle, err)
	}
	bundle, all := bundleOf(before, r), maps.Clone(originals)
	if !unchanged(before, r) {
		all[a.bundle] = bundle
	}
	for name, original := range originals {
		var content []byte // the file as the CA of the stage signed it
		if by, err := a.signer(name, original, r); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		} else if by != "" {
			if content = again[side(r)][name]; content == nil && name == a.key {
				delete(all, name) // the key file of the host already has this key
			} else if content == nil {
				return nil, fmt.Errorf("%s was not signed with the key of the %s CA", name, side(r))
			}
		}
		switch {
		case name == kubeletConf, slices.Contains(a.kubeconfigs, name), slices.Contains(a.trusting, name):
			if name == kubeletConf {
				content = again[side(r)][name]
			}
			if all[name], err = kubeconfig(original, bundle, content, r); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		case content != nil && name == a.serving && r.SignsNew() && r.InProgress(): // clients may trust only the old CA
			all[name] = slices.Concat(content, r.Cross.PEM())
		case content != nil:
			all[name] = content
		}
	}
	return all, nil
}

// unchanged reports whether a file keeps its original CAs. It does in stage prepare, unless the original already contained
// the new CA or a replaced CA.
func unchanged(trusts []*x509.Certificate, r rotation.Rotation) bool {
	in := r.In(trusts)
	return r.Stage == rotation.Prepare && !in.New && !in.Replaced
}

// signer returns the CA that must sign a file again in a stage; for the key file, the CA whose key it must contain.
// Empty: the original fits.
func (a authority) signer(name string, original []byte, r rotation.Rotation) (rotation.From, error) {
	isNew := false
	switch {
	case name == a.key:
		isNew = matches(original, r.New)
	case slices.Contains(a.signed(), name):
		presented, field := original, ""
		if slices.Contains(a.kubeconfigs, name) {
			config, err := credentials.ParseKubeconfig(original)
			if err != nil {
				return "", err
			}
			presented, field = config.User.ClientCertificateData, "client-certificate-data: "
		}
		certs, err := pemfile.Certificates(presented)
		if err != nil {
			return "", fmt.Errorf("%s%w", field, err)
		}
		from := r.Find(certs)
		if from == "" {
			return "", longChain(certs)
		}
		isNew = from == rotation.FromNew
	default:
		return "", nil
	}
	if r.SignsNew() || isNew {
		return side(r), nil
	}
	return "", nil
}

// longChain is the error for a chain whose signer r.Find cannot determine.
func longChain(chain []*x509.Certificate) error {
	return fmt.Errorf("its chain has %d certificates, want 1 to 10", len(chain))
}

// bundleOf returns the CAs that a host trusts in a stage, in PEM, including unrelated CAs that it trusted before. The
// CA that signs comes first, because kubeadm reads only the first certificate.
func bundleOf(before []*x509.Certificate, r rotation.Rotation) []byte {
	certs, both := r.Trusted(), slices.Concat(r.Old, r.New)
	if r.Stage == rotation.Switch {
		certs = slices.Concat(r.New, r.Old)
	}
	for _, c := range before {
		if !r.Outdated(c) && !slices.ContainsFunc(both, c.Equal) {
			certs = append(certs, c)
		}
	}
	return pemfile.Encode(certs...)
}

// kubeconfig returns a kubeconfig with another bundle. signed is the same kubeconfig with a new client certificate, or nil.
// The errors quote no part of the file.
func kubeconfig(original, bundle, signed []byte, r rotation.Rotation) ([]byte, error) {
	config, err := clientcmd.Load(original)
	if err != nil {
		return nil, errors.New("want a kubeconfig")
	}
	changed := signed != nil
	for _, cluster := range config.Clusters {
		certs, err := pemfile.Certificates(cluster.CertificateAuthorityData)
		if err != nil {
			continue // the kubeconfig names a CA file, or trusts the CAs of the machine
		}
		if r.In(certs) == (rotation.Trusted{}) || unchanged(certs, r) { // this entry is for another cluster, or keeps its CAs
			continue
		}
		cluster.CertificateAuthorityData, changed = bundle, true
	}
	if !changed {
		return original, nil
	}
	if signed != nil {
		again, err := credentials.ParseKubeconfig(signed)
		if err != nil {
			return nil, err
		}
		own := config.AuthInfos[config.Contexts[config.CurrentContext].AuthInfo]
		own.ClientCertificateData, own.ClientKeyData = again.User.ClientCertificateData, again.User.ClientKeyData
	}
	return clientcmd.Write(*config)
}

// unread returns the names of the static pods that read different content from before and from after.
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

// reads returns the content that the pod reads from the files when it starts.
func (p pod) reads(all contents, bundle string) (string, error) {
	var text strings.Builder
	for _, name := range p.once {
		if name != bundle {
			_, _ = text.Write(all[name]) // never fails
			continue
		}
		certs, err := pemfile.Certificates(all[bundle])
		if err != nil {
			return "", fmt.Errorf("%s: %w", bundle, err)
		}
		slices.SortFunc(certs, func(a, b *x509.Certificate) int { return bytes.Compare(a.Raw, b.Raw) }) // the order does not matter
		for _, c := range certs {
			_, _ = text.Write(c.Raw)
		}
	}
	return text.String(), nil
}
