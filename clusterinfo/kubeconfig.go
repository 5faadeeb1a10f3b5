package clusterinfo

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"

	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/yamldoc"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"
)

// MaxKubeconfig is the maximum size of a discovery kubeconfig in bytes: about sixty CA certificates. Malicious
// YAML of the size of a ConfigMap would take a third of a second to parse.
const MaxKubeconfig = 128 << 10

// ErrKubeconfig is wrapped by errors of [ParseKubeconfig]: a joining node cannot use the kubeconfig.
var ErrKubeconfig = errors.New("kubeconfig")

// discoveryKubeconfig is one cluster, and the empty fields that clientcmd also writes.
type discoveryKubeconfig struct {
	APIVersion     string         `json:"apiVersion"`
	Clusters       []namedCluster `json:"clusters"`
	Contexts       []namedContext `json:"contexts"`
	CurrentContext string         `json:"current-context"`
	Kind           string         `json:"kind"`
	Users          []any          `json:"users"`
}

type namedContext struct {
	Name    string      `json:"name"`
	Context kubeContext `json:"context"`
}

type kubeContext struct {
	Cluster string `json:"cluster"`
}

type namedCluster struct {
	Name    string  `json:"name"`
	Cluster cluster `json:"cluster"`
}

type cluster struct {
	CAData []byte `json:"certificate-authority-data,omitempty"`
	Server string `json:"server"`

	// kubejoin never writes these fields, and rejects them when it reads: see refused.
	CAFile        string `json:"certificate-authority,omitempty"`
	Insecure      bool   `json:"insecure-skip-tls-verify,omitempty"`
	ProxyURL      string `json:"proxy-url,omitempty"`
	TLSServerName string `json:"tls-server-name,omitempty"`
}

// refused returns a field of the cluster that is not allowed, or "". Each of them changes what a client trusts or where
// it connects. kubeadm ignores them if it discovers the cluster with a token, but obeys them in a discovery file. So
// machines that read the same cluster-info in two ways would trust different servers.
func (c cluster) refused() string {
	switch {
	case c.CAFile != "":
		return "certificate-authority"
	case c.Insecure:
		return "insecure-skip-tls-verify"
	case c.ProxyURL != "":
		return "proxy-url"
	case c.TLSServerName != "":
		return "tls-server-name"
	}
	return ""
}

// Kubeconfig returns the discovery kubeconfig: one cluster without a name and no credential. The cluster
// has the address of the API server, as [Endpoint] accepts it, and at least one CA certificate. The same
// input gives the same bytes.
func Kubeconfig(server string, cas []*x509.Certificate) ([]byte, error) {
	if _, err := Endpoint(server); err != nil {
		return nil, fmt.Errorf("kubeconfig: server: %w", err)
	}
	return kubeconfigOf(server, cas)
}

// kubeconfigOf is [Kubeconfig] for a server that was parsed before.
func kubeconfigOf(server string, cas []*x509.Certificate) ([]byte, error) {
	if len(cas) == 0 {
		return nil, errors.New("kubeconfig: certificate-authority-data: no CA certificate given, want at least one")
	}
	for i, ca := range cas {
		if ca == nil || len(ca.Raw) == 0 {
			return nil, fmt.Errorf("kubeconfig: certificate-authority-data: certificate %d is empty", i)
		}
		if ca.BasicConstraintsValid && !ca.IsCA {
			return nil, fmt.Errorf("kubeconfig: certificate-authority-data: certificate %d (%s) is not a CA", i, ca.Subject)
		}
	}
	b, err := yaml.Marshal(discoveryKubeconfig{
		APIVersion: "v1",
		Kind:       "Config",
		Clusters:   []namedCluster{{Cluster: cluster{CAData: pemfile.Encode(cas...), Server: server}}},
	})
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	if len(b) > MaxKubeconfig {
		return nil, fmt.Errorf("kubeconfig: %d bytes with %d CA certificates, %d allowed", len(b), len(cas), MaxKubeconfig)
	}
	return b, nil
}

// ParseKubeconfig parses a discovery kubeconfig, from kubejoin or another program. It returns the address of
// the API server and the CA certificates. It rejects a kubeconfig that contains a credential, has not exactly
// one cluster, or trusts anything but its certificates. Like kubeadm, it requires that the cluster has no name,
// or the cluster name of the current context. It accepts a server that [Endpoint] refuses. Errors wrap
// [ErrKubeconfig] and repeat only field names and the port from the content.
func ParseKubeconfig(kubeconfig []byte) (server string, cas []*x509.Certificate, err error) {
	server, cas, err = parseKubeconfig(kubeconfig)
	if err != nil {
		return "", nil, fmt.Errorf("%w: %w", ErrKubeconfig, err)
	}
	return server, cas, nil
}

func parseKubeconfig(kubeconfig []byte) (string, []*x509.Certificate, error) {
	if len(bytes.TrimSpace(kubeconfig)) == 0 {
		return "", nil, errors.New("empty, want a v1 Config with one cluster")
	}
	if len(kubeconfig) > MaxKubeconfig {
		return "", nil, fmt.Errorf("%d bytes given, %d allowed", len(kubeconfig), MaxKubeconfig)
	}
	// Like kubeadm, be case-sensitive and reject duplicate fields. Otherwise the two could read different
	// clusters from the same bytes.
	asJSON, err := yaml.YAMLToJSONStrict(kubeconfig)
	if err != nil {
		return "", nil, errors.New("want YAML or JSON without duplicate fields")
	}
	if err := yamldoc.Only(kubeconfig); err != nil {
		return "", nil, err
	}
	var c discoveryKubeconfig
	if err := json.Unmarshal(asJSON, &c); err != nil {
		return "", nil, errors.New("want a v1 Config with fields of the usual types")
	}
	if c.APIVersion != "v1" && c.APIVersion != "" || c.Kind != "Config" && c.Kind != "" { // client-go has these defaults
		return "", nil, errors.New("apiVersion and kind: want v1 and Config")
	}
	if len(c.Users) > 0 {
		return "", nil, fmt.Errorf("users: %d given, want none: discovery carries no credential", len(c.Users))
	}
	if len(c.Clusters) != 1 {
		return "", nil, fmt.Errorf("clusters: %d given, want 1", len(c.Clusters))
	}
	if name := c.Clusters[0].Name; name != "" && !slices.Contains(c.Contexts, namedContext{c.CurrentContext, kubeContext{name}}) {
		return "", nil, errors.New("clusters[0].name: want no name, or a context of the name in current-context with this cluster")
	}
	one := c.Clusters[0].Cluster
	if field := one.refused(); field != "" {
		return "", nil, fmt.Errorf("clusters[0].%s: want none, only server and certificate-authority-data", field)
	}
	if _, err := parseServer(one.Server); err != nil {
		return "", nil, fmt.Errorf("clusters[0].server: %w", err)
	}
	cas, err := ParseCAs(one.CAData)
	if err != nil {
		return "", nil, fmt.Errorf("clusters[0].certificate-authority-data: %w", err)
	}
	return one.Server, cas, nil
}

// WithServer returns the kubeconfig with another server and the same CAs. It returns the given bytes if
// they have that server already.
func WithServer(kubeconfig []byte, server string) ([]byte, error) {
	was, cas, err := ParseKubeconfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	if was == server {
		return kubeconfig, nil
	}
	return Kubeconfig(server, cas)
}

// WithCAs returns the kubeconfig with other CAs and the same server.
func WithCAs(kubeconfig []byte, cas []*x509.Certificate) ([]byte, error) {
	server, _, err := ParseKubeconfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	return kubeconfigOf(server, cas) // keep the server of cluster-info, even if no join command can name it
}

// ParseCAs parses a PEM bundle of CA certificates, for example a ca.crt. It ignores text between the
// certificates. Any other PEM block, such as a key, is an error, and so is a block that cannot be read.
func ParseCAs(data []byte) ([]*x509.Certificate, error) {
	return pemfile.OnlyCertificates(data)
}
