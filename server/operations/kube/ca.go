package kube

import (
	"context"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/kube/caobserver"
	"github.com/kubejoin/kubejoin/server/operations"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/revocation/configmaps"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/signer/rotation/clusterstore"
	"github.com/kubejoin/kubejoin/tokens"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Rotations returns the operations that rotate the CAs of a cluster, with ExpireTokens unset. pkiDir is the folder with
// the files of a control plane; empty if there is none.
func Rotations(client kubernetes.Interface, pkiDir string) *operations.Rotations {
	store, trusted := clusterstore.New(client), trustedCAs{client, pkiDir}
	return &operations.Rotations{
		Desk: &rotation.Desk{
			Store: store, Keys: store, Observer: &caobserver.Observer{Client: client}, Trusted: trusted.of, DropMerged: store.DropMerged, Copy: store,
			Check: func(_ rotation.CA, fresh []*x509.Certificate) error {
				return signer.CheckTrust(fresh[0], fresh, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, nil)
			},
		},
		Cross: func(ca rotation.CA, fresh *x509.Certificate) (*x509.Certificate, error) {
			path, err := caFile(pkiDir, ca)
			if err != nil {
				return nil, err
			}
			old, err := signer.LoadCA(path+".crt", path+".key")
			if err != nil {
				return nil, fmt.Errorf("%w; run the command on a control plane with the CA key", err)
			}
			return old.CrossSign(fresh)
		},
	}
}

// caFile returns the path of a CA in kubeadm's folder, without the extension. Its error is about the field ca.
func caFile(pkiDir string, ca rotation.CA) (string, error) {
	name := map[rotation.CA]string{rotation.Cluster: "ca", rotation.FrontProxy: "front-proxy-ca", rotation.Etcd: "etcd/ca"}[ca]
	if pkiDir == "" {
		return "", elsewhere("this kubejoin has no --pki-dir with %s.crt and %[1]s.key; run the command with a kubeconfig on a control plane", name)
	}
	return filepath.Join(pkiDir, name), nil
}

// elsewhere returns the error of a command that works only on another host. The error is about the request, because a
// retry does not help.
func elsewhere(format string, args ...any) error {
	return &tokens.FieldError{Field: "ca", Err: fmt.Errorf(format, args...)}
}

// trustedCAs finds the certificates that a cluster trusts now.
type trustedCAs struct {
	client kubernetes.Interface
	pkiDir string
}

func (t trustedCAs) of(ctx context.Context, ca rotation.CA) ([]*x509.Certificate, error) {
	switch ca {
	case rotation.Cluster:
		info, err := t.client.CoreV1().ConfigMaps(clusterinfo.Namespace).Get(ctx, clusterinfo.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		_, cas, err := clusterinfo.ParseKubeconfig([]byte(info.Data[clusterinfo.KubeconfigKey]))
		if err != nil {
			return nil, err
		}
		clients, err := configmaps.ClientCAs(ctx, t.client)
		if err != nil || len(clients) == 0 {
			return cas, err
		}
		// Skip other CAs in cluster-info, which are for a load balancer. Hosts do not trust them for clients, so no
		// rotation replaces them.
		pins := clusterinfo.Pins(clients)
		own := slices.DeleteFunc(slices.Clone(cas), func(c *x509.Certificate) bool { return !slices.Contains(pins, clusterinfo.Pin(c)) })
		if len(own) == 0 {
			return nil, fmt.Errorf("cluster-info has %s, want one of the CAs whose client certificates API servers accept: %s", clusterinfo.Pins(cas), pins)
		}
		return own, nil
	case rotation.FrontProxy:
		const namespace, name, key = metav1.NamespaceSystem, "extension-apiserver-authentication", "requestheader-client-ca-file"
		info, err := t.client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		cas, err := clusterinfo.ParseCAs([]byte(info.Data[key]))
		if err != nil {
			return nil, fmt.Errorf("%s in ConfigMap %s/%s: %w", key, namespace, name, err)
		}
		return cas, nil
	}
	path, err := caFile(t.pkiDir, ca) // no API object contains this CA
	if err != nil {
		return nil, err
	}
	content, err := os.ReadFile(path + ".crt")
	if err != nil {
		return nil, elsewhere("%w; run the command with a kubeconfig on a control plane", err)
	}
	cas, err := clusterinfo.ParseCAs(content)
	if err != nil {
		return nil, fmt.Errorf("%s.crt: %w", path, err)
	}
	return cas, nil
}
