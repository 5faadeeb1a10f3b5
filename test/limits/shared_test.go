package limits

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestReportsTwoCertificatesOfOneName issues one node name with an unlimited token, which makes no claim, and then with
// a limited one. It catches a missing report by an Event, a metric, the log or kubejoin explain.
func TestReportsTwoCertificatesOfOneName(t *testing.T) {
	harness.Parallel(t)
	s := harness.NewSite(t, cluster.Options{})
	s.WaitLeader(t)
	for i, flags := range [][]string{nil, {"--max-nodes=1", "--node-name=worker-7"}} {
		token := s.ParseToken(t, s.CLI(t, append([]string{"token", "create"}, flags...)...))
		name := fmt.Sprint("shared-", i)
		must.OK(t, harness.CreateRequest(t.Context(), harness.AsToken(t, s.Cluster, token.ID()), name, certificates.KubeAPIServerClientKubeletSignerName, "worker-7"))
		s.WaitIssued(t, name)
	}
	harness.Wait(t, "Event SharedNodeName", func() error {
		events, err := s.Client().CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=SharedNodeName"})
		if err == nil && (len(events.Items) != 1 || events.Items[0].InvolvedObject.Name != "shared-1" || !strings.Contains(events.Items[0].Message, `"shared-0"`)) {
			err = fmt.Errorf("%d Events: %+v", len(events.Items), events.Items)
		}
		return err
	})
	s.WaitExplain(t, "worker-7", 3, "worker-7: its certificate was issued", "2 initial certificates with different keys are valid for this name")
	if m := s.Metrics(t); !strings.Contains(m, `kubejoin_csr_shared_node_names_total{signer="kubernetes.io/kube-apiserver-client-kubelet"} 1`) {
		t.Error("want kubejoin_csr_shared_node_names_total 1, got another value or none")
	}
	if !strings.Contains(s.Log(), "node name has two valid certificates with different keys") {
		t.Error("the log does not report two certificates of one node name")
	}
}
