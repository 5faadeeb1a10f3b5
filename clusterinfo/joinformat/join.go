package joinformat

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/tokens"
	"sigs.k8s.io/yaml"
)

// A Join is what a machine needs to become a node. Its methods fail if a field that they need is missing.
type Join struct {
	// Endpoint is the HOST:PORT from which the machine requests cluster-info: a kubejoin server or the API
	// server.
	Endpoint string
	// Token must allow discovery and authentication.
	Token tokens.Token
	// Server is the https://HOST:PORT of the API server, and CAs are its CAs, both as in the kubeconfig of
	// cluster-info.
	Server string
	CAs    []*x509.Certificate
	// CertificateKey joins the machine as a control-plane node; the zero value joins a worker.
	CertificateKey CertificateKey
	// TurnServer is the HOST:PORT of a kubejoin server at which a control plane waits for its turn to join. Empty is
	// Endpoint. If it has no turns or cannot be reached, the machine joins without one.
	TurnServer string
	// RejoinURL is the https://HOST:PORT of a kubejoin server at which the machine can rejoin after its certificate has
	// expired. [Join.Script] then also installs what the machine needs for that. Other formats ignore it.
	RejoinURL string
	// Expires is when the token expires, zero if it never does. Warnings are messages for the person who gets the
	// join command. Only [Join.JSON] writes them.
	Expires  time.Time
	Warnings []string
}

// Line returns the kubeadm join command with a newline.
func (j Join) Line() ([]byte, error) {
	line, err := clusterinfo.JoinCommand{Endpoint: j.Endpoint, Token: j.Token, Pins: clusterinfo.Pins(j.CAs)}.Reveal()
	if err != nil {
		return nil, err
	}
	if !j.CertificateKey.IsZero() {
		line += " --control-plane --certificate-key " + j.CertificateKey.Reveal()
	}
	return []byte(line + "\n"), nil
}

// ConfigAPIVersion is the apiVersion of all configuration that kubejoin writes for kubeadm. Each supported version reads it.
// kubeadm 1.37 no longer reads v1beta3, and reads v1 only with --allow-experimental-api. The tests of joins
// give it to the kubeadm of each supported version.
const ConfigAPIVersion = "kubeadm.k8s.io/v1beta4"

// joinConfiguration is what kubeadm reads in [ConfigAPIVersion].
type joinConfiguration struct {
	APIVersion   string        `json:"apiVersion"`
	Kind         string        `json:"kind"`
	ControlPlane *controlPlane `json:"controlPlane,omitempty"`
	Discovery    discovery     `json:"discovery"`
}

type controlPlane struct {
	CertificateKey string `json:"certificateKey"`
}

type discovery struct {
	BootstrapToken bootstrapToken `json:"bootstrapToken"`
}

type bootstrapToken struct {
	APIServerEndpoint string   `json:"apiServerEndpoint"`
	CACertHashes      []string `json:"caCertHashes"`
	Token             string   `json:"token"` // also kubeadm's tlsBootstrapToken
}

// Configuration returns a JoinConfiguration for 'kubeadm join --config'. It has no fields about the
// machine, such as nodeRegistration; they can be added.
func (j Join) Configuration() ([]byte, error) {
	if _, err := j.Line(); err != nil { // checks the same fields
		return nil, fmt.Errorf("join configuration: %w", err)
	}
	c := joinConfiguration{
		APIVersion: ConfigAPIVersion, Kind: "JoinConfiguration",
		Discovery: discovery{bootstrapToken{j.Endpoint, clusterinfo.Pins(j.CAs), j.Token.Reveal()}},
	}
	if !j.CertificateKey.IsZero() {
		c.ControlPlane = &controlPlane{j.CertificateKey.Reveal()}
	}
	return yaml.Marshal(c)
}

type kubeconfig struct {
	APIVersion     string         `json:"apiVersion"`
	Kind           string         `json:"kind"`
	Clusters       []namedCluster `json:"clusters"`
	Contexts       []namedContext `json:"contexts"`
	CurrentContext string         `json:"current-context"`
	Users          []namedUser    `json:"users"`
}

type namedCluster struct {
	Name    string  `json:"name"`
	Cluster cluster `json:"cluster"`
}

type cluster struct {
	CAData []byte `json:"certificate-authority-data"`
	Server string `json:"server"`
}

type namedContext struct {
	Name    string        `json:"name"`
	Context configContext `json:"context"`
}

type configContext struct {
	Cluster string `json:"cluster"`
	User    string `json:"user"`
}

type namedUser struct {
	Name string `json:"name"`
	User user   `json:"user"`
}

type user struct {
	Token string `json:"token"`
}

// Names that kubeadm uses.
const (
	clusterName = "kubernetes"
	userName    = "tls-bootstrap-token-user"
	contextName = userName + "@" + clusterName
)

// Kubeconfig returns a kubeconfig for the API server with the token as the credential. It is for 'kubeadm
// join --discovery-file', which then needs no anonymous access and no Endpoint, and for a kubelet's
// --bootstrap-kubeconfig. It fails with a CertificateKey, because kubeadm only reads that from its own
// flag.
func (j Join) Kubeconfig() ([]byte, error) {
	if !j.Token.HasSecret() {
		return nil, fmt.Errorf("token %s: its secret is not known", j.Token)
	}
	if !j.CertificateKey.IsZero() {
		return nil, errors.New("certificate key: a kubeconfig cannot contain it")
	}
	k := kubeconfig{
		APIVersion: "v1", Kind: "Config",
		Clusters:       []namedCluster{{clusterName, cluster{[]byte(j.Bundle()), j.Server}}},
		Contexts:       []namedContext{{contextName, configContext{clusterName, userName}}},
		CurrentContext: contextName,
	}
	// Apply the checks of a discovery kubeconfig, which has no user. The server may be one that no join command can name.
	public, err := yaml.Marshal(k)
	if err != nil {
		return nil, err
	}
	if _, _, err := clusterinfo.ParseKubeconfig(public); err != nil {
		return nil, err
	}
	k.Users = []namedUser{{userName, user{j.Token.Reveal()}}}
	return yaml.Marshal(k)
}

// Bundle returns the CAs in PEM.
func (j Join) Bundle() string {
	var bundle []byte
	for _, ca := range j.CAs {
		bundle = append(bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw})...)
	}
	return string(bundle)
}
