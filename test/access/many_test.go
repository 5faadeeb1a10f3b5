package access

import (
	"crypto/tls"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestRevocationPolicyWithManyEntries fills the ConfigMaps of revocations. It catches an entry that the
// ValidatingAdmissionPolicy does not find among 10,000 others, and a valid certificate that it then denies.
func TestRevocationPolicyWithManyEntries(t *testing.T) {
	harness.Parallel(t)
	s := harness.NewSite(t, cluster.Options{})
	s.RunKubectl(t, "apply", "-f", harness.RepositoryFile(t, "deploy/revocation.yaml"))
	ca, err := signer.LoadCA(s.CAFile(), s.CAKeyFile())
	if err != nil {
		t.Fatal(err)
	}
	certificate := func(node string) (*tls.Certificate, revocation.Fingerprint) {
		pair := clientCertificate(t, ca, "system:node:"+node, "system:nodes")
		return pair, revocation.FingerprintOf(pair.Leaf)
	}
	writes := func(node string, pair *tls.Certificate) func() error {
		client := withPair(t, s, pair)
		return func() error {
			_, err := client.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, []byte(`{"metadata":{"annotations":{"example.com/seen":"yes"}}}`), metav1.PatchOptions{})
			return err
		}
	}
	for _, node := range []string{"worker-1", "worker-2"} {
		createNode(t, s, node)
	}
	stolen, _ := certificate("worker-1")
	back, allowed := certificate("worker-1")
	single, revoked := certificate("worker-2")
	other, _ := certificate("worker-2")
	now := time.Now()
	entries := append(cluster.Revocations(10_000, now),
		revocation.Entry{Node: "worker-1", Since: now, Allowed: map[revocation.Fingerprint]time.Time{allowed: now.Add(time.Hour)}},
		revocation.Entry{Fingerprint: revoked, Since: now})
	if err := s.WriteRevocations(t.Context(), entries); err != nil {
		t.Fatal(err)
	}
	waitForbidden(t, "a certificate of the revoked node", "kubejoin has revoked this certificate of node worker-1", writes("worker-1", stolen))
	waitForbidden(t, "the revoked certificate", "kubejoin has revoked this certificate", writes("worker-2", single))
	for what, write := range map[string]func() error{
		"the certificate of the revoked node that is allowed": writes("worker-1", back),
		"another certificate of the other node":               writes("worker-2", other),
	} {
		if err := write(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n := strings.Count(s.CLI(t, "revoke", "list"), "\n"); n != len(entries)+1 { // with the heading
		t.Errorf("revoke list: got %d lines, want %d", n, len(entries)+1)
	}
}
