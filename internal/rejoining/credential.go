package rejoining

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// nodePrefix is the prefix of the common name in the certificate of a node.
const nodePrefix = "system:node:"

// A Credential is what a machine proves with that it is a node.
type Credential struct {
	Node string
	Key  crypto.Signer
	// Chain is the certificate of the node in PEM with its intermediates, and Leaf the certificate. They are empty if Key
	// is a bound key.
	Chain []byte
	Leaf  *x509.Certificate
	// CA is the CA of the cluster in PEM, if the kubeconfig has one.
	CA []byte
}

// kubeconfig has what is needed of the kubeconfig of a kubelet. Paths are relative to its folder.
type kubeconfig struct {
	Clusters []struct {
		Cluster struct {
			Data []byte `json:"certificate-authority-data"`
			File string `json:"certificate-authority"`
		} `json:"cluster"`
	} `json:"clusters"`
	Users []struct {
		User struct {
			Certificate     []byte `json:"client-certificate-data"`
			CertificateFile string `json:"client-certificate"`
			Key             []byte `json:"client-key-data"`
			KeyFile         string `json:"client-key"`
		} `json:"user"`
	} `json:"users"`
}

// OfKubeconfig returns the credential in the kubeconfig of a kubelet.
func OfKubeconfig(file string) (*Credential, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var config kubeconfig
	if err := yaml.Unmarshal(content, &config); err != nil || len(config.Users) != 1 || len(config.Clusters) != 1 {
		return nil, fmt.Errorf("%s: want a kubeconfig of a kubelet, with one cluster and one user", file)
	}
	cluster, user := config.Clusters[0].Cluster, config.Users[0].User
	var errs []error
	read := func(data []byte, path string) []byte {
		if len(data) > 0 || path == "" {
			return data
		}
		if !filepath.IsAbs(path) {
			path = filepath.Join(filepath.Dir(file), path)
		}
		content, err := os.ReadFile(path)
		errs = append(errs, err)
		return content
	}
	certificate, key := read(user.Certificate, user.CertificateFile), read(user.Key, user.KeyFile)
	ca := read(cluster.Data, cluster.File)
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(certificate) == 0 || len(key) == 0 {
		return nil, fmt.Errorf("%s: its user has no client certificate", file)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("%s: client certificate: %w", file, err)
	}
	c := &Credential{Leaf: pair.Leaf, CA: ca}
	for _, der := range pair.Certificate {
		c.Chain = append(c.Chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	var ok bool
	if c.Key, ok = pair.PrivateKey.(crypto.Signer); !ok {
		return nil, fmt.Errorf("%s: the private key cannot sign", file)
	}
	if c.Node, ok = strings.CutPrefix(c.Leaf.Subject.CommonName, nodePrefix); !ok {
		return nil, fmt.Errorf("%s: the certificate is of %q, want that of a node", file, c.Leaf.Subject)
	}
	return c, nil
}

// ReadKey reads a private key in PEM: PKCS #8, or the older formats of ECDSA and RSA keys.
func ReadKey(file string) (crypto.Signer, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for rest := content; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return nil, fmt.Errorf("%s: want a private key in PEM", file)
		}
		var key any
		switch block.Type {
		case "PRIVATE KEY":
			key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		case "EC PRIVATE KEY":
			key, err = x509.ParseECPrivateKey(block.Bytes)
		case "RSA PRIVATE KEY":
			key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
		default: // such as the parameters of an ECDSA key
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: malformed private key", file) // not err, which could quote it
		}
		signer, ok := key.(crypto.Signer)
		if !ok {
			return nil, fmt.Errorf("%s: the private key cannot sign", file)
		}
		return signer, nil
	}
}

// PublicPEM returns the public key of a key in PEM.
func PublicPEM(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), nil
}
