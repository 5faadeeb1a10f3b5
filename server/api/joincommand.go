package api

import "time"

// Formats of the response to PrintJoinCommand. Each of them contains the token.
const (
	// FormatText is the kubeadm command, and the default.
	FormatText = "text"
	// FormatJSON is a JoinCommand.
	FormatJSON = "json"
	// FormatYAML is a JoinConfiguration for 'kubeadm join --config FILE'.
	FormatYAML = "yaml"
	// FormatKubeconfig is for 'kubeadm join --discovery-file FILE', and also works as a kubelet's
	// bootstrap-kubelet.conf.
	FormatKubeconfig = "kubeconfig"
	// FormatCloudConfig is user data for cloud-init.
	FormatCloudConfig = "cloud-config"
	// FormatIgnition is an Ignition 3 config.
	FormatIgnition = "ignition"
	// FormatScript is a POSIX shell script.
	FormatScript = "script"
)

// PrintJoinCommand creates a token and requests the join command for it.
type PrintJoinCommand struct {
	TokenSpec
	// Format is one of the Format constants.
	Format string `json:"format,omitempty"`
	// ControlPlane requests a join command for one control plane. The server uploads the certificates that control
	// planes share, and the join command contains their certificate key. The token is then limited to one node and
	// has the role control-plane, unless the request sets other limits.
	ControlPlane bool `json:"controlPlane,omitempty"`
	// RejoinURL is the https://HOST:PORT of a kubejoin server, for FormatScript. The script then also installs the
	// files that the machine needs to rejoin there after its certificate has expired.
	RejoinURL string `json:"rejoinURL,omitempty"`
}

// A JoinCommand holds the data that a machine needs to join, in separate fields.
type JoinCommand struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	ID    string `json:"id"`
	Token Secret `json:"token"`
	// Expires is zero, and omitted, if the token never expires.
	Expires time.Time `json:"expires,omitzero"`
	// Endpoint is the HOST:PORT that serves cluster-info. CACertHashes are the CA pins, in kubeadm's form, that its
	// CAs must match.
	Endpoint     string   `json:"endpoint"`
	CACertHashes []string `json:"caCertHashes"`
	// APIServer is the https://HOST:PORT in cluster-info, and CABundle its CAs in PEM.
	APIServer string `json:"apiServer"`
	CABundle  string `json:"caBundle"`
	// JoinCommand is the kubeadm command.
	JoinCommand Secret `json:"joinCommand"`
	// CertificateKey decrypts the certificates of control planes; empty for a worker.
	CertificateKey Secret `json:"certificateKey,omitempty"`
	// Warnings are messages for the person who sent the request, as in the Warning header.
	Warnings []string `json:"warnings,omitempty"`
}
