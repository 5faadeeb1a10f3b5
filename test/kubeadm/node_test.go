package kubeadm

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/certificate/csr"
)

// nodeChild is an environment variable with a node name. If it is set, this test binary runs as the process of this light node.
const nodeChild = "KUBEJOIN_TEST_NODE"

// A lightNode is a node without a machine. Its process runs in the network outside the cluster, and sends the same requests
// as kubeadm and the kubelet: for discovery, for a certificate, and for the Node.
type lightNode struct {
	name        string
	certificate string // PEM, with the key
}

// joinLight joins a light node with a join command. If credential is the certificate of a light node, joinLight renews the
// certificate instead.
func (c *Cluster) joinLight(ctx context.Context, name, credential string) (lightNode, error) {
	cmd := c.outside.Command(ctx, os.Args[0])
	cmd.Env = append(cmd.Env, nodeChild+"="+name, "KUBEJOIN_TEST_API_SERVER="+c.machines[0].Address+":6443")
	cmd.Stdin = strings.NewReader(credential)
	certificate, err := run(ctx, cmd)
	return lightNode{name, certificate}, err
}

// playNode runs in the process of a light node. It prints the certificate and the key.
func playNode(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("no certificate after %v", startTimeout))
	defer cancel()
	credential, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	config := &rest.Config{Host: os.Getenv("KUBEJOIN_TEST_API_SERVER")}
	renews := strings.HasPrefix(string(credential), "-----BEGIN")
	if renews {
		// There is no need to verify the API server here: the first join has verified it.
		config.TLSClientConfig = rest.TLSClientConfig{CertData: credential, KeyData: credential, Insecure: true}
	} else {
		command, err := clusterinfo.ParseJoinCommand(string(credential))
		if err != nil {
			return err
		}
		found, err := clusterinfo.Discovery{Endpoint: command.Endpoint, Token: command.Token, Pins: command.Pins, Retry: time.Second}.Run(ctx)
		if err != nil {
			return err
		}
		var bundle strings.Builder
		for _, ca := range found.CAs {
			if err := pem.Encode(&bundle, &pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw}); err != nil {
				return err
			}
		}
		config = &rest.Config{Host: found.Server, BearerToken: command.Token.Reveal(), TLSClientConfig: rest.TLSClientConfig{CAData: []byte(bundle.String())}}
	}
	certificate, err := requestCertificate(ctx, config, name)
	if err != nil {
		return err
	}
	if !renews {
		config.BearerToken, config.CertData, config.KeyData = "", certificate, certificate
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		if _, err := client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	_, err = os.Stdout.Write(certificate)
	return err
}

// requestCertificate requests a client certificate with the functions of the kubelet, and returns it with its key.
func requestCertificate(ctx context.Context, config *rest.Config, name string) ([]byte, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	subject := pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:" + name}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
	if err != nil {
		return nil, err
	}
	request := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	usages := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	object, uid, err := csr.RequestCertificateWithContext(ctx, client, request, "", certificatesv1.KubeAPIServerClientKubeletSignerName, nil, usages, key)
	if err != nil {
		return nil, err
	}
	certificate, err := csr.WaitForCertificate(ctx, client, object, uid)
	if err != nil {
		return nil, fmt.Errorf("request %s: %w", object, err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return append(certificate, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})...), nil
}
