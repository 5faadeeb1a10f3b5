package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/kubejoin/kubejoin/internal/daemon"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/rogpeppe/go-internal/testscript"
	authorization "k8s.io/api/authorization/v1"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// TestExplainOnCluster runs kubejoin explain with a kubeconfig, with a kubejoin server, and with few permissions.
func TestExplainOnCluster(t *testing.T) {
	c := cluster.ForTest(t, cluster.Options{})
	createDeniedCSR(t, c, "worker-7", "csr-explained", "token abcdef was for 1 node and worker-3 took it; make another with: kubejoin token create --max-nodes 1 --node-name worker-7")
	createCSR(t, c, "system:bootstrap:abcdef", "worker-8x", "csr-pending")
	node := must.Value(c.Client().CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-9"}}, metav1.CreateOptions{}))(t)
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
	must.Value(c.Client().CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}))(t)
	bearer := filepath.Join(t.TempDir(), "bearer")
	must.OK(t, os.WriteFile(bearer, []byte("bearer-of-ada-0123456789\n"), 0o600))
	server := serveCluster(t, c, "bearer-of-ada-0123456789,ada,1,"+daemon.AdminGroup+"\n")
	restricted := restrictedKubeconfig(t, c)
	testscript.Run(t, testscript.Params{
		Files: []string{"testdata/explain.txtar"}, RequireExplicitExec: true, RequireUniqueNames: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("KUBECONFIG", c.Kubeconfig())
			e.Setenv("SERVER", server)
			e.Setenv("CA", c.CAFile())
			e.Setenv("BEARER", bearer)
			e.Setenv("RESTRICTED", restricted)
			return nil
		},
	})
}

// createCSR creates a CSR for the client certificate of a node, as a user.
func createCSR(t *testing.T, c *cluster.Cluster, user, node, name string) *certificates.CertificateSigningRequest {
	t.Helper()
	key := must.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	der := must.Value(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}},
	}, key))(t)
	config := c.AdminConfig()
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token", "system:authenticated"}}
	machine := must.Value(kubernetes.NewForConfig(config))(t)
	o := must.Value(machine.CertificatesV1().CertificateSigningRequests().Create(t.Context(), &certificates.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificates.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: certificates.KubeAPIServerClientKubeletSignerName,
			Usages:     []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
		},
	}, metav1.CreateOptions{}))(t)
	return o
}

// createDeniedCSR creates a CSR with a bootstrap token and denies it with a message like kubejoin's.
func createDeniedCSR(t *testing.T, c *cluster.Cluster, node, name, message string) {
	t.Helper()
	o := createCSR(t, c, "system:bootstrap:abcdef", node, name)
	o.Status.Conditions = []certificates.CertificateSigningRequestCondition{{
		Type: certificates.CertificateDenied, Status: corev1.ConditionTrue, Reason: "TokenSpent", Message: message,
	}}
	must.Value(c.Client().CertificatesV1().CertificateSigningRequests().UpdateApproval(t.Context(), o.Name, o, metav1.UpdateOptions{}))(t)
}

// serveCluster runs kubejoin on the cluster until the test ends and returns its URL. Without flags, only the
// bootstrap-signer runs.
func serveCluster(t *testing.T, c *cluster.Cluster, operators string, flags ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "operators.csv")
	must.OK(t, os.WriteFile(file, []byte(operators), 0o600))
	if len(flags) == 0 {
		flags = []string{"--controllers", "bootstrap-signer"}
	}
	o := optionsOf(t, append([]string{
		"--kubeconfig", c.Kubeconfig(), "--token-auth-file", file,
		"--cluster-signing-cert-file", c.CAFile(), "--cluster-signing-key-file", c.CAKeyFile(),
	}, flags...)...)
	ctx, stop := context.WithCancel(context.Background())
	var log lines
	done := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		done <- daemon.Run(ctx, o, slog.New(slog.NewTextHandler(&log, nil)), io.Discard)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return "https://" + log.await(t, "msg=serving address=", done)
}

// restrictedKubeconfig returns the kubeconfig of a user who may only list CSRs.
func restrictedKubeconfig(t *testing.T, c *cluster.Cluster) string {
	t.Helper()
	path := must.Value(c.ServiceAccountKubeconfig(t.Context(), "kubejoin-system", "poor"))(t)
	meta := metav1.ObjectMeta{Name: "poor"}
	must.Value(c.Client().RbacV1().ClusterRoles().Create(t.Context(), &rbac.ClusterRole{ObjectMeta: meta, Rules: []rbac.PolicyRule{
		{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"certificatesigningrequests"}, Verbs: []string{"list"}},
	}}, metav1.CreateOptions{}))(t)
	must.Value(c.Client().RbacV1().ClusterRoleBindings().Create(t.Context(), &rbac.ClusterRoleBinding{
		ObjectMeta: meta, RoleRef: rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: "poor"},
		Subjects: []rbac.Subject{{Kind: "ServiceAccount", Namespace: "kubejoin-system", Name: "poor"}},
	}, metav1.CreateOptions{}))(t)
	wait.Until(t, "the user may list CSRs", func() bool { // RBAC applies the role with a delay
		return must.Value(c.Client().AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorization.SubjectAccessReview{
			Spec: authorization.SubjectAccessReviewSpec{
				User:               "system:serviceaccount:kubejoin-system:poor",
				ResourceAttributes: &authorization.ResourceAttributes{Group: "certificates.k8s.io", Resource: "certificatesigningrequests", Verb: "list"},
			},
		}, metav1.CreateOptions{}))(t).Status.Allowed
	})
	return path
}
