package coexist

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNodesJoinWithBothControllersActive runs the controllers of kube-controller-manager and of kubejoin together. It
// catches two writers that overwrite each other endlessly, and requests that are approved or issued twice.
func TestNodesJoinWithBothControllersActive(t *testing.T) {
	harness.Parallel(t)
	cluster.NeedRoot(t)
	s := harness.NewSite(t, cluster.Options{})
	must.Value(s.StartKCM(t.Context()))(t)
	args, token := s.JoinArgs(t, "")
	if _, err := s.JoinCommand(t, "?ttl=10s"); err != nil { // this token expires during the test
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	for i := range 2 {
		must.Value(s.Join(ctx, fmt.Sprintf("worker-%d", i), args))(t)
	}
	s.WaitClusterInfoUnchanged(t)
	info := s.ClusterInfo(t)
	delete(info, clusterinfo.KubeconfigKey)
	if len(info) != 1 || info[clusterinfo.SignatureKey(token.ID())] == "" {
		t.Errorf("cluster-info has keys %q, want only the signature of token %s", slices.Sorted(maps.Keys(info)), token.ID())
	}
	// For each request, one of the two signers must have issued one certificate.
	list := must.Value(s.Client().CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{}))(t)
	for _, r := range list.Items {
		approved := 0
		for _, c := range r.Status.Conditions {
			if c.Type == "Approved" {
				approved++
			} else {
				t.Errorf("%s: condition %s: %s", r.Name, c.Type, c.Message)
			}
		}
		if approved != 1 || len(r.Status.Certificate) == 0 {
			t.Errorf("%s: approved %d times with a certificate of %d bytes, want one approval and a certificate", r.Name, approved, len(r.Status.Certificate))
		}
	}
}

// TestReportsCertificatesOfOtherSigner splits the work between kube-controller-manager and kubejoin. It catches a split
// with which nodes cannot join, and certificates of another signer that kubejoin does not report.
func TestReportsCertificatesOfOtherSigner(t *testing.T) {
	harness.Parallel(t)
	cluster.NeedRoot(t)
	s := harness.PrepareSite(t, cluster.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	const names = "bootstrap-signer-controller,token-cleaner-controller,certificatesigningrequest-approving-controller,certificatesigningrequest-signing-controller,certificatesigningrequest-cleaner-controller"

	// kube-controller-manager signs cluster-info and approves; kubejoin signs certificates.
	s.Start(t, "--controllers=*,-bootstrap-signer,-csr-approver")
	kcm := must.Value(s.StartKCM(ctx, "--controllers="+names+",-certificatesigningrequest-signing-controller"))(t)
	args, _ := s.JoinArgs(t, "")
	must.Value(s.Join(ctx, "worker-1", args))(t)
	kcm.Stop(0)
	s.Stop(20 * time.Second)

	// kube-controller-manager approves and signs while kubejoin is stopped. Then kubejoin reports the other signer.
	kcm = must.Value(s.StartKCM(ctx, "--controllers=certificatesigningrequest-approving-controller,certificatesigningrequest-signing-controller"))(t)
	s.Start(t, "--controllers=*,-csr-approver")
	args, _ = s.JoinArgs(t, "")
	must.OK(t, s.Signal(syscall.SIGSTOP))
	_, joined := s.Join(ctx, "worker-2", args)
	must.OK(t, s.Signal(syscall.SIGCONT))
	if joined != nil {
		t.Fatal(joined)
	}
	harness.Wait(t, "report of certificates by another signer", func() error {
		_, metrics, err := s.Get(ctx, "/metrics", s.Bearer(t))
		if err == nil && !strings.Contains(metrics, "kubejoin_csr_signed_by_other_total") {
			err = fmt.Errorf("no metric kubejoin_csr_signed_by_other_total")
		}
		if err != nil {
			return err
		}
		events := s.RunKubectl(t, "get", "events", "-n", "default", "-o", `jsonpath={range .items[*]}{.reason} {.message}{"\n"}{end}`)
		if !strings.Contains(events, "SignedByOther") || !strings.Contains(events, "kube-controller-manager") {
			return fmt.Errorf("no Event SignedByOther that names kube-controller-manager:\n%s", events)
		}
		status, checks, err := s.Get(ctx, "/readyz?verbose", "")
		if err == nil && (status != 200 || !strings.Contains(checks, "only-signer ok: kube-controller-manager")) {
			err = fmt.Errorf("/readyz returns %d and does not name kube-controller-manager:\n%s", status, checks)
		}
		return err
	})
	kcm.Stop(0)
	s.WaitClusterInfoUnchanged(t)
}

// TestJoinCommandFailsWithoutBootstrapSigner catches a join command that cannot work because nobody signs cluster-info, and
// a token that is not deleted.
func TestJoinCommandFailsWithoutBootstrapSigner(t *testing.T) {
	harness.Parallel(t)
	s := harness.NewSite(t, cluster.Options{}, "--controllers=*,-bootstrap-signer")
	began := time.Now()
	line, err := s.JoinCommand(t, "")
	if err == nil {
		t.Fatalf("got a join command of %d bytes, want an error: nobody signs cluster-info", len(line))
	}
	for _, want := range []string{"504", "token-not-signed", "bootstrap-signer-controller of kube-controller-manager", "was deleted, because no client received it"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not contain %q: %v", want, err)
		}
	}
	if took := time.Since(began); took < 30*time.Second {
		t.Errorf("the request failed after %v, want at least 30 s", took)
	}
	if left := s.RunKubectl(t, "-n", "kube-system", "get", "secrets", "--field-selector=type=bootstrap.kubernetes.io/token", "-o", "name"); left != "" {
		t.Errorf("got Secrets %s, want none", left)
	}
}

// TestOwnerDeletesToken deletes the object that owns a token. It catches an owner that the garbage collector of
// kube-controller-manager does not take for one, or whose token it deletes at once.
func TestOwnerDeletesToken(t *testing.T) {
	harness.Parallel(t)
	s := harness.NewSite(t, cluster.Options{})
	must.Value(s.StartKCM(t.Context(), "--controllers=garbage-collector-controller"))(t)
	nodes, secrets := s.Client().CoreV1().Nodes(), s.Client().CoreV1().Secrets(metav1.NamespaceSystem)
	var owned []string
	for _, name := range []string{"machine-1", "machine-2"} {
		node := must.Value(nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))(t)
		token := s.ParseToken(t, s.CLI(t, "token", "create", "--wait=0", "--owner=v1/Node/"+name))
		_, served := s.JoinArgs(t, "?owner=v1/Node/"+name+"/"+string(node.UID))
		owned = append(owned, "bootstrap-token-"+token.ID(), "bootstrap-token-"+served.ID())
	}
	if _, err := s.JoinCommand(t, "?owner=v1/Node/machine-2"); err == nil || !strings.Contains(err.Error(), "owner: UID is missing") {
		t.Errorf("over HTTPS, without a UID: got %v, want a refusal", err)
	}
	must.OK(t, nodes.Delete(t.Context(), "machine-1", metav1.DeleteOptions{}))
	harness.Wait(t, "the deletion of the token", func() error {
		for _, name := range owned[:2] {
			if _, err := secrets.Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%s of a deleted Node: got %v, want not found", name, err)
			}
		}
		return nil
	})
	for _, name := range owned[2:] {
		must.Value(secrets.Get(t.Context(), name, metav1.GetOptions{}))(t)
	}
}
