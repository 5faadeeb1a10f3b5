package importer_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// testEmbedControllers mints a token for one node on the cluster, as an installer does, and requests certificates with it,
// as machines do. The first machine must get a certificate, and the second a denial with the reason.
func (b build) testEmbedControllers(t *testing.T, c *cluster.Cluster) {
	stopSigner := start(t, b.program("bootstrap-signer"), "-kubeconfig", c.Kubeconfig())
	stop := start(t, b.program("embed-controllers"), "-kubeconfig", c.Kubeconfig(), "-ca", c.CAFile(), "-ca-key", c.CAKeyFile())
	// The builds share one cluster, so each uses different node names.
	pattern := strings.ReplaceAll(b.modfile, ".", "-") + "-*"
	line, stderr, err := run(t, nil, b.program("mint-on-cluster"), "-kubeconfig", c.Kubeconfig(), "-node", pattern)
	if err != nil {
		t.Fatalf("mint-on-cluster: %v\n%s", err, stderr)
	}
	command := parseLine(t, line)
	if found := discover(t, command); found.Server != c.Server() {
		t.Errorf("discovered %s, want %s", found.Server, c.Server())
	}

	machine := tokenClient(t, c, command.Token)
	first, second := strings.Replace(pattern, "*", "1", 1), strings.Replace(pattern, "*", "2", 1)
	issued := waitDecided(t, machine, request(t, machine, first))
	if len(issued.Certificate) == 0 {
		t.Fatalf("%s has no certificate: %+v", first, issued.Conditions)
	}
	block, _ := pem.Decode(issued.Certificate)
	certificate := the(x509.ParseCertificate(block.Bytes))(t)
	if _, err := certificate.Verify(x509.VerifyOptions{Roots: c.CAPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil || certificate.Subject.CommonName != "system:node:"+first {
		t.Errorf("got a certificate of %s, %v, want a valid one of system:node:%s", certificate.Subject, err, first)
	}
	claim, err := c.Client().CoordinationV1().Leases("kubejoin-system").Get(t.Context(), first, metav1.GetOptions{})
	if err != nil || claim.Spec.HolderIdentity == nil || *claim.Spec.HolderIdentity != command.Token.ID() {
		t.Errorf("the claim of %s: got %v, want holder %s: %v", first, claim.Spec, command.Token.ID(), err)
	}

	refused := waitDecided(t, machine, request(t, machine, second))
	want := fmt.Sprintf("token %s is spent: it allows 1 node, and %s has joined with it", command.Token.ID(), first)
	if last := refused.Conditions[len(refused.Conditions)-1]; last.Type != certificates.CertificateDenied || last.Reason != "TokenSpent" || !strings.Contains(last.Message, want) {
		t.Errorf("%s: got %s %s %q, want Denied TokenSpent %q", second, last.Type, last.Reason, last.Message, want)
	}

	log := stop() + stopSigner()
	if strings.Contains(log, command.Token.RevealSecret()) {
		t.Error("a log contains a token secret")
	}
}

// tokenClient returns a client that authenticates with a token.
func tokenClient(t *testing.T, c *cluster.Cluster, token tokens.Token) kubernetes.Interface {
	t.Helper()
	config := c.AdminConfig()
	config.CertData, config.KeyData, config.CertFile, config.KeyFile = nil, nil, "", ""
	config.BearerToken = token.Reveal()
	client := the(kubernetes.NewForConfig(config))(t)
	return client
}

// request creates a kubelet's first certificate request, as soon as kube-apiserver accepts the token.
func request(t *testing.T, machine kubernetes.Interface, node string) string {
	t.Helper()
	key := the(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	der := the(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}}, key))(t)
	object := &certificates.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "importer-"},
		Spec: certificates.CertificateSigningRequestSpec{
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: certificates.KubeAPIServerClientKubeletSignerName,
			Usages: []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
		},
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for {
		made, err := machine.CertificatesV1().CertificateSigningRequests().Create(ctx, object, metav1.CreateOptions{})
		if err == nil {
			return made.Name
		}
		if !apierrors.IsUnauthorized(err) {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// waitDecided returns the status of a request once it is issued or denied.
func waitDecided(t *testing.T, machine kubernetes.Interface, name string) certificates.CertificateSigningRequestStatus {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for {
		request, err := machine.CertificatesV1().CertificateSigningRequests().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatalf("the request is neither issued nor denied: %v", err)
		}
		status := request.Status
		if len(status.Certificate) > 0 {
			return status
		}
		for _, condition := range status.Conditions {
			if condition.Type != certificates.CertificateApproved {
				return status
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
}
