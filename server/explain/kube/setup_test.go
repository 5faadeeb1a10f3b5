package kube_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/explain/kube"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/kubefacts"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	authorization "k8s.io/api/authorization/v1"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func TestMain(m *testing.M) { cluster.Main(m) }

const (
	kubelet = certificates.KubeAPIServerClientKubeletSignerName
	serving = certificates.KubeletServingSignerName
)

// world is the shared cluster, read as an administrator. No kubejoin runs there: the tests approve and sign
// requests themselves. Each test uses its own node names.
type world struct {
	*testing.T
	cluster *cluster.Cluster
	admin   kubernetes.Interface
	tokens  *secretstore.Store
	claims  *secretstore.Claims
	info    *configmap.ConfigMap
	reader  kube.Reader
	joins   *kube.Joins
}

func newWorld(t *testing.T) *world {
	t.Helper()
	c := cluster.Shared(t)
	w := &world{T: t, cluster: c, admin: c.Client()}
	w.ignoreExists(w.admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kubejoin-system"}}, metav1.CreateOptions{}))
	w.reader = w.readerOf(w.admin)
	w.joins = kube.OpenJoins(t.Context(), w.reader, kubefacts.OpenNodes(t.Context(), w.admin))
	w.joins.SetAge(10 * time.Millisecond)
	w.tokens, w.claims, w.info = w.reader.Tokens.(*secretstore.Store), w.reader.Claims.(*secretstore.Claims), w.reader.ClusterInfo.(*configmap.ConfigMap)
	return w
}

// readerOf returns a Reader that uses only that client.
func (w *world) readerOf(client kubernetes.Interface) kube.Reader {
	w.Helper()
	store, err := secretstore.Open(w.Context(), client, nil)
	if err != nil {
		w.Fatal(err)
	}
	claims, err := secretstore.OpenClaims(w.Context(), client, store, "kubejoin-system", nil)
	if err != nil {
		w.Fatal(err)
	}
	// The timeout is long so that a slow machine does not make facts unreadable.
	return kube.Reader{Client: client, Tokens: store, Claims: claims, ClusterInfo: configmap.Open(w.Context(), client), Timeout: time.Minute}
}

func (w *world) ignoreExists(_ any, err error) {
	w.Helper()
	if err != nil && !apierrors.IsAlreadyExists(err) {
		w.Fatal(err)
	}
}

// token stores a token.
func (w *world) token(change ...func(*tokens.Record)) tokens.Record {
	w.Helper()
	r := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
	for _, c := range change {
		c(&r)
	}
	stored, err := w.tokens.Create(w.Context(), r)
	if err != nil {
		w.Fatal(err)
	}
	return stored
}

// holder returns a client that authenticates as the bootstrap user of the token.
func (w *world) holder(r tokens.Record) kubernetes.Interface {
	return w.as("system:bootstrap:"+r.Token.ID(), "system:bootstrappers", tokens.DefaultGroup)
}

func (w *world) as(name string, groups ...string) kubernetes.Interface {
	w.Helper()
	config := w.cluster.AdminConfig()
	config.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: append(groups, "system:authenticated")}
	return w.client(config)
}

func (w *world) client(config *rest.Config) kubernetes.Interface {
	w.Helper()
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		w.Fatal(err)
	}
	return client
}

// ask creates a certificate request for the node with the client.
func (w *world) ask(client kubernetes.Interface, signerName, node string) *certificates.CertificateSigningRequest {
	w.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		w.Fatal(err)
	}
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}}
	usages := []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth}
	if signerName == serving {
		usages[1], template.DNSNames = certificates.UsageServerAuth, []string{node}
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		w.Fatal(err)
	}
	o, err := client.CertificatesV1().CertificateSigningRequests().Create(w.Context(), &certificates.CertificateSigningRequest{
		// With a label, the API server records managed fields from the creation on.
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-", Labels: map[string]string{"explain": "test"}},
		Spec: certificates.CertificateSigningRequestSpec{
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: signerName, Usages: usages,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return o
}

// decide approves or denies a request as an approver does.
func (w *world) decide(o *certificates.CertificateSigningRequest, kind certificates.RequestConditionType, reason, message string) *certificates.CertificateSigningRequest {
	w.Helper()
	o.Status.Conditions = append(o.Status.Conditions, certificates.CertificateSigningRequestCondition{Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message})
	o, err := w.admin.CertificatesV1().CertificateSigningRequests().UpdateApproval(w.Context(), o.Name, o, metav1.UpdateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return o
}

// finish writes the status as a signer does: a certificate of the CA, or the Failed condition.
func (w *world) finish(o *certificates.CertificateSigningRequest, manager string, ca *signer.CA, failed *certificates.CertificateSigningRequestCondition) {
	w.Helper()
	if failed != nil {
		o.Status.Conditions = append(o.Status.Conditions, *failed)
	} else {
		parsed, err := pkcs10.Parse(o.Spec.Request)
		if err != nil {
			w.Fatal(err)
		}
		profile := must.Get(signer.NewProfile(signer.ProfileConfig{Usages: o.Spec.Usages, Default: time.Hour}))
		if o.Status.Certificate, err = profile.Issue(ca, signer.Template{CSR: parsed, Usages: o.Spec.Usages}, time.Now()); err != nil {
			w.Fatal(err)
		}
	}
	if _, err := w.admin.CertificatesV1().CertificateSigningRequests().UpdateStatus(w.Context(), o, metav1.UpdateOptions{FieldManager: manager}); err != nil {
		w.Fatal(err)
	}
}

func (w *world) approve(o *certificates.CertificateSigningRequest) *certificates.CertificateSigningRequest {
	w.Helper()
	return w.decide(o, certificates.CertificateApproved, "AutoApproved", "approved")
}

func (w *world) clusterCA() *signer.CA {
	w.Helper()
	ca, err := signer.LoadCA(w.cluster.CAFile(), w.cluster.CAKeyFile())
	if err != nil {
		w.Fatal(err)
	}
	return ca
}

// node creates a Node with that Ready condition.
func (w *world) node(name string, ready corev1.ConditionStatus, message string) *corev1.Node {
	w.Helper()
	n, err := w.admin.CoreV1().Nodes().Create(w.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, Message: message, LastTransitionTime: metav1.Now()}}
	if n, err = w.admin.CoreV1().Nodes().UpdateStatus(w.Context(), n, metav1.UpdateOptions{}); err != nil {
		w.Fatal(err)
	}
	return n
}

// event creates an Event about a request that looks like kubejoin's.
func (w *world) event(writer kubernetes.Interface, o *certificates.CertificateSigningRequest, reason, message string) {
	w.Helper()
	_, err := writer.CoreV1().Events("default").Create(w.Context(), &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: o.Name + ".", Namespace: "default"},
		InvolvedObject: corev1.ObjectReference{Kind: "CertificateSigningRequest", Name: o.Name, UID: o.UID, APIVersion: "certificates.k8s.io/v1"},
		Reason:         reason, Message: message, Type: corev1.EventTypeWarning, Source: corev1.EventSource{Component: "kubejoin"},
		FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now(),
	}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
}

// explain explains the node, and fails the test unless the state matches and the sentence has these words.
func (w *world) explain(node string, state api.NodeState, words ...string) api.NodeExplanation {
	w.Helper()
	e, err := w.reader.Explain(w.Context(), node)
	if err != nil {
		w.Fatal(err)
	}
	w.Log(e.Text())
	if e.State != state {
		w.Errorf("node %s is %s, want %s: %s", node, e.State, state, e.Sentence)
	}
	for _, s := range words {
		if !strings.Contains(e.Sentence, s) {
			w.Errorf("got sentence %q, want %q in it", e.Sentence, s)
		}
	}
	if len(e.Unread) > 0 {
		w.Errorf("unread: %v", e.Unread)
	}
	w.noSecret(e)
	w.listed(node)
	return e
}

// listed fails the test unless the list of machines that join gives the same reason and the same advice as an explanation.
func (w *world) listed(node string) {
	w.Helper()
	w.await("the reason of "+node+" in the list", func(ctx context.Context) error {
		e, err := w.reader.Explain(ctx, node)
		if err != nil {
			return err
		}
		list, err := w.joins.List(ctx, node, "")
		all := list.Items
		switch {
		case err != nil:
			return err
		case len(list.Unread) > 0:
			return fmt.Errorf("unread: %v", list.Unread)
		case len(all) == 0 && len(e.Evidence.Requests) == 0 && e.Evidence.Object == nil && e.Evidence.Claim == nil:
			return nil // nobody knows the name
		case len(all) != 1 || all[0].Reason != e.State || all[0].Sentence != "" && !slices.Equal(all[0].Next, e.Next):
			return fmt.Errorf("got %+v, want reason %s and next %q", all, e.State, e.Next)
		}
		return nil
	})
}

// noSecret fails the test if the explanation shows the secret of a stored token.
func (w *world) noSecret(e api.NodeExplanation) {
	w.Helper()
	text, err := json.Marshal(e)
	if err != nil {
		w.Fatal(err)
	}
	all, err := w.tokens.List(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	for _, r := range all {
		if strings.Contains(string(text)+e.Text(), r.Token.RevealSecret()) {
			w.Errorf("the explanation shows the secret of token %s", r.Token)
		}
	}
}

// allow grants the rules to a new service account and returns its client.
func (w *world) allow(name string, rules ...rbac.PolicyRule) kubernetes.Interface {
	w.Helper()
	path, err := w.cluster.ServiceAccountKubeconfig(w.Context(), "kubejoin-system", name)
	if err != nil {
		w.Fatal(err)
	}
	meta := metav1.ObjectMeta{Name: "explain-" + name}
	w.ignoreExists(w.admin.RbacV1().ClusterRoles().Create(w.Context(), &rbac.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}))
	w.bind(meta.Name, rbac.Subject{Kind: "ServiceAccount", Namespace: "kubejoin-system", Name: name})
	config, err := w.cluster.Config(path)
	if err != nil {
		w.Fatal(err)
	}
	return w.client(config)
}

func (w *world) bind(role string, to rbac.Subject) {
	w.Helper()
	w.ignoreExists(w.admin.RbacV1().ClusterRoleBindings().Create(w.Context(), &rbac.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "explain-"},
		RoleRef:    rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbac.Subject{to},
	}, metav1.CreateOptions{}))
}

// permitted waits until the client may use the verb on CertificateSigningRequests: the authorizer's cache lags.
func (w *world) permitted(client kubernetes.Interface, verb string) {
	w.Helper()
	w.await("the permission", func(ctx context.Context) error {
		review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorization.SelfSubjectAccessReview{
			Spec: authorization.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorization.ResourceAttributes{Group: certificates.GroupName, Resource: "certificatesigningrequests", Verb: verb}},
		}, metav1.CreateOptions{})
		if err == nil && !review.Status.Allowed {
			err = fmt.Errorf("may not %s CertificateSigningRequests", verb)
		}
		return err
	})
}

// await calls try until it returns no error.
func (w *world) await(what string, try func(context.Context) error) {
	w.Helper()
	wait.OK(w, what, func() error { return try(w.Context()) })
}

// older waits until a new object gets a later creation time than o. Creation times have whole seconds.
func (w *world) older(o metav1.Object) {
	w.Helper()
	w.await("a second", func(context.Context) error {
		if time.Since(o.GetCreationTimestamp().Time) < 2*time.Second {
			return fmt.Errorf("%s is too young", o.GetName())
		}
		return nil
	})
}
