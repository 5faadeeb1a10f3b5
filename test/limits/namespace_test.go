package limits

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestReportsMissingNamespace deletes the namespace of claims. It catches an Event, /readyz or log that does not name
// the remedy, and joins that do not continue after it.
func TestReportsMissingNamespace(t *testing.T) {
	harness.Parallel(t)
	s := harness.PrepareSite(t, cluster.Options{}, "--leader-elect=false")
	admin := "--kubeconfig=" + s.Kubeconfig() // works without the namespace, unlike the service account
	s.Start(t, admin)
	secure := s.HTTP
	s.Stop(20 * time.Second)
	removeNamespace(t, s, "kubejoin-system")

	const next = "namespace does not exist: kubejoin-system; create it with: kubectl create namespace kubejoin-system"
	s.Program = harness.Start(t, s.WorkDir, s.Curlrc(), append(s.Flags, admin)...)
	s.HTTP, s.Program.Secrets = secure, s.Secrets
	harness.Wait(t, "check claims", func() error {
		status, body, err := s.Get(t.Context(), "/readyz?verbose", "")
		if err != nil || status != 503 || !strings.Contains(body, "[-]claims") || !strings.Contains(body, next) {
			return fmt.Errorf("/readyz returns %d %s, %v", status, body, err)
		}
		return nil
	})
	printed, _, code := s.RunKubejoin(t, "token", "create", "--max-nodes=1")
	if code != 0 {
		t.Fatalf("got exit code %d, want 0", code)
	}
	token := s.ParseToken(t, printed)
	must.OK(t, harness.CreateRequest(t.Context(), harness.AsToken(t, s.Cluster, token.ID()), "limited", certificates.KubeAPIServerClientKubeletSignerName, "worker-7"))
	harness.Wait(t, "Event", func() error {
		events, err := s.Client().CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=limited"})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Reason == "FactsUnavailable" && strings.Contains(e.Message, "worker-7") && strings.Contains(e.Message, next) && !strings.Contains(e.Message, "node :") {
				return nil
			}
		}
		return fmt.Errorf("%d Events: %+v", len(events.Items), events.Items)
	})

	must.Value(s.Client().CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kubejoin-system"}}, metav1.CreateOptions{}))(t)
	s.WaitReady(t, s.CAFile())
	if c := decision(t, s, "limited"); c.Type != certificates.CertificateApproved {
		t.Errorf("with the namespace: got %s: %s, want Approved", c.Type, c.Message)
	}
	if n := strings.Count(s.Log(), "cannot create claims of node names"); n != 1 {
		t.Errorf("got %d log lines about claims, want 1", n)
	}
}

// removeNamespace deletes a namespace. No namespace controller runs, so it also removes the finalizers.
func removeNamespace(t *testing.T, s *harness.Site, name string) {
	t.Helper()
	s.RunKubectl(t, "delete", "namespace", name, "--wait=false")
	namespaces := s.Client().CoreV1().Namespaces()
	namespace := must.Value(namespaces.Get(t.Context(), name, metav1.GetOptions{}))(t)
	namespace.Spec.Finalizers = nil
	must.Value(namespaces.Finalize(t.Context(), namespace, metav1.UpdateOptions{}))(t)
}
