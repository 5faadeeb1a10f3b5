// Package kubelet reads and writes the files of a kubelet when its machine rejoins. It uses the same names and
// formats as the kubelet.
package kubelet

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/host/atomicfile"
	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/tokens"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// currentSuffix is the suffix of the symbolic link to the certificate that the kubelet uses.
const currentSuffix = "-current.pem"

// Files are the files that a rejoin needs, as the kubelet's kubeconfig names them.
type Files struct {
	// Current is the absolute path of the link to the file with its client certificate and key.
	Current string
	// CA is the CA of the cluster in PEM; it may be empty.
	CA []byte
	// embeds is the kubeconfig if it contains the certificate and the key; otherwise nil.
	embeds *clientcmdapi.Config
}

// Read reads the kubeconfig of a kubelet. If the kubeconfig contains the certificate, certDir is the folder for the
// next certificate.
func Read(kubeconfig, certDir string) (k Files, err error) {
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if asPath := (*fs.PathError)(nil); errors.As(err, &asPath) {
		return k, err
	}
	// Do not wrap err: errors of the YAML parser may contain parts of the file.
	if err != nil || clientcmd.ResolveLocalPaths(config) != nil || len(config.AuthInfos) != 1 || len(config.Clusters) != 1 {
		return k, fmt.Errorf("%s: want a kubeconfig of a kubelet, with one cluster and one user", kubeconfig)
	}
	for _, user := range config.AuthInfos {
		if user.ClientCertificate == "" && len(user.ClientCertificateData) > 0 {
			k.embeds = config
			k.Current, err = Current(certDir)
		} else if k.Current = user.ClientCertificate; user.ClientKey != k.Current || !strings.HasSuffix(k.Current, currentSuffix) {
			return k, fmt.Errorf("%s: want one file for client certificate and key that ends in %s", kubeconfig, currentSuffix)
		}
	}
	for _, cluster := range config.Clusters {
		if err != nil {
			break
		}
		if k.CA = cluster.CertificateAuthorityData; len(k.CA) == 0 && cluster.CertificateAuthority != "" {
			k.CA, err = os.ReadFile(cluster.CertificateAuthority)
		}
	}
	return k, err
}

// Current returns the path of the link to the kubelet's certificate in a folder.
func Current(certDir string) (string, error) {
	return filepath.Abs(filepath.Join(certDir, "kubelet-client"+currentSuffix))
}

// Kubeconfig returns the kubeconfig with the path k.Current in place of the certificate that it contains; nil if it
// contains none.
func (k Files) Kubeconfig() ([]byte, error) {
	if k.embeds == nil {
		return nil, nil
	}
	for _, user := range k.embeds.AuthInfos {
		user.ClientCertificate, user.ClientKey, user.ClientCertificateData, user.ClientKeyData = k.Current, k.Current, nil, nil
	}
	return clientcmd.Write(*k.embeds)
}

// Certificate returns the client certificate of the kubelet and the name of its node. Like the kubelet, it prefers k.Current
// to the certificate in the kubeconfig.
func (k Files) Certificate() (pair tls.Certificate, node string, err error) {
	pair, err = pemfile.LoadKeyPair(k.Current, k.Current)
	if k.embeds != nil && errors.Is(err, fs.ErrNotExist) {
		for _, user := range k.embeds.AuthInfos {
			pair, err = pemfile.KeyPair(user.ClientCertificateData, user.ClientKeyData)
		}
	}
	if err != nil {
		return pair, "", err
	}
	node, ok := strings.CutPrefix(pair.Leaf.Subject.CommonName, tokens.NodeUserPrefix)
	if !ok {
		err = fmt.Errorf("%s: certificate of %q, want that of a node", k.Current, pair.Leaf.Subject)
	}
	return pair, node, err
}

// SelfSigned returns a self-signed certificate for a key that is bound to a node. The server uses only its key, and
// the node name to find the claim.
func SelfSigned(node string, key crypto.Signer) (tls.Certificate, error) {
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: tokens.NodeUserPrefix + node},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// Key returns the key of the last request, or a new key if a certificate has been written since. Until a certificate is
// written, it keeps the key in a file. A server counts a rejoin once for each key, so a retry with the same key costs nothing.
func (k Files) Key() (*ecdsa.PrivateKey, error) {
	if content, err := os.ReadFile(k.pending()); err == nil {
		if key, err := pemfile.Key(content); err == nil {
			if key, ok := key.(*ecdsa.PrivateKey); ok {
				return key, nil
			}
		}
	}
	key, err := credentials.NewKey()
	if err != nil {
		return nil, err
	}
	content, err := credentials.EncodeKey(key)
	if err != nil {
		return nil, err
	}
	return key, atomicfile.Write(k.pending(), content)
}

func (k Files) pending() string {
	return strings.TrimSuffix(k.Current, currentSuffix) + "-rejoin.key"
}

// A NextFile is the pending new file to which the link of a kubelet will point.
type NextFile struct {
	*atomicfile.Replacement
	file  string
	files Files
}

// Prepare checks that a new file can be written and linked. The name of the file contains the date, like the kubelet's files.
func (k Files) Prepare() (*NextFile, error) {
	info, err := os.Lstat(k.Current)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = os.MkdirAll(filepath.Dir(k.Current), 0o755) // the kubelet's mode
	case err == nil && info.Mode()&os.ModeSymlink == 0:
		err = fmt.Errorf("%s: want a symbolic link, as the kubelet makes it", k.Current)
	}
	if err != nil {
		return nil, err
	}
	file := strings.TrimSuffix(k.Current, currentSuffix) + time.Now().Format("-2006-01-02-15-04-05.pem")
	replacement, err := atomicfile.Prepare(file)
	return &NextFile{replacement, file, k}, err
}

// Write writes certificate and key to the new file, replaces the link atomically, and removes the file of Key. The old
// file stays. If Write is interrupted, the link still points to the old file.
func (r *NextFile) Write(content []byte) error {
	if err := r.Replacement.Write(content, 0o600); err != nil {
		return err
	}
	if err := Link(r.file, r.files.Current); err != nil {
		return err
	}
	return os.Remove(r.files.pending())
}

// Link atomically points the link to the kubelet's certificate to another file.
func Link(file, link string) error {
	updated := strings.TrimSuffix(link, currentSuffix) + "-updated.pem"
	if err := os.Remove(updated); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(file, updated); err != nil {
		return err
	}
	return os.Rename(updated, link)
}
