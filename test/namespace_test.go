package test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/test/cluster"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Without the namespace of claims nobody joins with a limited token. The Event on the request,
// /readyz, the log and a new token say what to do, and joining goes on once it is done.
func TestReportsMissingNamespace(t *testing.T) {
	t.Parallel()
	s := prepare(t, cluster.Options{}, "--leader-elect=false")
	admin := "--kubeconfig=" + s.Kubeconfig() // outlasts the namespace, unlike the service account
	s.start(t, admin)
	secure := s.http
	s.Stop(20 * time.Second)
	s.removeNamespace(t, "kubejoin-system")

	const next = "namespace does not exist: kubejoin-system; create it with: kubectl create namespace kubejoin-system"
	s.program = start(t, s.dir, s.curlrc(), append(s.flags, admin)...)
	s.http, s.secrets = secure, s.known
	wait(t, "check claims", func() error {
		status, body, err := s.get(t.Context(), "/readyz?verbose", "")
		if err != nil || status != 503 || !strings.Contains(body, "[-]claims") || !strings.Contains(body, next) {
			return fmt.Errorf("/readyz answers %d %s, %v", status, body, err)
		}
		return nil
	})
	printed, _, code := s.command(t, "token", "create", "--max-nodes=1")
	if code != 0 {
		t.Fatalf("exit code %d", code)
	}
	token := s.created(t, printed)
	if err := request(t.Context(), asToken(t, s.Cluster, token.ID()), "limited", certificates.KubeAPIServerClientKubeletSignerName, "worker-7"); err != nil {
		t.Fatal(err)
	}
	wait(t, "Event", func() error {
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

	if _, err := s.Client().CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kubejoin-system"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.ready(t, s.CAFile())
	if c := s.decided(t, "limited"); c.Type != certificates.CertificateApproved {
		t.Errorf("with the namespace it is %s: %s", c.Type, c.Message)
	}
	if n := strings.Count(s.Log(), "claims of node names cannot be created"); n != 1 {
		t.Errorf("the log says it %d times, want once", n)
	}
}

// removeNamespace deletes a namespace without the controller that usually ends it.
func (s *site) removeNamespace(t *testing.T, name string) {
	t.Helper()
	s.kubectl(t, "delete", "namespace", name, "--wait=false")
	namespaces := s.Client().CoreV1().Namespaces()
	namespace, err := namespaces.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	namespace.Spec.Finalizers = nil
	if _, err := namespaces.Finalize(t.Context(), namespace, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}
