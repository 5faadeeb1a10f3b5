// Package kubeadmcerts uploads the certificates and keys that all control planes of a cluster share, as
// 'kubeadm init phase upload-certs --upload-certs' does. They are encrypted in the Secret
// kube-system/kubeadm-certs, and 'kubeadm join --control-plane --certificate-key' downloads them.
package kubeadmcerts

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
)

// Files are the contents of files by their key in the Secret, for example "etcd-ca.crt". An empty content
// stands for a file that this host does not have, for example the key of an external CA.
type Files map[string][]byte

// names returns the names of the files that are not empty, sorted.
func names(files map[string][]byte) []string {
	list := []string{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if len(files[name]) > 0 {
			list = append(list, name)
		}
	}
	return list
}

func (f Files) equal(other Files) bool {
	return maps.EqualFunc(f, other, bytes.Equal)
}

// Encrypt returns the data of the Secret. Each value is a random nonce and the file in AES-256-GCM, as in
// kubeadm. An empty file stays empty.
func (f Files) Encrypt(key joinformat.CertificateKey) (map[string][]byte, error) {
	aead, err := gcm(key)
	if err != nil {
		return nil, err
	}
	data := make(map[string][]byte, len(f))
	for name, content := range f {
		if len(content) == 0 {
			data[name] = nil
			continue
		}
		nonce := make([]byte, aead.NonceSize(), aead.NonceSize()+len(content)+aead.Overhead())
		_, _ = rand.Read(nonce) // never fails
		data[name] = aead.Seal(nonce, nonce, content, nil)
	}
	return data, nil
}

// Decrypt reverses [Files.Encrypt]. It fails if any value was not encrypted with this key.
func Decrypt(data map[string][]byte, key joinformat.CertificateKey) (Files, error) {
	aead, err := gcm(key)
	if err != nil {
		return nil, err
	}
	files := make(Files, len(data))
	for name, value := range data {
		if len(value) == 0 {
			files[name] = nil
			continue
		}
		if len(value) < aead.NonceSize() {
			return nil, fmt.Errorf("%.40q has %d bytes, want at least %d", name, len(value), aead.NonceSize())
		}
		nonce, sealed := value[:aead.NonceSize()], value[aead.NonceSize():]
		if files[name], err = aead.Open(nil, nonce, sealed, nil); err != nil {
			return nil, fmt.Errorf("%.40q is not encrypted with this certificate key", name)
		}
	}
	return files, nil
}

func gcm(key joinformat.CertificateKey) (cipher.AEAD, error) {
	if key.IsZero() {
		return nil, errors.New("no certificate key given")
	}
	raw, err := hex.DecodeString(key.Reveal())
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(raw)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}
