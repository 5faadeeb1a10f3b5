package access

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	certificates "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// withCertificate returns a client of kube-apiserver with a client certificate.
func withCertificate(t *testing.T, s *harness.Site, chain, key []byte) kubernetes.Interface {
	t.Helper()
	config := rest.AnonymousClientConfig(s.AdminConfig())
	config.CertData, config.KeyData = chain, key
	config.QPS = -1
	return must.Value(kubernetes.NewForConfig(config))(t)
}

// withPair is like withCertificate, for a certificate that another signer has issued from the same CA.
func withPair(t *testing.T, s *harness.Site, pair *tls.Certificate) kubernetes.Interface {
	t.Helper()
	var chain []byte
	for _, der := range pair.Certificate {
		chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	return withCertificate(t, s, chain, pemKey(t, ecdsaKey(t, pair)))
}

func ecdsaKey(t *testing.T, pair *tls.Certificate) *ecdsa.PrivateKey {
	t.Helper()
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		t.Fatalf("got a key of type %T", pair.PrivateKey)
	}
	return key
}

// comesBack gets a new certificate for an existing node, with a token that replaces its Node.
func comesBack(t *testing.T, s *harness.Site, node string) (client kubernetes.Interface, own *certClient) {
	t.Helper()
	_, token := s.JoinArgsByCLI(t, "--replace-node="+node)
	own = newNodeCertClient(t, s, token.Reveal(), node)
	chain := must.Value(own.request(t, ""))(t)
	own.useCertificate(t, s, chain)
	return withCertificate(t, s, chain, pemKey(t, own.key)), own
}

// createNode creates a Node without a machine.
func createNode(t *testing.T, s *harness.Site, name string) {
	t.Helper()
	must.Value(s.Client().CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))(t)
}

// reads returns the error of a request that every node may send.
func reads(t *testing.T, client kubernetes.Interface, node string) error {
	t.Helper()
	_, err := client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	return err
}

func waitAllowed(t *testing.T, what string, ask func() error) {
	t.Helper()
	harness.Wait(t, what+" to be allowed", ask)
}

// waitForbidden waits until the API server refuses a request with a message that contains text.
func waitForbidden(t *testing.T, what, text string, ask func() error) {
	t.Helper()
	start := time.Now()
	harness.Wait(t, what+" to be refused", func() error {
		if err := ask(); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), text) {
			return fmt.Errorf("got %v, want 403 with %q", err, text)
		}
		return nil
	})
	t.Logf("%s refused after %s", what, time.Since(start).Round(10*time.Millisecond))
}

// TestRevokedCertificateGetsNothingFromKubejoin runs without the webhook and without the policy. It catches a revoked
// certificate that can still renew, get a serving certificate or use the HTTPS API.
func TestRevokedCertificateGetsNothingFromKubejoin(t *testing.T) {
	harness.Parallel(t)
	s := harness.PrepareSite(t, cluster.Options{})
	s.Start(t, "--client-ca-file="+s.CAFile(), "--serving-allowed-dns-suffix=node.example.com")
	ca := must.Value(signer.LoadCA(s.CAFile(), s.CAKeyFile()))(t)
	createNode(t, s, "worker-1")
	stolen := clientCertificate(t, ca, "system:node:worker-1", "system:nodes")
	thief := withPair(t, s, stolen)
	request := func(name, signerName string, want certificates.RequestConditionType, reason string) {
		t.Helper()
		must.OK(t, harness.CreateRequest(t.Context(), thief, name, signerName, "worker-1"))
		if want == certificates.CertificateFailed {
			s.RunKubectl(t, "certificate", "approve", name)
		}
		harness.Wait(t, name+" to be "+string(want), func() error {
			r, err := s.Client().CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, c := range r.Status.Conditions {
				if c.Type == want && c.Reason == reason {
					return nil
				}
			}
			return fmt.Errorf("conditions %v", r.Status.Conditions)
		})
	}
	request("before", certificates.KubeAPIServerClientKubeletSignerName, certificates.CertificateApproved, "AutoApproved")
	s.CLI(t, "revoke", "worker-1", "--reason", "stolen from the rack")
	harness.Wait(t, "Event on the Node", func() error {
		if out := s.RunKubectl(t, "get", "events", "-n", "default", "--field-selector=reason=NodeRevoked,involvedObject.kind=Node", "-o", "jsonpath={.items[*].message}"); !strings.Contains(out, "stolen from the rack") {
			return fmt.Errorf("got %q", out)
		}
		return nil
	})
	s.WaitExplain(t, "worker-1", 3, "its certificates were revoked", "stolen from the rack")
	request("renewal", certificates.KubeAPIServerClientKubeletSignerName, certificates.CertificateDenied, revocation.Reason)
	request("serving", certificates.KubeletServingSignerName, certificates.CertificateDenied, revocation.Reason)
	// A person approves the request.
	request("users", certificates.KubeAPIServerClientSignerName, certificates.CertificateFailed, revocation.Reason)

	own := newNodeCertClient(t, s, "", "worker-1")
	own.key = ecdsaKey(t, stolen)
	own.useCertificate(t, s, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: stolen.Certificate[0]}))
	own.wantProblem(t, "", "revoked", revocation.Reason)
	if status, body := sendAs(t, s.Program, caller{certificate: stolen}, "GET", "/v1/token", "", ""); status != 403 || !strings.Contains(body, "stolen from the rack") {
		t.Errorf("list of tokens with the revoked certificate: got %d %s, want 403 with the reason", status, body)
	}

	_, back := comesBack(t, s, "worker-1")
	if _, err := back.request(t, ""); err != nil {
		t.Errorf("the node that came back cannot renew: %v", err)
	}
	own.wantProblem(t, "", "revoked", revocation.Reason)
	s.CLI(t, "revoke", "undo", "worker-1")
	harness.Wait(t, "renewal after undo", func() error {
		_, err := own.request(t, "")
		return err
	})
}

// TestRevocationPolicyDeniesWrites has 10,000 other revocations. It catches a write of a revoked node that the
// ValidatingAdmissionPolicy does not deny, and a write of another node that it denies.
func TestRevocationPolicyDeniesWrites(t *testing.T) {
	harness.Parallel(t)
	s := harness.NewSite(t, cluster.Options{})
	s.RunKubectl(t, "apply", "-f", harness.RepositoryFile(t, "deploy/revocation.yaml"))
	ca := must.Value(signer.LoadCA(s.CAFile(), s.CAKeyFile()))(t)
	ctx := t.Context()
	const others = 10_000
	must.OK(t, s.WriteRevocations(ctx, cluster.Revocations(others, time.Now())))
	s.RunKubectl(t, "create", "serviceaccount", "default") // because no controller runs that creates it
	for _, node := range []string{"worker-1", "worker-2"} {
		createNode(t, s, node)
		off := false
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: node, Namespace: "default"}, Spec: corev1.PodSpec{NodeName: node, AutomountServiceAccountToken: &off, Containers: []corev1.Container{{Name: "c", Image: "c"}}}}
		must.Value(s.Client().CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}))(t)
	}
	stolen := withPair(t, s, clientCertificate(t, ca, "system:node:worker-1", "system:nodes"))
	other := withPair(t, s, clientCertificate(t, ca, "system:node:worker-2", "system:nodes"))
	writes := func(client kubernetes.Interface, node string) map[string]func() error {
		name := "event-of-" + node
		return map[string]func() error{
			"Node": func() error {
				_, err := client.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, []byte(`{"metadata":{"annotations":{"example.com/seen":"yes"}}}`), metav1.PatchOptions{})
				return err
			},
			"Node status": func() error {
				_, err := client.CoreV1().Nodes().PatchStatus(ctx, node, []byte(`{"status":{"phase":"Running"}}`))
				return err
			},
			"Lease": func() error {
				lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: node, Namespace: "kube-node-lease"}}
				_, err := client.CoordinationV1().Leases("kube-node-lease").Create(ctx, lease, metav1.CreateOptions{})
				if apierrors.IsAlreadyExists(err) {
					_, err = client.CoordinationV1().Leases("kube-node-lease").Patch(ctx, node, types.MergePatchType, []byte(`{"spec":{"leaseDurationSeconds":40}}`), metav1.PatchOptions{})
				}
				return err
			},
			"pod status": func() error {
				_, err := client.CoreV1().Pods("default").Patch(ctx, node, types.StrategicMergePatchType, []byte(`{"status":{"message":"here"}}`), metav1.PatchOptions{}, "status")
				return err
			},
			"Event": func() error {
				event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: node}}
				_, err := client.CoreV1().Events("default").Create(ctx, event, metav1.CreateOptions{})
				if apierrors.IsAlreadyExists(err) {
					_, err = client.CoreV1().Events("default").Patch(ctx, name, types.MergePatchType, []byte(`{"message":"again"}`), metav1.PatchOptions{})
				}
				return err
			},
		}
	}
	for what, write := range writes(stolen, "worker-1") {
		waitAllowed(t, what+" before", write)
	}
	s.CLI(t, "revoke", "worker-1")
	for what, write := range writes(stolen, "worker-1") {
		waitForbidden(t, what+" of the revoked node", "kubejoin has revoked this certificate", write)
	}
	if err := reads(t, stolen, "worker-1"); err != nil {
		t.Errorf("reads of a revoked node are documented as allowed, got %v", err)
	}
	for what, write := range writes(other, "worker-2") {
		if err := write(); err != nil {
			t.Errorf("%s of another node: %v", what, err)
		}
	}
	back, _ := comesBack(t, s, "worker-1")
	for what, write := range writes(back, "worker-1") {
		waitAllowed(t, what+" with a certificate issued since", write)
	}
	for what, write := range writes(stolen, "worker-1") {
		if err := write(); !apierrors.IsForbidden(err) {
			t.Errorf("%s with the revoked certificate after the node came back: got %v, want 403", what, err)
		}
	}

	// Revoke only one certificate of the other node, by its fingerprint.
	second := clientCertificate(t, ca, "system:node:worker-2", "system:nodes")
	s.CLI(t, "revoke", "--fingerprint", revocation.FingerprintOf(harness.ParseLeaf(t, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: second.Certificate[0]}))).String())
	for what, write := range writes(withPair(t, s, second), "worker-2") {
		waitForbidden(t, what+" of the revoked certificate", "kubejoin has revoked this certificate", write)
	}
	for what, write := range writes(other, "worker-2") {
		if err := write(); err != nil {
			t.Errorf("%s with another certificate of the node: %v", what, err)
		}
	}
	if n := strings.Count(s.CLI(t, "revoke", "list"), "\n"); n != others+3 { // plus the heading
		t.Errorf("revoke list: got %d lines, want %d", n, others+3)
	}
}

// TestRevocationWebhook runs kube-apiserver with the configuration that kubejoin prints. It catches a revoked certificate
// that still works, another certificate that does not work, and an effect of an outage that differs from the docs.
func TestRevocationWebhook(t *testing.T) {
	harness.Parallel(t)
	s := harness.PrepareSite(t, cluster.Options{})
	ctx := t.Context()
	// kube-controller-manager issues a certificate before kubejoin runs.
	kcm := must.Value(s.StartKCM(ctx))(t)
	createNode(t, s, "worker-1")
	createNode(t, s, "worker-2")
	key, chain := issuedByKCM(t, s, "worker-1")
	stolen := withCertificate(t, s, chain, pemKey(t, key))
	kcm.Stop(10 * time.Second)

	flags := []string{"--client-ca-file=" + s.CAFile(), "--webhook-client-ca-file=" + s.CAFile(), "--webhook-client-name=kube-apiserver-kubelet-client"}
	s.Start(t, flags...)
	flags = append(flags, "--listen="+s.Endpoint)
	dir := t.TempDir()
	configure := func(policy string) {
		t.Helper()
		s.StopAPIServer()
		print := exec.CommandContext(ctx, harness.Kubejoin(), "authorization-config", "--url=https://"+s.Endpoint, "--ca-file="+s.CAFile(), "--dir="+dir, "--output-dir="+dir, "--failure-policy="+policy,
			"--client-certificate="+filepath.Join(s.Dir, "pki/apiserver-kubelet-client.crt"), "--client-key="+filepath.Join(s.Dir, "pki/apiserver-kubelet-client.key"))
		if out, err := print.CombinedOutput(); err != nil || len(out) > 0 {
			t.Fatalf("authorization-config: %v\n%s", err, out)
		}
		must.OK(t, s.StartAPIServer(ctx, "--authorization-config="+filepath.Join(dir, "authorization.yaml")))
	}
	configure("NoOpinion")
	ca := must.Value(signer.LoadCA(s.CAFile(), s.CAKeyFile()))(t)
	other := withPair(t, s, clientCertificate(t, ca, "system:node:worker-2", "system:nodes"))
	ask := func(client kubernetes.Interface, node string) func() error {
		return func() error { return reads(t, client, node) }
	}
	waitAllowed(t, "the node", ask(stolen, "worker-1"))
	waitAllowed(t, "the other node", ask(other, "worker-2"))

	// The node is locked out and comes back. After that, only its new certificate works.
	s.CLI(t, "revoke", "worker-1", "--reason", "stolen from the rack")
	waitForbidden(t, "the revoked certificate", "stolen from the rack", ask(stolen, "worker-1"))
	// check this as in docs/revocation.md
	s.WaitExplain(t, "worker-1", 3, "its certificates were revoked")
	if out, err := s.Kubectl(ctx, "get", "node", "worker-1", "--as=system:node:worker-1", "--as-group=system:nodes"); err == nil || !strings.Contains(out+err.Error(), "this certificate of node worker-1 is revoked") {
		t.Errorf("get as the revoked node: got %s, %v, want it refused", out, err)
	}
	if err := reads(t, other, "worker-2"); err != nil {
		t.Errorf("another node: %v", err)
	}
	waitForbidden(t, "a path that is too long to review", "too large to review", func() error {
		return stolen.CoreV1().RESTClient().Get().AbsPath("/" + strings.Repeat("x", 70_000)).Do(ctx).Error()
	})
	back, own := comesBack(t, s, "worker-1")
	waitAllowed(t, "the certificate that kubejoin issued since", ask(back, "worker-1"))
	if err := reads(t, stolen, "worker-1"); !apierrors.IsForbidden(err) {
		t.Errorf("the revoked certificate after the node came back: got %v, want 403", err)
	}
	if out := s.CLI(t, "revoke", "list"); !strings.Contains(out, "worker-1") || !strings.Contains(out, "stolen from the rack") {
		t.Errorf("revoke list: %s", out)
	}

	// Revoke one of the two certificates of a node, by its fingerprint and by its serial number over HTTPS.
	renewed := must.Value(own.request(t, ""))(t)
	second := withCertificate(t, s, renewed, pemKey(t, own.key))
	waitAllowed(t, "the renewed certificate", ask(second, "worker-1"))
	s.CLI(t, "revoke", "--fingerprint", revocation.FingerprintOf(harness.ParseLeaf(t, renewed)).String())
	waitForbidden(t, "the certificate revoked by fingerprint", "is revoked", ask(second, "worker-1"))
	if err := reads(t, back, "worker-1"); err != nil {
		t.Errorf("another certificate of the same node: %v", err)
	}

	// If no kubejoin runs, the failure policy decides.
	s.Program.Stop(20 * time.Second)
	waitAllowed(t, "the revoked certificate while no kubejoin runs, with NoOpinion", ask(stolen, "worker-1"))
	configure("Deny")
	harness.Wait(t, "status 500 for every node while no kubejoin runs, with Deny", func() error {
		if err := reads(t, other, "worker-2"); !apierrors.IsInternalError(err) {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
	s.Start(t, flags...)
	waitAllowed(t, "the other node once kubejoin runs", ask(other, "worker-2"))
	waitForbidden(t, "the revoked certificate", "stolen from the rack", ask(stolen, "worker-1"))
	s.CLI(t, "revoke", "undo", "worker-1")
	waitAllowed(t, "the node after undo", ask(stolen, "worker-1"))
}

// issuedByKCM returns a certificate that kube-controller-manager issues for a node.
func issuedByKCM(t *testing.T, s *harness.Site, node string) (*ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, request := keyAndRequest(t, "system:node:"+node, "system:nodes")
	requests := s.Client().CertificatesV1().CertificateSigningRequests()
	object := must.Value(requests.Create(t.Context(), &certificates.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "from-another-signer"},
		Spec: certificates.CertificateSigningRequestSpec{
			Request: []byte(request), SignerName: certificates.KubeAPIServerClientKubeletSignerName,
			Usages: []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
		},
	}, metav1.CreateOptions{}))(t)
	must.OK(t, harness.Decide(t.Context(), s.Client(), object.Name, certificates.CertificateApproved))
	s.WaitIssued(t, object.Name)
	object = must.Value(requests.Get(t.Context(), object.Name, metav1.GetOptions{}))(t)
	return key, object.Status.Certificate
}

// TestReplacedMachineChangesNoIdentity renews with CSR objects. A replaced machine still has a valid certificate. The test
// catches such a machine that removes the keys of its successor from the claim, or that binds a key.
func TestReplacedMachineChangesNoIdentity(t *testing.T) {
	harness.Parallel(t)
	s := harness.PrepareSite(t, cluster.Options{})
	s.Start(t, "--client-ca-file="+s.CAFile(), "--rejoin-window=24h")
	createNode(t, s, "worker-1")
	stolen, thief := comesBack(t, s, "worker-1")
	current, machine := comesBack(t, s, "worker-1")
	claims := must.Value(secretstore.OpenClaims(t.Context(), s.Client(), nil, secretstore.ClaimNamespace, nil))(t)
	identity := func() tokens.Identity {
		return must.Value(claims.Get(t.Context(), "worker-1", tokens.Live))(t).Identity
	}
	keyOf := func(key *ecdsa.PrivateKey) string {
		return pkcs10.IDOfKey(must.Value(x509.MarshalPKIXPublicKey(key.Public()))(t))
	}
	renew := func(client kubernetes.Interface, name string) (key string) {
		t.Helper()
		must.OK(t, harness.CreateRequest(t.Context(), client, name, certificates.KubeAPIServerClientKubeletSignerName, "worker-1"))
		return pkcs10.IDOfKey(s.WaitIssued(t, name).RawSubjectPublicKeyInfo)
	}
	for i, name := range []string{"stolen-1", "stolen-2", "stolen-3"} {
		renew(stolen, name)
		if got := identity(); len(got.Credentials) != 1 || got.Credentials[0].Key != keyOf(machine.key) {
			t.Fatalf("after renewal %d of the machine before: got %+v, want only the key of the new machine", i+1, got)
		}
	}
	for i, name := range []string{"current-1", "current-2"} { // twice, as if the machine had lost the first response
		key := renew(current, name)
		if got := identity(); len(got.Credentials) != 2+i || got.Credentials[0].Key != keyOf(machine.key) || got.Last().Key != key {
			t.Errorf("after %s: got %+v, want the key that authenticated and the new one", name, got)
		}
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: must.Value(x509.MarshalPKIXPublicKey(csrtest.NewKey().Public()))(t)})
	bind := func(c *certClient) error {
		_, err := c.BindKey(t.Context(), api.BindKey{Key: api.Text(public)})
		return err
	}
	var p *api.Problem
	if err := bind(thief); !errors.As(err, &p) || p.Reason != admission.ReasonKeyNotCurrent {
		t.Errorf("the machine before binds a key: got %v, want %s", err, admission.ReasonKeyNotCurrent)
	}
	must.OK(t, bind(machine))
	if got := identity().Bound; got.Fingerprint == "" || got.Key == "" {
		t.Errorf("got %+v, want the key and the certificate that bound it", got)
	}
}
