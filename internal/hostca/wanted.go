package hostca

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"
)

// podAnnotation is the annotation in the manifest of a static pod whose change makes the kubelet restart it.
const podAnnotation = "kubejoin.io/ca"

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
	all := contents{}
	for name, content := range originals {
		all[name] = content
	}
	if r.Stage == rotation.Prepare && !in.New { // a host that joined during the rotation had the new CA from the beginning
		return all, nil
	}
	bundle, err := bundleOf(before, r)
	if err != nil {
		return nil, err
	}
	all[a.bundle] = bundle
	// what the new CA signed, or nil
	again := func(name string) ([]byte, error) {
		if !r.SignsNew() {
			return nil, nil
		}
		if signed[name] == nil {
			return nil, fmt.Errorf("%s was not signed with the key of the new CA", name)
		}
		return signed[name], nil
	}
	for _, name := range append([]string{a.key}, a.signed()...) {
		if originals[name] == nil {
			continue
		}
		content, err := again(name)
		switch {
		case err != nil:
			return nil, err
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
	for _, p := range a.pods {
		if originals[p.manifest] == nil {
			continue
		}
		if all[p.manifest], err = p.annotate(originals, all, a.bundle); err != nil {
			return nil, fmt.Errorf("%s: %w", p.manifest, err)
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

// annotate returns the manifest of the pod with a digest of what it does not read again. It returns the original if all of
// that is the original.
func (p pod) annotate(originals, all contents, bundle string) ([]byte, error) {
	was, err := p.digest(originals, bundle)
	if err != nil {
		return nil, err
	}
	is, err := p.digest(all, bundle)
	if err != nil || is == was {
		return originals[p.manifest], err
	}
	return annotate(originals[p.manifest], is)
}

func (p pod) digest(all contents, bundle string) (string, error) {
	hash := sha256.New()
	if p.bundle { // the order does not matter
		certs, err := pemfile.Certificates(all[bundle])
		if err != nil {
			return "", err
		}
		slices.SortFunc(certs, func(a, b *x509.Certificate) int { return bytes.Compare(a.Raw, b.Raw) })
		for _, c := range certs {
			_, _ = hash.Write(c.Raw) // never fails
		}
	}
	_, _ = hash.Write(all[p.kubeconfig])
	const enough = 8 // bytes; it need only differ from stage to stage
	return hex.EncodeToString(hash.Sum(nil)[:enough]), nil
}

// annotate sets podAnnotation in a manifest. It inserts a line, if that is all that it takes.
func annotate(manifest []byte, value string) ([]byte, error) {
	object := map[string]any{}
	if err := yaml.Unmarshal(manifest, &object); err != nil {
		return nil, fmt.Errorf("want a manifest in YAML")
	}
	metadata, _ := object["metadata"].(map[string]any)
	if metadata == nil {
		return nil, fmt.Errorf("want a manifest with metadata")
	}
	annotations, _ := metadata["annotations"].(map[string]any)
	if annotations == nil {
		annotations = map[string]any{}
		metadata["annotations"] = annotations
	}
	annotations[podAnnotation] = value
	line := fmt.Sprintf("    %s: %q\n", podAnnotation, value)
	text, given := string(manifest), "\nmetadata:\n"
	for _, insert := range []struct{ after, text string }{{given + "  annotations:\n", line}, {given, "  annotations:\n" + line}} {
		at := strings.Index(text, insert.after)
		if at < 0 {
			continue
		}
		at += len(insert.after)
		changed, got := []byte(text[:at]+insert.text+text[at:]), map[string]any{}
		if yaml.Unmarshal(changed, &got) == nil && reflect.DeepEqual(got, object) {
			return changed, nil
		}
	}
	return yaml.Marshal(object)
}
