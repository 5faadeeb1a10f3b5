package csr_test

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/certlint"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/kubejoin/kubejoin/signer/kubefacts"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/prometheus/client_golang/prometheus"
	authorization "k8s.io/api/authorization/v1"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func TestMain(m *testing.M) {
	cluster.Main(m)
}

const (
	kubelet = certificates.KubeAPIServerClientKubeletSignerName
	serving = certificates.KubeletServingSignerName
	user    = certificates.KubeAPIServerClientSignerName

	bootstrapGroup = "system:bootstrappers:kubeadm:default-node-token"
)

// world is the shared cluster with a controller on it.
type world struct {
	*testing.T
	cluster  *cluster.Cluster
	admin    kubernetes.Interface
	metrics  *prometheus.Registry
	ca       *signer.CA
	roots    *x509.CertPool
	identity string               // kubeconfig of the controller
	restrict kubernetes.Interface // the controller's client
	issued   *certlint.Log
}

// newWorld returns a world without a controller. It deletes all CSRs before and after the test.
func newWorld(t *testing.T) *world {
	t.Helper()
	c := cluster.Shared(t)
	ca := must.Value(signer.LoadCA(c.CAFile(), c.CAKeyFile()))(t)
	w := &world{T: t, cluster: c, admin: unlimited(t, c.AdminConfig()), metrics: prometheus.NewRegistry(), ca: ca, roots: c.CAPool(), issued: &certlint.Log{}}
	t.Cleanup(func() {
		if n, findings := w.issued.Findings(); len(findings) > 0 {
			t.Errorf("%d issued certificates: lint findings: %s", n, certlint.Summary(findings))
		}
	})
	w.restrict = w.controllerIdentity()
	w.waitForPermissions()
	w.deleteAll()
	t.Cleanup(w.deleteAll)
	return w
}

func unlimited(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	config.QPS = -1
	return must.Value(kubernetes.NewForConfig(config))(t)
}

func (w *world) deleteAll() {
	// The context of the test is canceled at cleanup. On a busy machine, the API server may need several requests, each
	// of at most a minute.
	wait.Until(w, "the deletion of all requests", func() bool {
		err := w.admin.CertificatesV1().CertificateSigningRequests().DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{})
		if err != nil {
			w.Log(err)
		}
		return err == nil
	})
}

// controllerIdentity returns a client of a service account with only the permissions that the controllers need.
func (w *world) controllerIdentity() kubernetes.Interface {
	w.Helper()
	ctx := w.Context()
	path, err := w.cluster.ServiceAccountKubeconfig(ctx, "kubejoin-system", "csr-test")
	if err != nil {
		w.Fatal(err)
	}
	const group = "certificates.k8s.io"
	names := []string{kubelet, serving, user}
	role := &rbac.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "csr-test"}, Rules: []rbac.PolicyRule{
		{APIGroups: []string{group}, Resources: []string{"certificatesigningrequests"}, Verbs: []string{"get", "list", "watch", "delete"}},
		{APIGroups: []string{group}, Resources: []string{"certificatesigningrequests/approval", "certificatesigningrequests/status"}, Verbs: []string{"update"}},
		{APIGroups: []string{group}, Resources: []string{"signers"}, ResourceNames: names, Verbs: []string{"approve", "sign"}},
		{APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"subjectaccessreviews"}, Verbs: []string{"create"}},
		{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"services"}, ResourceNames: []string{"kubernetes"}, Verbs: []string{"get"}},
		{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, ResourceNames: []string{"kubernetes"}, Verbs: []string{"get"}},
		{APIGroups: []string{"networking.k8s.io"}, Resources: []string{"servicecidrs"}, Verbs: []string{"list"}},
	}}
	if _, err := w.admin.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		w.Fatal(err)
	}
	binding := &rbac.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "csr-test"},
		RoleRef:    rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: "csr-test"},
		Subjects:   []rbac.Subject{{Kind: "ServiceAccount", Namespace: "kubejoin-system", Name: "csr-test"}},
	}
	if _, err := w.admin.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		w.Fatal(err)
	}
	w.identity = path
	config, err := w.cluster.Config(path)
	if err != nil {
		w.Fatal(err)
	}
	return unlimited(w.T, config)
}

// authority returns an authority as kubejoin configures it.
func (w *world) authority(ca func() (*signer.CA, error)) *signer.Authority {
	return &signer.Authority{
		Facts:   &kubefacts.Facts{Client: w.restrict},
		Signers: signer.FixedSigners(must.Get(signer.KubernetesSigners(ca, 24*time.Hour))),
		Record:  w.issued,
	}
}

// run runs a function until the end of the test.
func (w *world) run(run func(context.Context) error) {
	w.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := run(ctx); err != nil {
			w.Errorf("Run: %v", err)
		}
	})
	w.Cleanup(func() { cancel(); running.Wait() })
}

// startController starts a controller that approves and signs.
func (w *world) startController() {
	w.Helper()
	w.run(csr.Controller{
		Client: w.restrict, Authority: w.authority(signer.Fixed(w.ca)), Approve: true, Sign: true, Registerer: w.metrics,
	}.Run)
}

// as returns a client of another user.
func (w *world) as(name string, groups ...string) kubernetes.Interface {
	w.Helper()
	config := w.cluster.AdminConfig()
	config.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: append(groups, "system:authenticated")}
	return unlimited(w.T, config)
}

// bootstrap returns a client with a bootstrap token in the group of kubeadm.
func (w *world) bootstrap() kubernetes.Interface {
	return w.as("machine", "system:bootstrappers", bootstrapGroup)
}

// allowAsking allows a group to create CSRs and waits until the API server knows the permission.
func (w *world) allowAsking(group string) error {
	_, err := w.admin.RbacV1().ClusterRoleBindings().Create(w.Context(), &rbac.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-test-"},
		RoleRef:    rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: "system:node-bootstrapper"},
		Subjects:   []rbac.Subject{{APIGroup: rbac.GroupName, Kind: "Group", Name: group}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	wait.Until(w, "leave to ask for "+group, func() bool {
		review, err := w.admin.AuthorizationV1().SubjectAccessReviews().Create(w.Context(), &authorization.SubjectAccessReview{
			Spec: authorization.SubjectAccessReviewSpec{User: "somebody", Groups: []string{group}, ResourceAttributes: &authorization.ResourceAttributes{
				Group: "certificates.k8s.io", Resource: "certificatesigningrequests", Verb: "create",
			}},
		}, metav1.CreateOptions{})
		if err != nil {
			w.Fatal(err)
		}
		return review.Status.Allowed
	})
	return nil
}

// ask creates a CSR object. A nil key means a new one; a template without a subject gets the subject of the node.
func (w *world) ask(client kubernetes.Interface, signerName, node string, template *x509.CertificateRequest, key crypto.Signer) *certificates.CertificateSigningRequest {
	w.Helper()
	if template == nil {
		template = &x509.CertificateRequest{}
	}
	if template.Subject.CommonName == "" {
		template.Subject = pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}
	}
	if key == nil {
		key = csrtest.NewKey()
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		w.Fatal(err)
	}
	usages := []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth}
	if signerName == serving {
		usages[1] = certificates.UsageServerAuth
	}
	object, err := client.CertificatesV1().CertificateSigningRequests().Create(w.Context(), &certificates.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-", Labels: map[string]string{"kept": "yes"}},
		Spec: certificates.CertificateSigningRequestSpec{
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: signerName, Usages: usages,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return object
}

// await polls until wanted returns true for the object.
func (w *world) await(name, what string, wanted func(*certificates.CertificateSigningRequest) bool) *certificates.CertificateSigningRequest {
	w.Helper()
	var last *certificates.CertificateSigningRequest
	wait.Until(w, what+" of "+name, func() bool {
		object, err := w.admin.CertificatesV1().CertificateSigningRequests().Get(w.Context(), name, metav1.GetOptions{})
		if err != nil {
			w.Fatal(err)
		}
		last = object
		return wanted(object)
	})
	return last
}

func condition(object *certificates.CertificateSigningRequest, kind certificates.RequestConditionType) *certificates.CertificateSigningRequestCondition {
	for i, c := range object.Status.Conditions {
		if c.Type == kind {
			return &object.Status.Conditions[i]
		}
	}
	return nil
}

// approve does what 'kubectl certificate approve' does.
func (w *world) approve(name string) {
	w.Helper()
	w.decide(name, certificates.CertificateApproved)
}

func (w *world) decide(name string, kind certificates.RequestConditionType) {
	w.Helper()
	requests := w.admin.CertificatesV1().CertificateSigningRequests()
	for {
		object, err := requests.Get(w.Context(), name, metav1.GetOptions{})
		if err != nil {
			w.Fatal(err)
		}
		object.Status.Conditions = append(object.Status.Conditions, certificates.CertificateSigningRequestCondition{
			Type: kind, Status: corev1.ConditionTrue, Reason: "ByHand", Message: "by hand",
		})
		_, err = requests.UpdateApproval(w.Context(), name, object, metav1.UpdateOptions{})
		if err == nil {
			return
		}
		if !apierrors.IsConflict(err) {
			w.Fatal(err)
		}
	}
}

// awaitEvent waits for an Event on the object.
func (w *world) awaitEvent(object *certificates.CertificateSigningRequest, reason string) corev1.Event {
	w.Helper()
	var found corev1.Event
	wait.Until(w, "event "+reason+" on "+object.Name, func() bool {
		events, err := w.admin.CoreV1().Events("default").List(w.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + object.Name})
		if err != nil {
			w.Fatal(err)
		}
		for _, e := range events.Items {
			if e.Reason == reason && e.InvolvedObject.UID == object.UID && e.Type == corev1.EventTypeWarning {
				found = e
				return true
			}
		}
		return false
	})
	return found
}

// count returns the sum of a counter over all series with the given labels (name=value).
func (w *world) count(name string, labels ...string) float64 {
	w.Helper()
	families, err := w.metrics.Gather()
	if err != nil {
		w.Fatal(err)
	}
	sum := 0.0
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			all := map[string]bool{}
			for _, l := range m.GetLabel() {
				all[fmt.Sprintf("%s=%s", l.GetName(), l.GetValue())] = true
			}
			matches := true
			for _, l := range labels {
				matches = matches && all[l]
			}
			if matches {
				sum += m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

// askLabelled creates a labelled request for the client certificate of a node with an existing key.
func (w *world) askLabelled(client kubernetes.Interface, node string, labels map[string]string, key crypto.Signer) *certificates.CertificateSigningRequest {
	w.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}},
	}, key)
	if err != nil {
		w.Fatal(err)
	}
	object, err := client.CertificatesV1().CertificateSigningRequests().Create(w.Context(), &certificates.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-", Labels: labels},
		Spec: certificates.CertificateSigningRequestSpec{
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: kubelet,
			Usages: []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return object
}

// pending returns the number of requests with a label and without a certificate.
func (w *world) pending(selector string) int {
	w.Helper()
	list, err := w.admin.CertificatesV1().CertificateSigningRequests().List(w.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		w.Fatal(err)
	}
	n := 0
	for _, o := range list.Items {
		if len(o.Status.Certificate) == 0 {
			n++
		}
	}
	return n
}
