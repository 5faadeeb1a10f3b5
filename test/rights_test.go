package test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Each right in deploy/manifests is used by kubejoin, and it asks for nothing that it may not.
func TestRightsAreThoseUsed(t *testing.T) {
	t.Parallel()
	audit := newCallLog(t)
	s := prepare(t, cluster.Options{Setup: cluster.WithoutClusterInfo, APIServerFlags: audit.flags()})
	rights := s.rights(t)
	if len(rights) == 0 {
		t.Fatal("the manifests give kubejoin no rights: this test could not fail")
	}
	signers := s.useAll(t)

	calls := audit.calls(t)
	for _, c := range calls {
		if c.ResponseStatus.Code == 403 {
			t.Errorf("kubejoin may not %s", c)
		}
	}
	for _, r := range rights {
		if r.group == rbacv1.GroupName {
			t.Errorf("kubejoin may %s: what it creates so would outlast a stolen credential", r)
		}
		if why, known := seldom[r.String()]; known {
			t.Logf("not used here: %s: %s", r, why)
			continue
		}
		if !slices.ContainsFunc(calls, func(c call) bool { return r.allows(c, signers) }) {
			t.Errorf("kubejoin has no use for: %s", r)
		}
	}
	for known := range seldom {
		if !slices.ContainsFunc(rights, func(r right) bool { return r.String() == known }) {
			t.Errorf("the manifests do not have the right that the test makes an exception of: %s", known)
		}
	}
	for _, c := range calls {
		if !slices.ContainsFunc(rights, func(r right) bool { return r.allows(c, signers) }) {
			t.Errorf("kubejoin does %s, and no right of the manifests is for that", c)
		}
	}
}

// seldom are rights whose use would take a test of its own.
var seldom = map[string]string{
	"get certificatesigningrequests":  "a request that somebody else has written meanwhile is read anew",
	"patch events in default":         "client-go's recorder counts an Event that comes again",
	"patch events in kubejoin-system": "the same",
}

// useAll has kubejoin do everything that it does in a cluster, and gives the signer of each
// request that it did it with.
func (s *site) useAll(t *testing.T) (signers map[string]string) {
	t.Helper()
	const (
		kubelet = certificates.KubeAPIServerClientKubeletSignerName
		serving = certificates.KubeletServingSignerName
		client  = certificates.KubeAPIServerClientSignerName
	)
	ctx, admin := t.Context(), s.Client()
	signers = map[string]string{"worker-1": kubelet, "serving": serving, "client": client, "second": kubelet, "stranger": kubelet, "evidence": serving}

	s.ask(t, "over", client)
	s.kubectl(t, "certificate", "approve", "over")
	s.expire(t, "over")
	ca, key := filepath.Join(s.dir, "ca.crt"), filepath.Join(s.dir, "ca.key")
	replace(t, ca, readFile(t, s.CAFile()))
	replace(t, key, readFile(t, s.CAKeyFile()))
	s.start(t, "--cluster-signing-cert-file="+ca, "--cluster-signing-key-file="+key, "--serving-allowed-dns-suffix=node.example.com")
	wait(t, "deletion of the expired request", func() error {
		if out := s.kubectl(t, "get", "csr", "over", "--ignore-not-found", "-o", "name"); out != "" {
			return errNotYet
		}
		return nil
	})
	_, token := s.join(t, "?ttl=5s")

	// A node joins on a limited token, and another one may not.
	limited := s.mint(t, tokens.Limits{MaxNodes: 1})
	machine := s.as(t, "system:bootstrap:"+limited.ID(), "system:bootstrappers", tokens.DefaultGroup)
	for _, name := range []string{"worker-1", "stranger"} {
		if err := request(ctx, machine, name, kubelet, name); err != nil {
			t.Fatal(err)
		}
		if name == "worker-1" {
			s.issued(t, name)
		}
	}
	wait(t, "Event of the refusal", func() error {
		if out := s.kubectl(t, "get", "events", "-n", "default", "--field-selector=reason=TokenSpent", "-o", "name"); out == "" {
			return errNotYet
		}
		return nil
	})
	// Its claim follows the Node.
	claim := func() string {
		return s.kubectl(t, "-n", "kubejoin-system", "get", "lease", "worker-1", "--ignore-not-found", "-o", "jsonpath={.metadata.annotations}")
	}
	node, err := admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wait(t, "the Node in its claim", func() error {
		if got := claim(); !strings.Contains(got, string(node.UID)) {
			return errors.New(got)
		}
		return nil
	})
	s.kubectl(t, "delete", "node", "worker-1")
	wait(t, "release of the claim", func() error {
		if got := claim(); got != "" {
			return errors.New(got)
		}
		return nil
	})
	// Another has its serving certificate approved.
	served, err := admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "evidence"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	served.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "evidence"}}
	if _, err := admin.CoreV1().Nodes().UpdateStatus(ctx, served, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := request(ctx, s.as(t, "system:node:evidence", "system:nodes"), "evidence", serving, "evidence"); err != nil {
		t.Fatal(err)
	}
	s.issued(t, "evidence")
	for _, name := range []string{"serving", "client"} {
		s.ask(t, name, signers[name])
		s.kubectl(t, "certificate", "approve", name)
		s.issued(t, name)
	}
	if status, body, err := s.get(ctx, "/v1/explain/worker-1", s.bearer(t)); err != nil || status != 200 {
		t.Errorf("explain: %d %s %v", status, body, err)
	}
	// Somebody comes with a bearer token that only the API server could know.
	if status, body, err := s.get(ctx, "/v1/token", "nobody-knows-this-one"); err != nil || status != 401 {
		t.Errorf("with a token of nobody's: %d %s %v", status, body, err)
	}
	replace(t, ca, []byte("no certificate"))
	wait(t, "Event of the CA", func() error {
		if out := s.kubectl(t, "get", "events", "-n", "kubejoin-system", "-o", "name"); out == "" {
			return errNotYet
		}
		return nil
	})
	wait(t, "end of the short token", func() error {
		if out := s.kubectl(t, "-n", "kube-system", "get", "secret", "bootstrap-token-"+token.ID(), "--ignore-not-found", "-o", "name"); out != "" {
			return errNotYet
		}
		return nil
	})
	return signers
}

// expire puts a certificate that is over on an approved request.
func (s *site) expire(t *testing.T, name string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	requests := s.Client().CertificatesV1().CertificateSigningRequests()
	object, err := requests.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	object.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if _, err := requests.UpdateStatus(t.Context(), object, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// A right is one verb that a Role lets kubejoin do on one resource.
type right struct {
	verb, group, resource string // with its subresource
	name                  string // empty: any
	namespace             string // empty: all
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

// rights are those that kubejoin has by the Roles that are bound to it.
func (s *site) rights(t *testing.T) []right {
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
	everywhere, err := rbac.ClusterRoleBindings().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range everywhere.Items {
		if bound(b.Subjects) {
			role, err := rbac.ClusterRoles().Get(ctx, b.RoleRef.Name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			add("", role.Rules)
		}
	}
	somewhere, err := rbac.RoleBindings("").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range somewhere.Items {
		if bound(b.Subjects) {
			role, err := rbac.Roles(b.Namespace).Get(ctx, b.RoleRef.Name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			add(b.Namespace, role.Rules)
		}
	}
	return rights
}

// allows reports whether the right is one that the call needs.
func (r right) allows(c call, signers map[string]string) bool {
	o := c.ObjectRef
	resource := o.Resource
	if o.Subresource != "" {
		resource += "/" + o.Subresource
	}
	switch {
	// What the API server asks for in addition, after the request as such is allowed.
	case r.resource == "signers":
		verbs := map[string]string{"certificatesigningrequests/approval": "approve", "certificatesigningrequests/status": "sign"}
		return r.verb == verbs[resource] && r.name == signers[o.Name]
	case r.group != o.APIGroup || r.resource != resource || r.namespace != "" && r.namespace != o.Namespace:
		return false
	case r.name != "" && r.name != o.Name:
		return false
	// An API server that does not stream the objects that are there is asked for a list.
	case r.verb == "list" && c.Verb == "watch":
		return true
	}
	return r.verb == c.Verb
}

// Whoever holds kubejoin's identity writes no Secrets but bootstrap tokens, although RBAC alone
// would let it make a service account token of cluster-admin's.
func TestSecretsAreHeldToBootstrapTokens(t *testing.T) {
	t.Parallel()
	s := prepare(t, cluster.Options{})
	config, err := s.Config(s.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	secrets := client.CoreV1().Secrets(metav1.NamespaceSystem)
	secret := func(name string, kind corev1.SecretType) *corev1.Secret {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{corev1.ServiceAccountNameKey: "clusterrole-aggregation-controller"}},
			Type:       kind,
			StringData: map[string]string{"token-id": strings.TrimPrefix(name, "bootstrap-token-"), "token-secret": tokens.Generate().RevealSecret()},
		}
	}
	// The policy is in force some moments after it was made.
	wait(t, "the policy", func() error {
		_, err := secrets.Create(ctx, secret("probe", corev1.SecretTypeOpaque), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return errAllowed
		}
		return nil
	})
	other := secret("other", corev1.SecretTypeOpaque)
	if _, err := s.Client().CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for what, do := range map[string]func() error{
		"create a service account token": func() error {
			_, err := secrets.Create(ctx, secret("stolen", corev1.SecretTypeServiceAccountToken), metav1.CreateOptions{})
			return err
		},
		"create one that is named as a bootstrap token": func() error {
			_, err := secrets.Create(ctx, secret("bootstrap-token-abcabc", corev1.SecretTypeServiceAccountToken), metav1.CreateOptions{})
			return err
		},
		"create a bootstrap token of another name": func() error {
			_, err := secrets.Create(ctx, secret("abcabc", corev1.SecretTypeBootstrapToken), metav1.CreateOptions{})
			return err
		},
		"update another Secret": func() error {
			_, err := secrets.Update(ctx, secret("other", corev1.SecretTypeOpaque), metav1.UpdateOptions{})
			return err
		},
		"delete another Secret": func() error { return secrets.Delete(ctx, "other", metav1.DeleteOptions{}) },
	} {
		if err := do(); err == nil || !strings.Contains(err.Error(), "kubejoin writes no Secrets but") {
			t.Errorf("%s: %v, want the policy's refusal", what, err)
		}
	}
	if _, err := secrets.Create(ctx, secret("bootstrap-token-abcabc", corev1.SecretTypeBootstrapToken), metav1.CreateOptions{}); err != nil {
		t.Errorf("create a bootstrap token: %v", err)
	}
	if err := secrets.Delete(ctx, "bootstrap-token-abcabc", metav1.DeleteOptions{}); err != nil {
		t.Errorf("delete it: %v", err)
	}
	if _, err := client.CoreV1().Secrets("default").List(ctx, metav1.ListOptions{}); err == nil {
		t.Error("kubejoin can list Secrets in another namespace")
	}
}
