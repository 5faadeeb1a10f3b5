package importer_test

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func localhost(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// testBootstrapSigner creates and deletes a token Secret without kubejoin, and runs discovery as a joining node does.
func (b build) testBootstrapSigner(t *testing.T, c *cluster.Cluster) {
	stop := start(t, b.program("bootstrap-signer"), "-kubeconfig", c.Kubeconfig())
	token := tokens.Generate()
	secrets := c.Client().CoreV1().Secrets(metav1.NamespaceSystem)
	name := "bootstrap-token-" + token.ID()
	the(secrets.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Type:       "bootstrap.kubernetes.io/token",
		StringData: map[string]string{"token-id": token.ID(), "token-secret": token.RevealSecret(), "usage-bootstrap-signing": "true"},
	}, metav1.CreateOptions{}))(t)
	found := discover(t, clusterinfo.Discovery{Endpoint: c.Address, Token: token, Pins: pins(t, c.CAFile()), Retry: 50 * time.Millisecond})
	if found.Server != c.Server() {
		t.Errorf("discovered %s, want %s", found.Server, c.Server())
	}

	must(t, secrets.Delete(t.Context(), name, metav1.DeleteOptions{}))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	infos := c.Client().CoreV1().ConfigMaps(clusterinfo.Namespace)
	for {
		info, err := infos.Get(ctx, clusterinfo.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatalf("cluster-info still has the signature of a deleted token: %v", err)
		}
		if _, signed := info.Data[clusterinfo.SignatureKey(token.ID())]; !signed {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	stop()
}

func pins(t *testing.T, file string) []string {
	t.Helper()
	content := the(os.ReadFile(file))(t)
	block, _ := pem.Decode(content)
	ca := the(x509.ParseCertificate(block.Bytes))(t)
	return []string{clusterinfo.Pin(ca)}
}
