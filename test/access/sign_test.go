package access

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"net/http"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/client"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// A certClient requests certificates from kubejoin over HTTPS.
type certClient struct {
	*client.Client
	key *ecdsa.PrivateKey
	csr []byte
}

// newCertClient creates a key and a CSR for the subject. The client authenticates with bearer if bearer is not empty.
func newCertClient(t *testing.T, s *harness.Site, bearer, name string, organizations ...string) *certClient {
	t.Helper()
	key := must.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	der := must.Value(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name, Organization: organizations}}, key))(t)
	return &certClient{
		Client: &client.Client{URL: "https://" + s.Endpoint, Bearer: api.Secret(bearer), HTTP: s.HTTP},
		key:    key, csr: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
	}
}

func newNodeCertClient(t *testing.T, s *harness.Site, bearer, node string) *certClient {
	return newCertClient(t, s, bearer, "system:node:"+node, "system:nodes")
}

// useCertificate makes r authenticate with this certificate from now on.
func (r *certClient) useCertificate(t *testing.T, s *harness.Site, chain []byte) {
	t.Helper()
	certificate := must.Value(tls.X509KeyPair(chain, pemKey(t, r.key)))(t)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.Roots, Certificates: []tls.Certificate{certificate}}}
	t.Cleanup(transport.CloseIdleConnections)
	r.Client = &client.Client{URL: "https://" + s.Endpoint, HTTP: &http.Client{Transport: transport}}
}

func pemKey(t *testing.T, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	der := must.Value(x509.MarshalPKCS8PrivateKey(key))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func (r *certClient) request(t *testing.T, signerName string) ([]byte, error) {
	t.Helper()
	return r.Certificate(t.Context(), api.SignCertificate{CSR: r.csr, Signer: signerName})
}

// wantProblem fails the test unless the response is this problem with this reason.
func (r *certClient) wantProblem(t *testing.T, signerName, problem, reason string) {
	t.Helper()
	chain, err := r.request(t, signerName)
	var p *api.Problem
	if !errors.As(err, &p) || !p.Named(problem) || p.Reason != reason || chain != nil {
		t.Errorf("got %v %+v, want problem %s with reason %q", err, p, problem, reason)
	}
}

// TestIssuesOverHTTPSByTheSameRules requests certificates without a CertificateSigningRequest. It catches a rule about
// tokens, claims, Nodes or RBAC that does not hold over HTTPS.
func TestIssuesOverHTTPSByTheSameRules(t *testing.T) {
	harness.Parallel(t)
	s := harness.PrepareSite(t, cluster.Options{})
	s.Flags = append(s.Flags, "--client-ca-file="+s.CAFile())
	s.Start(t)
	ctx := t.Context()
	_, token := s.JoinArgsByCLI(t, "--max-nodes=1", "--node-name=worker-*", "--certificate-duration=48h")
	_, free := s.JoinArgsByCLI(t)

	first := newNodeCertClient(t, s, token.Reveal(), "worker-1")
	newNodeCertClient(t, s, token.Reveal(), "other-1").wantProblem(t, "", api.ProblemCertificateRefused, admission.ReasonNodeNameNotAllowed)
	chain, err := first.request(t, "")
	if err != nil {
		t.Fatal(err)
	}
	if holder := s.RunKubectl(t, "get", "lease", "-n", "kubejoin-system", "worker-1", "-o", "jsonpath={.spec.holderIdentity}"); holder != token.ID() {
		t.Errorf("token %q holds the claim, want %s", holder, token.ID())
	}
	if nodes := s.RunKubectl(t, "get", "secret", "-n", "kube-system", "bootstrap-token-"+token.ID(), "-o", `jsonpath={.metadata.annotations.kubejoin\.io/nodes}`); nodes != "+worker-1" {
		t.Errorf("the token counts nodes %q, want +worker-1", nodes)
	}
	newNodeCertClient(t, s, token.Reveal(), "worker-2").wantProblem(t, "", api.ProblemCertificateRefused, admission.ReasonTokenSpent)
	newNodeCertClient(t, s, free.Reveal(), "worker-1").wantProblem(t, "", api.ProblemCertificateRefused, admission.ReasonNodeNameClaimed)
	if requests := s.RunKubectl(t, "get", "csr", "-o", "name"); requests != "" {
		t.Errorf("got CertificateSigningRequests %s, want none", requests)
	}

	// The API server accepts the certificate, and the node registers itself.
	first.useCertificate(t, s, chain)
	config := s.AdminConfig()
	node := must.Value(kubernetes.NewForConfig(&rest.Config{Host: config.Host, TLSClientConfig: rest.TLSClientConfig{CAData: config.CAData, CertData: chain, KeyData: pemKey(t, first.key)}}))(t)
	first.wantProblem(t, "", api.ProblemCertificateWaits, admission.ReasonNodeNotFound)
	must.Value(node.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1"}}, metav1.CreateOptions{}))(t)
	if chain, err = first.request(t, ""); err != nil {
		t.Fatalf("renewal: %v", err)
	}
	first.useCertificate(t, s, chain)
	first.csr = newNodeCertClient(t, s, "", "worker-3").csr
	first.wantProblem(t, "", api.ProblemCertificateRefused, approval.ReasonNodeRestriction)

	// kubejoin issues no certificate for a Node that exists.
	must.Value(s.Client().CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "taken"}}, metav1.CreateOptions{}))(t)
	newNodeCertClient(t, s, free.Reveal(), "taken").wantProblem(t, "", api.ProblemCertificateRefused, admission.ReasonNodeExists)

	// RBAC decides who may sign. The group kubejoin:admins in a certificate gives no rights.
	const users = certificates.KubeAPIServerClientSignerName
	for _, user := range []struct{ name, group, resource string }{
		{"jane", "dev", users}, {"bob", "kubejoin:admins", "kubernetes.io/*"},
	} {
		r := newCertClient(t, s, s.Bearer(t), user.name, user.group)
		chain := must.Value(r.request(t, users))(t)
		r.useCertificate(t, s, chain)
		r.wantProblem(t, users, "forbidden", "")
		role := "signs-" + user.name
		must.Value(s.Client().RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ // not with kubectl create, which needs an API resource for signers
			ObjectMeta: metav1.ObjectMeta{Name: role},
			Rules:      []rbacv1.PolicyRule{{Verbs: []string{"sign"}, APIGroups: []string{certificates.GroupName}, Resources: []string{"signers"}, ResourceNames: []string{user.resource}}},
		}, metav1.CreateOptions{}))(t)
		s.RunKubectl(t, "create", "clusterrolebinding", role, "--clusterrole="+role, "--user="+user.name)
		harness.Wait(t, "permission of "+user.name, func() error { _, err := r.request(t, users); return err })
		r.csr = newCertClient(t, s, "", "root", "system:masters").csr
		r.wantProblem(t, users, api.ProblemCertificateRefused, approval.ReasonSubjectRestriction)
	}
}
