package test

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

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/client"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/test/cluster"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// An asker asks kubejoin itself for certificates.
type asker struct {
	*client.Client
	key *ecdsa.PrivateKey
	csr []byte
}

// asker has a key and a request for one subject; bearer is who asks, or empty.
func (s *site) asker(t *testing.T, bearer, name string, organizations ...string) *asker {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name, Organization: organizations}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return &asker{
		Client: &client.Client{URL: "https://" + s.address, Bearer: api.Secret(bearer), HTTP: s.http},
		key:    key, csr: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
	}
}

func (s *site) machine(t *testing.T, bearer, node string) *asker {
	return s.asker(t, bearer, "system:node:"+node, "system:nodes")
}

// has asks with a certificate that it was given from then on.
func (r *asker) has(t *testing.T, s *site, chain []byte) {
	t.Helper()
	certificate, err := tls.X509KeyPair(chain, pemKey(t, r.key))
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.roots, Certificates: []tls.Certificate{certificate}}}
	t.Cleanup(transport.CloseIdleConnections)
	r.Client = &client.Client{URL: "https://" + s.address, HTTP: &http.Client{Transport: transport}}
}

func pemKey(t *testing.T, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func (r *asker) asks(t *testing.T, signerName string) ([]byte, error) {
	t.Helper()
	return r.Certificate(t.Context(), api.SignCertificate{CSR: r.csr, Signer: signerName})
}

// refused wants a problem.
func (r *asker) refused(t *testing.T, signerName, problem, reason string) {
	t.Helper()
	chain, err := r.asks(t, signerName)
	var p *api.Problem
	if !errors.As(err, &p) || !p.Named(problem) || p.Reason != reason || chain != nil {
		t.Errorf("%v %+v, want %s %s", err, p, problem, reason)
	}
}

// Certificates on a cluster with no CertificateSigningRequest: the same tokens, claims, Nodes and
// RBAC.
func TestCertificatesWithoutRequestObjects(t *testing.T) {
	t.Parallel()
	s := prepare(t, cluster.Options{})
	s.flags = append(s.flags, "--client-ca-file="+s.CAFile())
	s.start(t)
	ctx := t.Context()
	_, token := s.joinBy(t, "--max-nodes=1", "--node-name=worker-*", "--certificate-duration=48h")
	_, free := s.joinBy(t)

	first := s.machine(t, token.Reveal(), "worker-1")
	s.machine(t, token.Reveal(), "other-1").refused(t, "", api.ProblemCertificateRefused, admission.ReasonNodeNameNotAllowed)
	chain, err := first.asks(t, "")
	if err != nil {
		t.Fatal(err)
	}
	if holder := s.kubectl(t, "get", "lease", "-n", "kubejoin-system", "worker-1", "-o", "jsonpath={.spec.holderIdentity}"); holder != token.ID() {
		t.Errorf("the claim is held by %q, want %s", holder, token.ID())
	}
	if nodes := s.kubectl(t, "get", "secret", "-n", "kube-system", "bootstrap-token-"+token.ID(), "-o", `jsonpath={.metadata.annotations.kubejoin\.io/nodes}`); nodes != "worker-1" {
		t.Errorf("the token counts %q", nodes)
	}
	s.machine(t, token.Reveal(), "worker-2").refused(t, "", api.ProblemCertificateRefused, admission.ReasonTokenSpent)
	s.machine(t, free.Reveal(), "worker-1").refused(t, "", api.ProblemCertificateRefused, admission.ReasonNodeNameClaimed)
	if requests := s.kubectl(t, "get", "csr", "-o", "name"); requests != "" {
		t.Errorf("there are request objects: %s", requests)
	}

	// The API server takes the certificate for the node's, and the node registers itself.
	first.has(t, s, chain)
	config := s.AdminConfig()
	node, err := kubernetes.NewForConfig(&rest.Config{Host: config.Host, TLSClientConfig: rest.TLSClientConfig{CAData: config.CAData, CertData: chain, KeyData: pemKey(t, first.key)}})
	if err != nil {
		t.Fatal(err)
	}
	first.refused(t, "", api.ProblemCertificateWaits, admission.ReasonNodeNotFound)
	if _, err := node.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if chain, err = first.asks(t, ""); err != nil {
		t.Fatalf("renewal: %v", err)
	}
	first.has(t, s, chain)
	first.csr = s.machine(t, "", "worker-3").csr
	first.refused(t, "", api.ProblemCertificateRefused, approval.ReasonNodeRestriction)

	// A Node that exists is not handed out, and its own key does not count without the token.
	if _, err := s.Client().CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "taken"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.machine(t, free.Reveal(), "taken").refused(t, "", api.ProblemCertificateRefused, admission.ReasonNodeExists)

	// Who may sign is RBAC's to say, and a group by the name of kubejoin's admins is none of it.
	const users = certificates.KubeAPIServerClientSignerName
	for _, user := range []struct{ name, group, resource string }{
		{"jane", "dev", users}, {"bob", "kubejoin:admins", "kubernetes.io/*"},
	} {
		r := s.asker(t, s.bearer(t), user.name, user.group)
		chain, err := r.asks(t, users)
		if err != nil {
			t.Fatal(err)
		}
		r.has(t, s, chain)
		r.refused(t, users, "forbidden", "")
		role := "signs-" + user.name
		if _, err := s.Client().RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ // no API serves signers, and kubectl wants one
			ObjectMeta: metav1.ObjectMeta{Name: role},
			Rules:      []rbacv1.PolicyRule{{Verbs: []string{"sign"}, APIGroups: []string{certificates.GroupName}, Resources: []string{"signers"}, ResourceNames: []string{user.resource}}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		s.kubectl(t, "create", "clusterrolebinding", role, "--clusterrole="+role, "--user="+user.name)
		wait(t, "permission of "+user.name, func() error { _, err := r.asks(t, users); return err })
		r.csr = s.asker(t, "", "root", "system:masters").csr
		r.refused(t, users, api.ProblemCertificateRefused, approval.ReasonSubjectRestriction)
	}
}
