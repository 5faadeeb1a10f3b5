package test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/test/cluster"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A token without limits takes a name without a claim, and so a token for this name gets it, too.
// An Event, a metric, the log and kubejoin explain say that two machines may hold it.
func TestReportsTwoCertificatesOfOneName(t *testing.T) {
	t.Parallel()
	s := newSite(t, cluster.Options{})
	s.leads(t)
	for i, flags := range [][]string{nil, {"--max-nodes=1", "--node-name=worker-7"}} {
		token := s.created(t, s.cli(t, append([]string{"token", "create"}, flags...)...))
		name := fmt.Sprint("shared-", i)
		if err := request(t.Context(), asToken(t, s.Cluster, token.ID()), name, certificates.KubeAPIServerClientKubeletSignerName, "worker-7"); err != nil {
			t.Fatal(err)
		}
		s.issued(t, name)
	}
	wait(t, "Event SharedNodeName", func() error {
		events, err := s.Client().CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=SharedNodeName"})
		if err == nil && (len(events.Items) != 1 || events.Items[0].InvolvedObject.Name != "shared-1" || !strings.Contains(events.Items[0].Message, `"shared-0"`)) {
			err = fmt.Errorf("%d Events: %+v", len(events.Items), events.Items)
		}
		return err
	})
	s.explains(t, "worker-7", 3, "worker-7: its certificate was issued", "2 first certificates with different keys are valid for this name")
	if m := s.metrics(t); !strings.Contains(m, `kubejoin_csr_shared_node_names_total{signer="kubernetes.io/kube-apiserver-client-kubelet"} 1`) {
		t.Error("the metric does not count it")
	}
	if !strings.Contains(s.Log(), "two certificates of one node name are valid") {
		t.Error("the log does not say it")
	}
}
