package coexist

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestShadowLogsDecisionsAndWritesNothing catches a kubejoin with --shadow that writes a request, a token or a claim,
// or that does not log its decisions.
func TestShadowLogsDecisionsAndWritesNothing(t *testing.T) {
	harness.Parallel(t)
	s := harness.NewSite(t, cluster.Options{}, "--shadow", "--controllers=csr-approver,csr-signer,csr-cleaner")
	token := s.CreateToken(t, tokens.Limits{MaxNodes: 1, NodeNames: []string{"worker-*"}})
	secret := "bootstrap-token-" + token.ID()
	before := must.Value(s.Client().CoreV1().Secrets(metav1.NamespaceSystem).Get(t.Context(), secret, metav1.GetOptions{}))(t)
	const kubelet = certificates.KubeAPIServerClientKubeletSignerName
	waitLogged := func(name, would, reason string) {
		t.Helper()
		harness.Wait(t, "logged decision about "+name, func() error {
			for line := range strings.Lines(s.Log()) {
				if strings.Contains(line, "shadow mode: decision not written") && strings.Contains(line, "csr="+name+" ") && strings.Contains(line, "would="+would+" ") && strings.Contains(line, reason) {
					return nil
				}
			}
			return fmt.Errorf("the log has no line with %s, %s, %s", name, would, reason)
		})
	}
	for name, node := range map[string]string{"shadow-1": "worker-1", "shadow-2": "db-1"} {
		must.OK(t, harness.CreateRequest(t.Context(), harness.AsToken(t, s.Cluster, token.ID()), name, kubelet, node))
	}
	waitLogged("shadow-1", "approve", "AutoApproved")
	waitLogged("shadow-2", "deny", "NodeNameNotAllowed")
	for _, name := range []string{"shadow-1", "shadow-2"} {
		o, err := s.Client().CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || len(o.Status.Conditions) > 0 || len(o.Status.Certificate) > 0 {
			t.Errorf("%s: got status %+v, %v, want no condition and no certificate", name, o.Status, err)
		}
	}
	s.RunKubectl(t, "certificate", "approve", "shadow-1", "shadow-2")
	waitLogged("shadow-1", "sign", "")
	waitLogged("shadow-2", "fail", "NodeNameNotAllowed")
	for _, name := range []string{"shadow-1", "shadow-2"} {
		o, err := s.Client().CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || len(o.Status.Conditions) != 1 || len(o.Status.Certificate) > 0 {
			t.Errorf("%s: got status %+v, %v, want only the approval", name, o.Status, err)
		}
	}
	after, err := s.Client().CoreV1().Secrets(metav1.NamespaceSystem).Get(t.Context(), secret, metav1.GetOptions{})
	if err != nil || after.ResourceVersion != before.ResourceVersion {
		t.Errorf("the token was changed: %v %v", after.Annotations, err)
	}
	claims := must.Value(s.Client().CoordinationV1().Leases(secretstore.ClaimNamespace).List(t.Context(), metav1.ListOptions{}))(t)
	for _, c := range claims.Items {
		if c.Name != "kubejoin" { // ignore the Lease for leader election
			t.Errorf("got claim %s, want none", c.Name)
		}
	}
}
