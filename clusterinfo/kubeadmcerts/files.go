package kubeadmcerts

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/internal/pemfile"
	"k8s.io/client-go/util/keyutil"
	"sigs.k8s.io/yaml"
)

// DefaultDir is the folder where kubeadm keeps the certificates of a control plane.
const DefaultDir = "/etc/kubernetes/pki"

// maxFile is the maximum size of an uploaded file, in bytes. All files together must fit into a Secret of 1 MiB.
const maxFile = 96 << 10

// A Configuration is the part of kubeadm's ClusterConfiguration that says where shared files and etcd are, and which names
// certificates have. All configVersions have these fields.
type Configuration struct {
	APIVersion      string `json:"apiVersion"`
	Kind            string `json:"kind"`
	CertificatesDir string `json:"certificatesDir"`
	APIServer       struct {
		CertSANs []string `json:"certSANs"`
	} `json:"apiServer"`
	Etcd struct {
		Local *struct {
			ServerCertSANs []string `json:"serverCertSANs"`
			PeerCertSANs   []string `json:"peerCertSANs"`
		} `json:"local"`
		External *struct {
			Endpoints []string `json:"endpoints"`
			CAFile    string   `json:"caFile"`
			CertFile  string   `json:"certFile"`
			KeyFile   string   `json:"keyFile"`
		} `json:"external"`
	} `json:"etcd"`
}

// configVersions are the versions of the ClusterConfiguration that kubeadm stores: v1beta3 before 1.31, and v1beta4
// since. kubeadm 1.37 contains v1, which is still disabled.
var configVersions = []string{"kubeadm.k8s.io/v1beta3", "kubeadm.k8s.io/v1beta4", "kubeadm.k8s.io/v1"}

// parseConfiguration parses the ClusterConfiguration in the ConfigMap kubeadm-config.
func parseConfiguration(content string) (Configuration, error) {
	var c Configuration
	if err := yaml.Unmarshal([]byte(content), &c); err != nil {
		return c, errors.New("malformed YAML")
	}
	if c.Kind != "ClusterConfiguration" {
		return c, fmt.Errorf("kind %.40q given, want ClusterConfiguration", c.Kind)
	}
	if !slices.Contains(configVersions, c.APIVersion) {
		return c, fmt.Errorf("apiVersion %.40q given, want %s", c.APIVersion, strings.Join(configVersions, ", "))
	}
	if c.CertificatesDir == "" {
		c.CertificatesDir = DefaultDir
	}
	return c, nil
}

// A source is a file to upload.
type source struct {
	name, path string
	required   bool
}

// sources returns the files that kubeadm uploads. With external etcd, they include the files that the API server needs
// as a client of etcd. Without one of the required files, a control plane that joins would generate its own.
func (c Configuration) sources(dir string) []source {
	in := func(name ...string) string { return filepath.Join(append([]string{dir}, name...)...) }
	list := []source{
		{"ca.crt", in("ca.crt"), true},
		{"ca.key", in("ca.key"), false},
		{"front-proxy-ca.crt", in("front-proxy-ca.crt"), true},
		{"front-proxy-ca.key", in("front-proxy-ca.key"), false},
		{"sa.pub", in("sa.pub"), true},
		{"sa.key", in("sa.key"), true},
	}
	external := c.Etcd.External
	if external == nil {
		return append(list, source{"etcd-ca.crt", in("etcd", "ca.crt"), true}, source{"etcd-ca.key", in("etcd", "ca.key"), false})
	}
	for _, file := range []source{
		{"external-etcd-ca.crt", external.CAFile, external.CAFile != ""},
		{"external-etcd.crt", external.CertFile, external.CertFile != ""},
		{"external-etcd.key", external.KeyFile, external.KeyFile != ""},
	} {
		if below, err := filepath.Rel(c.CertificatesDir, file.path); err == nil && filepath.IsLocal(below) {
			file.path = in(below) // the folder may be mounted at another path
		}
		list = append(list, file)
	}
	return list
}

// read reads the files to upload. dir is the folder on this host in place of certificatesDir.
func (c Configuration) read(dir string) (Files, error) {
	files := Files{}
	var missing []string
	for _, s := range c.sources(dir) {
		content, err := readFile(s.path)
		switch {
		case errors.Is(err, fs.ErrNotExist) && s.required:
			missing = append(missing, s.path)
		case errors.Is(err, fs.ErrNotExist): // kubeadm uploads an empty value
		case err != nil:
			return nil, fmt.Errorf("%s: %w", s.name, err)
		default:
			if err := checkPEM(content); err != nil {
				return nil, fmt.Errorf("%s: %w", s.path, err)
			}
		}
		files[s.name] = content
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("a control plane shares these files, and they do not exist here: %s", strings.Join(missing, ", "))
	}
	return files, nil
}

func readFile(path string) ([]byte, error) {
	if path == "" {
		return nil, fs.ErrNotExist
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // the file was only read
	content, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(content) > maxFile {
		return nil, fmt.Errorf("%s has more than %d bytes", path, maxFile)
	}
	return content, nil
}

// checkPEM returns an error for a file that kubeadm refuses to download, and for a file with a PEM block that kubeadm
// would skip.
func checkPEM(content []byte) error {
	if _, err := pemfile.Blocks(content); err != nil {
		return err
	}
	if _, err := keyutil.ParsePrivateKeyPEM(content); err == nil {
		return nil
	}
	if _, err := keyutil.ParsePublicKeysPEM(content); err != nil {
		return errors.New("want a certificate or a key in PEM")
	}
	return nil
}
