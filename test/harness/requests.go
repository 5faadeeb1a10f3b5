package harness

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// AsMachine returns the client of a joining machine. The machine's bootstrap token has kubeadm's group, signs nothing and
// never expires.
func AsMachine(t *testing.T, c *cluster.Cluster) kubernetes.Interface {
	t.Helper()
	if err := StoreToken(t.Context(), c.Client(), "abc123", nil); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	return AsToken(t, c, "abc123")
}

// StoreToken stores a token that signs nothing and never expires.
func StoreToken(ctx context.Context, client kubernetes.Interface, id string, annotations map[string]string) error {
	_, err := client.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id, Annotations: annotations}, Type: corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": id, "token-secret": tokens.Generate().RevealSecret(), "usage-bootstrap-authentication": "true",
			"auth-extra-groups": tokens.DefaultGroup,
		},
	}, metav1.CreateOptions{})
	return err
}

// AsToken returns a client with the identity that kube-apiserver gives to a bootstrap token.
func AsToken(t *testing.T, c *cluster.Cluster, id string) kubernetes.Interface {
	t.Helper()
	config := c.AdminConfig()
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:bootstrap:" + id, Groups: []string{
		"system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token", "system:authenticated",
	}}
	return must.Value(kubernetes.NewForConfig(config))(t)
}

// CreateRequest creates a CSR object for a node. It retries until the API server has it.
func CreateRequest(ctx context.Context, client kubernetes.Interface, name, signerName, node string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}}
	use := certificates.UsageClientAuth
	if signerName == certificates.KubeletServingSignerName {
		use = certificates.UsageServerAuth
		template.DNSNames = []string{node}
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		return err
	}
	object := &certificates.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificates.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: signerName, Usages: []certificates.KeyUsage{certificates.UsageDigitalSignature, use},
		},
	}
	for {
		_, err := client.CertificatesV1().CertificateSigningRequests().Create(ctx, object, metav1.CreateOptions{})
		if err == nil || apierrors.IsAlreadyExists(err) { // an earlier attempt, whose response was lost, has created it
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// Decide approves or denies a CSR object as a person does.
func Decide(ctx context.Context, client kubernetes.Interface, name string, kind certificates.RequestConditionType) error {
	requests := client.CertificatesV1().CertificateSigningRequests()
	for {
		object, err := requests.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		object.Status.Conditions = append(object.Status.Conditions, certificates.CertificateSigningRequestCondition{
			Type: kind, Status: corev1.ConditionTrue, Reason: "ByHand", Message: "by hand",
		})
		if _, err = requests.UpdateApproval(ctx, name, object, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
			return err
		}
	}
}
