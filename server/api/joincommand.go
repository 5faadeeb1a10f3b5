package api

import "time"

// Formats of the answer to PrintJoinCommand. Each of them holds the token.
const (
	// FormatText is kubeadm's line, which an empty Format is, too.
	FormatText = "text"
	// FormatJSON is a JoinCommand.
	FormatJSON = "json"
	// FormatYAML is a JoinConfiguration for 'kubeadm join --config FILE'.
	FormatYAML = "yaml"
	// FormatKubeconfig is for 'kubeadm join --discovery-file FILE', and is a kubelet's
	// bootstrap-kubelet.conf as well.
	FormatKubeconfig = "kubeconfig"
	// FormatCloudConfig is user data for cloud-init.
	FormatCloudConfig = "cloud-config"
	// FormatIgnition is a config of Ignition 3.
	FormatIgnition = "ignition"
	// FormatScript is a program of POSIX sh.
	FormatScript = "script"
)

// PrintJoinCommand asks for a token and how a machine joins with it.
type PrintJoinCommand struct {
	TokenSpec
	// Format is one of the Format constants.
	Format string `json:"format,omitempty"`
}

// A JoinCommand is what a machine needs to join, piece by piece.
type JoinCommand struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	ID    string `json:"id"`
	Token Secret `json:"token"`
	// Expires is zero, and left out, if the token never does.
	Expires time.Time `json:"expires,omitzero"`
	// Endpoint is the HOST:PORT to ask for cluster-info, and CACertHashes are the pins of the CAs
	// that may be trusted then, in kubeadm's form.
	Endpoint     string   `json:"endpoint"`
	CACertHashes []string `json:"caCertHashes"`
	// APIServer is the https://HOST:PORT that cluster-info names, and CABundle its CAs in PEM.
	APIServer string `json:"apiServer"`
	CABundle  string `json:"caBundle"`
	// JoinCommand is kubeadm's line.
	JoinCommand Secret `json:"joinCommand"`
}
