package joinformat

import (
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/tokens"
	"sigs.k8s.io/yaml"
)

// A Join is the data that a machine needs to become a node. Its methods fail if a field that they need is missing.
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
	// TurnServer is the HOST:PORT of a kubejoin server at which a control plane waits for its turn to join. Empty
	// means Endpoint. If that server has no turns or cannot be reached, the machine joins without a turn.
	TurnServer string
	// RejoinURL is the https://HOST:PORT of a kubejoin server at which the machine can rejoin after its certificate has
	// expired. [Join.Script] then also installs the files that rejoining needs. Other formats ignore it.
	RejoinURL string
	// JoiningTaint makes a worker register with the taint of [tokens.JoiningTaint]. Only formats that pass
	// [Format.CheckTaint] contain it.
	JoiningTaint bool
	// Machine means that the script contains no secret. The script proves the machine's own key to Endpoint, which must be a
	// kubejoin server, and gets a token from it. Only formats that pass [Format.CheckMachine] can do this. Token,
	// CertificateKey and JoiningTaint must be zero, because the server decides about them.
	Machine bool
	// Node is the node name of a Machine. Empty means its host name.
	Node string
	// Expires is when the token expires; zero: never. Warnings are messages for the person who gets the join
	// command. Only [Join.JSON] writes them.
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

// ConfigAPIVersion is the apiVersion of all configuration that kubejoin writes for kubeadm. Each supported version
// reads it. kubeadm 1.37 no longer reads v1beta3, and reads v1 only with --allow-experimental-api. The join tests pass
// it to kubeadm in each supported version.
const ConfigAPIVersion = "kubeadm.k8s.io/v1beta4"

// An object is a document in YAML, or a part of one. The encoder sorts its keys.
type object = map[string]any

// Configuration returns a JoinConfiguration for 'kubeadm join --config'. It has no fields about the
// machine, but for JoiningTaint in nodeRegistration; they can be added.
func (j Join) Configuration() ([]byte, error) { return j.configuration(j.JoiningTaint) }

// configuration returns the Configuration, with or without the JoiningTaint.
func (j Join) configuration(tainted bool) ([]byte, error) {
	if _, err := j.Line(); err != nil { // checks the same fields
		return nil, fmt.Errorf("join configuration: %w", err)
	}
	c := object{
		"apiVersion": ConfigAPIVersion, "kind": "JoinConfiguration",
		"discovery": object{"bootstrapToken": object{
			"apiServerEndpoint": j.Endpoint, "caCertHashes": clusterinfo.Pins(j.CAs),
			"token": j.Token.Reveal(), // also kubeadm's tlsBootstrapToken
		}},
	}
	if j.JoiningTaint && !j.CertificateKey.IsZero() { // kubeadm would omit its own taint
		return nil, fmt.Errorf("join configuration: taint %s: a control plane registers without it", tokens.JoiningTaint)
	}
	if tainted {
		c["nodeRegistration"] = object{"taints": []object{{"key": tokens.JoiningTaint, "effect": joiningEffect}}}
	}
	if !j.CertificateKey.IsZero() {
		c["controlPlane"] = object{"certificateKey": j.CertificateKey.Reveal()}
	}
	return yaml.Marshal(c)
}

// checkMachine returns an error if j is not a valid Join of a Machine. If j has a token, Configuration checks the same fields.
func (j Join) checkMachine() error {
	if !j.Token.IsZero() || !j.CertificateKey.IsZero() || j.JoiningTaint {
		return errors.New("machine with a token, a certificate key or a taint given, want none: the server decides about them")
	}
	if len(j.CAs) == 0 {
		return errors.New("no CA given, want at least one")
	}
	if err := tokens.CheckNodeName(j.Node); j.Node != "" && err != nil {
		return err
	}
	return clusterinfo.CheckEndpoint(j.Endpoint)
}

const (
	joiningEffect = "NoSchedule"
	// joiningTaint is a value of the flag --register-with-taints of the kubelet.
	joiningTaint = tokens.JoiningTaint + ":" + joiningEffect
)

// Names that kubeadm uses.
const (
	clusterName = "kubernetes"
	userName    = "tls-bootstrap-token-user"
	contextName = userName + "@" + clusterName
)

// Kubeconfig returns a kubeconfig for the API server with the token as the credential. It is for 'kubeadm join
// --discovery-file', which then needs no anonymous access and no Endpoint, and for a kubelet's
// --bootstrap-kubeconfig. It fails if j has a CertificateKey, because kubeadm reads this key only from a flag.
func (j Join) Kubeconfig() ([]byte, error) {
	if !j.Token.HasSecret() {
		return nil, fmt.Errorf("token %s: its secret is not known", j.Token)
	}
	if !j.CertificateKey.IsZero() {
		return nil, errors.New("certificate key: a kubeconfig cannot contain it")
	}
	k := object{
		"apiVersion": "v1", "kind": "Config",
		"clusters":        []object{{"name": clusterName, "cluster": object{"certificate-authority-data": []byte(j.Bundle()), "server": j.Server}}},
		"contexts":        []object{{"name": contextName, "context": object{"cluster": clusterName, "user": userName}}},
		"current-context": contextName,
	}
	// Apply the checks of a discovery kubeconfig, which has no user. A join command may be unable to name the server.
	public, err := yaml.Marshal(k)
	if err != nil {
		return nil, err
	}
	if _, _, err := clusterinfo.ParseKubeconfig(public); err != nil {
		return nil, err
	}
	k["users"] = []object{{"name": userName, "user": object{"token": j.Token.Reveal()}}}
	return yaml.Marshal(k)
}

// Bundle returns the CAs in PEM.
func (j Join) Bundle() string { return string(pemfile.Encode(j.CAs...)) }
