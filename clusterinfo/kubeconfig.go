package clusterinfo

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"
)

// MaxKubeconfig is the maximum size of a discovery kubeconfig in bytes: about sixty CA certificates.
// Malicious YAML as long as a ConfigMap would take a third of a second to parse.
const MaxKubeconfig = 128 << 10

// ErrKubeconfig is wrapped by errors of [ParseKubeconfig]: a joining node cannot use the kubeconfig.
var ErrKubeconfig = errors.New("kubeconfig")

// discoveryKubeconfig is one cluster and the empty fields that clientcmd writes, too.
type discoveryKubeconfig struct {
	APIVersion     string         `json:"apiVersion"`
	Clusters       []namedCluster `json:"clusters"`
	Contexts       []any          `json:"contexts"`
	CurrentContext string         `json:"current-context"`
	Kind           string         `json:"kind"`
	Users          []any          `json:"users"`
}

type namedCluster struct {
	Name    string  `json:"name"`
	Cluster cluster `json:"cluster"`
}

type cluster struct {
	CAData []byte `json:"certificate-authority-data,omitempty"`
	Server string `json:"server"`

	// Never written, and rejected when read: each of them would change what is trusted.
	CAFile        string `json:"certificate-authority,omitempty"`
	Insecure      bool   `json:"insecure-skip-tls-verify,omitempty"`
	ProxyURL      string `json:"proxy-url,omitempty"`
	TLSServerName string `json:"tls-server-name,omitempty"`
}

// Kubeconfig returns the discovery kubeconfig: one cluster without a name and no credential. The cluster
// has the address of the API server (https://HOST[:PORT][/PATH]) and at least one CA certificate. The same
// input gives the same bytes.
func Kubeconfig(server string, cas []*x509.Certificate) ([]byte, error) {
	if err := checkServer(server); err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	if len(cas) == 0 {
		return nil, errors.New("kubeconfig: certificate-authority-data: no CA certificate given, want at least one")
	}
	var bundle []byte
	for i, ca := range cas {
		if ca == nil || len(ca.Raw) == 0 {
			return nil, fmt.Errorf("kubeconfig: certificate-authority-data: certificate %d is empty", i)
		}
		if ca.BasicConstraintsValid && !ca.IsCA {
			return nil, fmt.Errorf("kubeconfig: certificate-authority-data: certificate %d (%s) is not a CA", i, ca.Subject)
		}
		bundle = append(bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw})...)
	}
	b, err := yaml.Marshal(discoveryKubeconfig{
		APIVersion: "v1",
		Kind:       "Config",
		Clusters:   []namedCluster{{Cluster: cluster{CAData: bundle, Server: server}}},
	})
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	if len(b) > MaxKubeconfig {
		return nil, fmt.Errorf("kubeconfig: %d bytes with %d CA certificates, %d allowed", len(b), len(cas), MaxKubeconfig)
	}
	return b, nil
}

// ParseKubeconfig parses a discovery kubeconfig, from kubejoin or another program. It returns the address
// of the API server and the CA certificates. It rejects a kubeconfig that contains a credential, has not
// exactly one cluster, or trusts anything but its certificates. Errors wrap [ErrKubeconfig] and repeat
// nothing of the content but field names.
func ParseKubeconfig(kubeconfig []byte) (server string, cas []*x509.Certificate, err error) {
	server, cas, err = parseKubeconfig(kubeconfig)
	if err != nil {
		return "", nil, fmt.Errorf("%w: %w", ErrKubeconfig, err)
	}
	return server, cas, nil
}

func parseKubeconfig(kubeconfig []byte) (string, []*x509.Certificate, error) {
	if len(kubeconfig) > MaxKubeconfig {
		return "", nil, fmt.Errorf("%d bytes given, %d allowed", len(kubeconfig), MaxKubeconfig)
	}
	// Like kubeadm, be case-sensitive and reject duplicate fields. Otherwise the two could read different
	// clusters from the same bytes.
	asJSON, err := yaml.YAMLToJSONStrict(kubeconfig)
	if err != nil {
		return "", nil, errors.New("want YAML or JSON without duplicate fields")
	}
	var c discoveryKubeconfig
	if err := json.Unmarshal(asJSON, &c); err != nil {
		return "", nil, errors.New("want a v1 Config with fields of the usual types")
	}
	if c.APIVersion != "v1" || c.Kind != "Config" {
		return "", nil, errors.New("apiVersion and kind: want v1 and Config")
	}
	if len(c.Users) > 0 {
		return "", nil, fmt.Errorf("users: %d given, want none: discovery carries no credential", len(c.Users))
	}
	if len(c.Clusters) != 1 {
		return "", nil, fmt.Errorf("clusters: %d given, want 1", len(c.Clusters))
	}
	one := c.Clusters[0].Cluster
	if one.CAFile != "" || one.Insecure || one.ProxyURL != "" || one.TLSServerName != "" {
		return "", nil, errors.New("clusters[0]: want server and certificate-authority-data, not certificate-authority, insecure-skip-tls-verify, proxy-url or tls-server-name")
	}
	if err := checkServer(one.Server); err != nil {
		return "", nil, fmt.Errorf("clusters[0]: %w", err)
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

// ParseCAs parses a PEM bundle of CA certificates, for example a ca.crt. It ignores text between the
// certificates. Any other PEM block, such as a key, is an error.
func ParseCAs(data []byte) ([]*x509.Certificate, error) {
	var cas []*x509.Certificate
	for {
		var block *pem.Block
		block, data = pem.Decode(data)
		if block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, errors.New("want no PEM blocks other than CERTIFICATE")
		}
		ca, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(cas), err)
		}
		cas = append(cas, ca)
	}
	if len(cas) == 0 {
		return nil, errors.New("no PEM certificate, want at least one")
	}
	return cas, nil
}

func checkServer(server string) error {
	if server == "" {
		return errors.New("server: none given, want https://HOST:PORT")
	}
	u, err := url.Parse(server)
	// The error does not repeat the URL, which may contain a password.
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.ForceQuery ||
		u.Fragment != "" || u.Opaque != "" || strings.Contains(server, "#") {
		return errors.New("server: want a URL of the form https://HOST:PORT, without user, query or fragment")
	}
	return nil
}
