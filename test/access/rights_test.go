package access

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/rotation/clusterstore"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// TestManifestsGrantExactlyTheRightsUsed catches rights in deploy/manifests that kubejoin does not use, and requests of
// kubejoin that the manifests do not allow.
func TestManifestsGrantExactlyTheRightsUsed(t *testing.T) {
	harness.Parallel(t)
	audit := harness.NewAuditLog(t, `- {level: Metadata, users: ["system:serviceaccount:kubejoin-system:kubejoin"]}`+"\n- level: None\n")
	s := harness.PrepareSite(t, cluster.Options{Setup: cluster.WithoutClusterInfo, APIServerFlags: audit.Flags()})
	rights := rights(t, s)
	if len(rights) == 0 {
		t.Fatal("got no rights of kubejoin from the manifests, want some to check")
	}
	signers := exerciseAllFeatures(t, s)

	var calls []cluster.Call
	for c, err := range audit.Calls() {
		must.OK(t, err)
		if c.ObjectRef.Resource == "" {
			continue
		}
		calls = append(calls, c)
		if c.ResponseStatus.Code == 403 {
			t.Errorf("kubejoin was refused %s %s, want it to be allowed", c.Verb, c.RequestURI)
		}
	}
	for _, r := range rights {
		if r.group == rbacv1.GroupName {
			t.Errorf("kubejoin may %s, want no rights on RBAC objects: they would outlive a stolen credential", r)
		}
		if why, found := unexercised[r.String()]; found {
			t.Logf("not used here: %s: %s", r, why)
			continue
		}
		if !slices.ContainsFunc(calls, func(c cluster.Call) bool { return r.allows(c, signers) }) {
			t.Errorf("kubejoin does not use the right: %s", r)
		}
	}
	for exception := range unexercised {
		if !slices.ContainsFunc(rights, func(r right) bool { return r.String() == exception }) {
			t.Errorf("the manifests do not grant a right that this test lists as an exception: %s", exception)
		}
	}
	for _, c := range calls {
		if !slices.ContainsFunc(rights, func(r right) bool { return r.allows(c, signers) }) {
			t.Errorf("kubejoin does %s %s, want a right in the manifests that allows it", c.Verb, c.RequestURI)
		}
	}
}

// unexercised are rights that this test does not use, with their purpose.
var unexercised = map[string]string{
	"get certificatesigningrequests":                                      "kubejoin re-reads a request after a conflict",
	"delete configmaps extension-apiserver-authentication in kube-system": "the end of a CA rotation: TestReplacesClusterCA in test/kubeadm",
	"get configmaps kubeadm-config in kube-system":                        "members of etcd in a CA rotation: TestReplacesClusterCA in test/kubeadm",
	"patch events in default":                                             "client-go's recorder increments the count of a repeated Event",
	"patch events in kubejoin-system":                                     "client-go's recorder increments the count of a repeated Event",
}

// exerciseAllFeatures makes kubejoin use all its features on a cluster, and returns the signer of each request by name.
func exerciseAllFeatures(t *testing.T, s *harness.Site) (signers map[string]string) {
	t.Helper()
	const (
		kubelet = certificates.KubeAPIServerClientKubeletSignerName
		serving = certificates.KubeletServingSignerName
		client  = certificates.KubeAPIServerClientSignerName
	)
	ctx, admin := t.Context(), s.Client()
	// No request has a name of six characters: in the audit log, an Event about it would look like a token.
	signers = map[string]string{"worker-1": kubelet, "serving": serving, "users": client, "stranger": kubelet, "evidence": serving}

	s.RequestCertificate(t, "over", client)
	s.RunKubectl(t, "certificate", "approve", "over")
	expire(t, s, "over")
	ca, key := filepath.Join(s.WorkDir, "ca.crt"), filepath.Join(s.WorkDir, "ca.key")
	harness.ReplaceFile(t, ca, harness.ReadFile(t, s.CAFile()))
	harness.ReplaceFile(t, key, harness.ReadFile(t, s.CAKeyFile()))
	s.Start(t, "--cluster-signing-cert-file="+ca, "--cluster-signing-key-file="+key, "--serving-allowed-dns-suffix=node.example.com")
	if status, body := sendAs(t, s.Program, caller{bearer: s.Bearer(t)}, "POST", "/v1/ca/cluster/rotation/prepare", "application/json", "{}"); status != 200 {
		t.Fatalf("begin a CA rotation: %d %s", status, body)
	}
	harness.Wait(t, "observation of the rotation", func() error {
		if !strings.Contains(s.Log(), "CA rotation in progress") {
			return errors.New("not yet")
		}
		return nil
	})
	harness.Wait(t, "deletion of the expired request", func() error {
		if out := s.RunKubectl(t, "get", "csr", "over", "--ignore-not-found", "-o", "name"); out != "" {
			return errors.New("not yet")
		}
		return nil
	})
	_, token := s.JoinArgs(t, "?ttl=5s")

	// One node joins with a limited token, and kubejoin refuses a second one.
	limited := s.CreateToken(t, tokens.Limits{MaxNodes: 1})
	machine := s.As(t, "system:bootstrap:"+limited.ID(), "system:bootstrappers", tokens.DefaultGroup)
	for _, name := range []string{"worker-1", "stranger"} {
		must.OK(t, harness.CreateRequest(ctx, machine, name, kubelet, name))
		if name == "worker-1" {
			s.WaitIssued(t, name)
		}
	}
	harness.Wait(t, "Event about the refusal", func() error {
		if out := s.RunKubectl(t, "get", "events", "-n", "default", "--field-selector=reason=TokenSpent", "-o", "name"); out == "" {
			return errors.New("not yet")
		}
		return nil
	})
	// The claim records the Node, and kubejoin releases the claim after the Node was deleted.
	claim := func() string {
		return s.RunKubectl(t, "-n", "kubejoin-system", "get", "lease", "worker-1", "--ignore-not-found", "-o", "jsonpath={.metadata.annotations}")
	}
	node := must.Value(admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1"}}, metav1.CreateOptions{}))(t)
	harness.Wait(t, "the Node in its claim", func() error {
		if got := claim(); !strings.Contains(got, string(node.UID)) {
			return errors.New(got)
		}
		return nil
	})
	s.RunKubectl(t, "delete", "node", "worker-1")
	harness.Wait(t, "release of the claim", func() error {
		if got := claim(); got != "" {
			return errors.New(got)
		}
		return nil
	})
	// kubejoin approves the serving certificate of another node.
	served := must.Value(admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "evidence"}}, metav1.CreateOptions{}))(t)
	served.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "evidence"}}
	must.Value(admin.CoreV1().Nodes().UpdateStatus(ctx, served, metav1.UpdateOptions{}))(t)
	must.OK(t, harness.CreateRequest(ctx, s.As(t, "system:node:evidence", "system:nodes"), "evidence", serving, "evidence"))
	s.WaitIssued(t, "evidence")
	for _, name := range []string{"serving", "users"} {
		s.RequestCertificate(t, name, signers[name])
		s.RunKubectl(t, "certificate", "approve", name)
		s.WaitIssued(t, name)
	}
	for _, path := range []string{"/v1/explain/worker-1", "/v1/join"} {
		if status, body, err := s.Get(ctx, path, s.Bearer(t)); err != nil || status != 200 || strings.Contains(body, `"unread"`) {
			t.Errorf("%s: %d %s %v", path, status, body, err)
		}
	}
	for _, reason := range []string{"first", "again"} { // the first creates a ConfigMap, the second updates it
		if status, body := sendAs(t, s.Program, caller{bearer: s.Bearer(t)}, "POST", "/v1/revocation?node=evidence&reason="+reason, "", ""); status != 201 {
			t.Errorf("revoke: %d %s", status, body)
		}
	}
	// kubejoin sends an unknown bearer token to the API server for review.
	if status, body, err := s.Get(ctx, "/v1/token", "nobody-knows-this-one"); err != nil || status != 401 {
		t.Errorf("unknown bearer token: got %d %s %v, want 401", status, body, err)
	}
	if status, body := sendAs(t, s.Program, caller{bearer: s.Bearer(t)}, "POST", "/v1/ca/cluster/rotation/trust", "", ""); status != 200 {
		t.Errorf("begin to trust the new CA: %d %s", status, body)
	}
	harness.ReplaceFile(t, ca, []byte("no certificate"))
	harness.Wait(t, "Event about the CA", func() error {
		if out := s.RunKubectl(t, "get", "events", "-n", "kubejoin-system", "-o", "name"); out == "" {
			return errors.New("not yet")
		}
		return nil
	})
	harness.Wait(t, "deletion of the expired token", func() error {
		if out := s.RunKubectl(t, "-n", "kube-system", "get", "secret", "bootstrap-token-"+token.ID(), "--ignore-not-found", "-o", "name"); out != "" {
			return errors.New("not yet")
		}
		return nil
	})
	return signers
}

// expire writes an expired certificate to an approved request.
func expire(t *testing.T, s *harness.Site, name string) {
	t.Helper()
	key := must.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)}
	der := must.Value(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))(t)
	requests := s.Client().CertificatesV1().CertificateSigningRequests()
	object := must.Value(requests.Get(t.Context(), name, metav1.GetOptions{}))(t)
	object.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	must.Value(requests.UpdateStatus(t.Context(), object, metav1.UpdateOptions{}))(t)
}

// A right is one verb that a Role allows on one resource.
type right struct {
	verb, group, resource string // resource includes the subresource
	name                  string // empty: any name
	namespace             string // empty: all namespaces
}

func (r right) String() string {
	text := r.verb + " " + r.resource
	if r.name != "" {
		text += " " + r.name
	}
	if r.namespace != "" {
		text += " in " + r.namespace
	}
	return text
}

// rights returns the rights of the Roles that are bound to kubejoin.
func rights(t *testing.T, s *harness.Site) []right {
	t.Helper()
	ctx, rbac := t.Context(), s.Client().RbacV1()
	var rights []right
	add := func(namespace string, rules []rbacv1.PolicyRule) {
		for _, rule := range rules {
			names := rule.ResourceNames
			if len(names) == 0 {
				names = []string{""}
			}
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						for _, name := range names {
							rights = append(rights, right{verb, group, resource, name, namespace})
						}
					}
				}
			}
		}
	}
	bound := func(subjects []rbacv1.Subject) bool {
		return slices.ContainsFunc(subjects, func(s rbacv1.Subject) bool {
			return s.Kind == rbacv1.ServiceAccountKind && s.Namespace == "kubejoin-system" && s.Name == "kubejoin"
		})
	}
	everywhere := must.Value(rbac.ClusterRoleBindings().List(ctx, metav1.ListOptions{}))(t)
	for _, b := range everywhere.Items {
		if bound(b.Subjects) {
			role := must.Value(rbac.ClusterRoles().Get(ctx, b.RoleRef.Name, metav1.GetOptions{}))(t)
			add("", role.Rules)
		}
	}
	somewhere := must.Value(rbac.RoleBindings("").List(ctx, metav1.ListOptions{}))(t)
	for _, b := range somewhere.Items {
		if bound(b.Subjects) {
			role := must.Value(rbac.Roles(b.Namespace).Get(ctx, b.RoleRef.Name, metav1.GetOptions{}))(t)
			add(b.Namespace, role.Rules)
		}
	}
	return rights
}

// allows reports whether the call needs the right.
func (r right) allows(c cluster.Call, signers map[string]string) bool {
	o := c.ObjectRef
	resource := o.Resource
	if o.Subresource != "" {
		resource += "/" + o.Subresource
	}
	switch {
	// The API server checks rights on signers in addition to those on the request.
	case r.resource == "signers":
		verbs := map[string]string{"certificatesigningrequests/approval": "approve", "certificatesigningrequests/status": "sign"}
		return r.verb == verbs[resource] && r.name == signers[o.Name]
	case r.group != o.APIGroup || r.resource != resource || r.namespace != "" && r.namespace != o.Namespace:
		return false
	case r.name != "" && r.name != o.Name:
		return false
	// client-go uses list instead if the API server cannot stream the existing objects to a watch.
	case r.verb == "list" && c.Verb == "watch":
		return true
	}
	return r.verb == c.Verb
}

// TestPolicyRestrictsKubejoinToBootstrapTokenSecrets catches a stolen kubejoin credential that creates a service account
// token. Without the policy, RBAC allows that.
func TestPolicyRestrictsKubejoinToBootstrapTokenSecrets(t *testing.T) {
	harness.Parallel(t)
	checkSecretWrites(t, harness.PrepareSite(t, cluster.Options{}))
}

// checkSecretWrites checks that a policy refuses all writes of Secrets by kubejoin except necessary writes. It gives
// kubejoin the rights in deploy/control-planes.yaml.
func checkSecretWrites(t *testing.T, s *harness.Site) {
	t.Helper()
	config := must.Value(s.Config(s.OwnKubeconfig))(t)
	client := must.Value(kubernetes.NewForConfig(config))(t)
	ctx := t.Context()
	secrets := client.CoreV1().Secrets(metav1.NamespaceSystem)
	secret := func(name string, kind corev1.SecretType) *corev1.Secret {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{corev1.ServiceAccountNameKey: "clusterrole-aggregation-controller"}},
			Type:       kind,
			StringData: map[string]string{"token-id": strings.TrimPrefix(name, "bootstrap-token-"), "token-secret": tokens.Generate().RevealSecret()},
		}
	}
	owned := func(name string, kind corev1.SecretType, owner string) *corev1.Secret {
		s := secret(name, kind)
		s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Secret", Name: owner, UID: "0"}}
		return s
	}
	// The API server begins to enforce the policy shortly after its creation.
	harness.Wait(t, "the policy", func() error {
		_, err := secrets.Create(ctx, secret("probe", corev1.SecretTypeOpaque), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || !strings.Contains(err.Error(), "kubejoin may write only Secrets") { // RBAC may refuse the write at first
			return fmt.Errorf("got %v, want a refusal by the policy", err)
		}
		return nil
	})
	other := secret("other", corev1.SecretTypeOpaque)
	must.Value(s.Client().CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, other, metav1.CreateOptions{}))(t)
	// An upload also needs the right in deploy/control-planes.yaml.
	upload := owned("kubeadm-certs", corev1.SecretTypeOpaque, "bootstrap-token-abcabc")
	must.Value(s.Client().CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, upload, metav1.CreateOptions{}))(t)
	update := func() error {
		_, err := secrets.Update(ctx, upload, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	const without = "deploy/control-planes.yaml also allows kubeadm-certs"
	if err := update(); err == nil || !strings.Contains(err.Error(), without) {
		t.Errorf("update an upload without the right: got %v, want a refusal by the policy", err)
	}
	if err := secrets.Delete(ctx, "kubeadm-certs", metav1.DeleteOptions{}); err == nil || !strings.Contains(err.Error(), without) {
		t.Errorf("delete an upload without the right: got %v, want a refusal by the policy", err)
	}
	s.RunKubectl(t, "apply", "-f", harness.RepositoryFile(t, "deploy/control-planes.yaml"))
	harness.Wait(t, "the right to upload", update)
	if err := secrets.Delete(ctx, "kubeadm-certs", metav1.DeleteOptions{}); err != nil {
		t.Errorf("delete an upload: %v", err)
	}
	const opaque, account = corev1.SecretTypeOpaque, corev1.SecretTypeServiceAccountToken
	wantRefused := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "kubejoin may write only Secrets") {
			t.Errorf("%s: got %v, want a refusal by the policy", what, err)
		}
	}
	for what, created := range map[string]*corev1.Secret{
		"a service account token":                                    secret("stolen", account),
		"a service account token with the name of a bootstrap token": secret("bootstrap-token-abcabc", account),
		"a bootstrap token with another name":                        secret("abcabc", corev1.SecretTypeBootstrapToken),
		"an upload that no token owns":                               secret("kubeadm-certs", opaque),
		"an upload that another Secret owns":                         owned("kubeadm-certs", opaque, "other"),
		"a service account token with the name of the upload":        owned("kubeadm-certs", account, "bootstrap-token-abcabc"),
		"a service account token with the name of the key of a CA":   secret(clusterstore.KeyName, account),
		"another owned Secret":                                       owned("kubeadm-certs-2", opaque, "bootstrap-token-abcabc"),
	} {
		_, err := secrets.Create(ctx, created, metav1.CreateOptions{})
		wantRefused("create "+what, err)
	}
	_, err := secrets.Update(ctx, secret("other", opaque), metav1.UpdateOptions{})
	wantRefused("update another Secret", err)
	wantRefused("delete another Secret", secrets.Delete(ctx, "other", metav1.DeleteOptions{}))
	for name, kind := range map[string]corev1.SecretType{"bootstrap-token-abcabc": corev1.SecretTypeBootstrapToken, clusterstore.KeyName: opaque} {
		if _, err := secrets.Create(ctx, secret(name, kind), metav1.CreateOptions{}); err != nil {
			t.Errorf("create %s: %v", name, err)
		}
		if err := secrets.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Errorf("delete %s: %v", name, err)
		}
	}
	if _, err := client.CoreV1().Secrets("default").List(ctx, metav1.ListOptions{}); err == nil {
		t.Error("kubejoin can list Secrets in another namespace, want an error")
	}
}
