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

// MaxKubeconfig is the most bytes of a discovery kubeconfig: about sixty CA certificates. YAML
// made to be slow takes a third of a second where it may be as long as a ConfigMap.
const MaxKubeconfig = 128 << 10

// ErrKubeconfig is wrapped by what [ParseKubeconfig] says of a kubeconfig that is of no use to a
// joining node.
var ErrKubeconfig = errors.New("kubeconfig")

// What is written: one cluster and the empty fields that clientcmd writes beside it.
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

	// Never written, refused when read: each would change what is trusted.
	CAFile        string `json:"certificate-authority,omitempty"`
	Insecure      bool   `json:"insecure-skip-tls-verify,omitempty"`
	ProxyURL      string `json:"proxy-url,omitempty"`
	TLSServerName string `json:"tls-server-name,omitempty"`
}

// Kubeconfig makes the discovery kubeconfig: one cluster without a name, with the address of
// the API server (https://HOST[:PORT][/PATH]) and at least one CA certificate, and no
// credential. The same input gives the same bytes.
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

// ParseKubeconfig reads a discovery kubeconfig, whoever made it: the address of the API server
// and the CA certificates. It refuses one that holds a credential, names more or less than one
// cluster, or says to trust anything but the certificates in it. Its errors wrap
// [ErrKubeconfig] and repeat none of the content beside names of fields.
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
	// Field names are case-sensitive and not given twice, as kubeadm reads them: otherwise the
	// two could see different clusters in the same bytes.
	asJSON, err := yaml.YAMLToJSONStrict(kubeconfig)
	if err != nil {
		return "", nil, errors.New("want YAML or JSON without a field given twice")
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

// WithServer gives the kubeconfig that names server and keeps the CAs: the bytes given if they
// name it already.
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

// ParseCAs reads a bundle of CA certificates in PEM, such as a ca.crt. Text between the
// certificates is passed over; anything else in PEM, such as a key, is an error.
func ParseCAs(data []byte) ([]*x509.Certificate, error) {
	var cas []*x509.Certificate
	for {
		var block *pem.Block
		block, data = pem.Decode(data)
		if block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, errors.New("a PEM block that is no CERTIFICATE")
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
	// What is wrong may stand beside a password: it is not repeated.
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.ForceQuery ||
		u.Fragment != "" || u.Opaque != "" || strings.Contains(server, "#") {
		return errors.New("server: want a URL of the form https://HOST:PORT, without user, query or fragment")
	}
	return nil
}
