package test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestShadow has kubejoin look on: it says what it would do about requests of a limited token, and
// neither a request nor the token nor a claim is written.
func TestShadow(t *testing.T) {
	t.Parallel()
	s := newSite(t, cluster.Options{}, "--shadow", "--controllers=csr-approver,csr-signer,csr-cleaner")
	token := s.mint(t, tokens.Limits{MaxNodes: 1, NodeNames: []string{"worker-*"}})
	secret := "bootstrap-token-" + token.ID()
	before, err := s.Client().CoreV1().Secrets(metav1.NamespaceSystem).Get(t.Context(), secret, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const kubelet = certificates.KubeAPIServerClientKubeletSignerName
	says := func(name, would, reason string) {
		t.Helper()
		wait(t, "what would be done about "+name, func() error {
			for line := range strings.Lines(s.Log()) {
				if strings.Contains(line, "shadow: nothing is written") && strings.Contains(line, "csr="+name+" ") && strings.Contains(line, "would="+would+" ") && strings.Contains(line, reason) {
					return nil
				}
			}
			return fmt.Errorf("no line of %s, %s, %s", name, would, reason)
		})
	}
	for name, node := range map[string]string{"shadow-1": "worker-1", "shadow-2": "db-1"} {
		if err := request(t.Context(), asToken(t, s.Cluster, token.ID()), name, kubelet, node); err != nil {
			t.Fatal(err)
		}
	}
	says("shadow-1", "approve", "AutoApproved")
	says("shadow-2", "deny", "NodeNameNotAllowed")
	for _, name := range []string{"shadow-1", "shadow-2"} {
		o, err := s.Client().CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || len(o.Status.Conditions) > 0 || len(o.Status.Certificate) > 0 {
			t.Errorf("%s: %+v %v", name, o.Status, err)
		}
	}
	s.kubectl(t, "certificate", "approve", "shadow-1", "shadow-2")
	says("shadow-1", "sign", "")
	says("shadow-2", "fail", "NodeNameNotAllowed")
	for _, name := range []string{"shadow-1", "shadow-2"} {
		o, err := s.Client().CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || len(o.Status.Conditions) != 1 || len(o.Status.Certificate) > 0 {
			t.Errorf("%s: %+v %v", name, o.Status, err)
		}
	}
	after, err := s.Client().CoreV1().Secrets(metav1.NamespaceSystem).Get(t.Context(), secret, metav1.GetOptions{})
	if err != nil || after.ResourceVersion != before.ResourceVersion {
		t.Errorf("the token was written: %v %v", after.Annotations, err)
	}
	claims, err := s.Client().CoordinationV1().Leases(secretstore.ClaimNamespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range claims.Items {
		if c.Name != "kubejoin" { // by which replicas lead
			t.Errorf("a claim was made: %s", c.Name)
		}
	}
}
