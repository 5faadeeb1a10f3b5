package access

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// TestApprovalPolicyLetsOnlyKubejoinApprove applies deploy/approval-policy.yaml. It catches another approver of a bootstrap
// token's request, and a policy that blocks requests of other users.
func TestApprovalPolicyLetsOnlyKubejoinApprove(t *testing.T) {
	harness.Parallel(t)
	s := harness.PrepareSite(t, cluster.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	kcm := must.Value(s.StartKCM(ctx, "--controllers=certificatesigningrequest-approving-controller"))(t)
	const kubelet, serving, client = certificates.KubeAPIServerClientKubeletSignerName, certificates.KubeletServingSignerName, certificates.KubeAPIServerClientSignerName
	joining := harness.AsMachine(t, s.Cluster)
	ask := func(by kubernetes.Interface, name, signerName, node string) {
		t.Helper()
		must.OK(t, harness.CreateRequest(ctx, by, name, signerName, node))
	}
	policy := harness.RepositoryFile(t, "deploy/approval-policy.yaml")

	ask(joining, "before", kubelet, "worker-0")
	s.WaitApproved(t, "before")
	s.RunKubectl(t, "apply", "-f", policy)
	// No controller approves this request.
	ask(joining, "probe", serving, "worker-0")
	harness.Wait(t, "the policy", func() error { return refusedApproval(ctx, s, "probe", metav1.DryRunAll) })

	static := s.As(t, "kubelet-bootstrap", "system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token")
	ask(joining, "token", kubelet, "worker-1")
	ask(static, "static", kubelet, "worker-2")
	ask(joining, "token-client", client, "worker-1")
	for _, name := range []string{"token", "static"} {
		must.OK(t, kcm.WaitFor(ctx, func(context.Context) error {
			for line := range strings.Lines(kcm.Log()) {
				if strings.Contains(line, "Sync "+name+" failed") && strings.Contains(line, "kubejoin-approval") {
					return nil
				}
			}
			return fmt.Errorf("the log has no refused approval of %s", name)
		}))
	}
	for _, name := range []string{"token", "static", "token-client", "probe"} {
		if _, err := s.Kubectl(ctx, "certificate", "approve", name); err == nil || !strings.Contains(err.Error(), "only kubejoin may approve") {
			t.Errorf("kubectl certificate approve %s: %v, want a refusal by the policy", name, err)
		}
		if err := refusedApproval(ctx, s, name); err != nil {
			t.Error(err)
		}
	}
	// The policy covers the approval subresource. The status subresource must not accept approvals.
	object := must.Value(s.Client().CertificatesV1().CertificateSigningRequests().Get(ctx, "token", metav1.GetOptions{}))(t)
	object.Status.Conditions = append(object.Status.Conditions, byHand)
	if _, err := s.Client().CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, object, metav1.UpdateOptions{}); err == nil {
		t.Error("the status subresource accepted an approval, want an error")
	}

	// The policy ignores requests of other users, and requests of bootstrap identities for other signers.
	ask(s.As(t, "system:node:worker-0", "system:nodes"), "renewal", kubelet, "worker-0")
	s.WaitApproved(t, "renewal")
	ask(s.Client(), "person", client, "worker-0")
	ask(joining, "elsewhere", "example.com/other", "worker-0")
	s.RunKubectl(t, "certificate", "approve", "person", "elsewhere")
	s.RunKubectl(t, "certificate", "deny", "token-client")

	s.Start(t)
	for _, name := range []string{"token", "static"} {
		s.WaitIssued(t, name)
	}
}

var byHand = certificates.CertificateSigningRequestCondition{
	Type: certificates.CertificateApproved, Status: corev1.ConditionTrue, Reason: "ByHand", Message: "by hand",
}

// refusedApproval tries to approve a request as cluster-admin. It returns nil if the policy refuses.
func refusedApproval(ctx context.Context, s *harness.Site, name string, dryRun ...string) error {
	requests := s.Client().CertificatesV1().CertificateSigningRequests()
	object, err := requests.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	object.Status.Conditions = append(object.Status.Conditions, byHand)
	_, err = requests.UpdateApproval(ctx, name, object, metav1.UpdateOptions{DryRun: dryRun})
	switch {
	case err == nil:
		return fmt.Errorf("%s: %w", name, errors.New("still allowed"))
	case !strings.Contains(err.Error(), "only kubejoin may approve"):
		return err
	}
	return nil
}

// TestApprovalPolicyKeepsTokenLimits catches a node beyond the limit of a token if kube-controller-manager signs and
// only kubejoin approves.
func TestApprovalPolicyKeepsTokenLimits(t *testing.T) {
	harness.Parallel(t)
	s := harness.NewSite(t, cluster.Options{}, "--controllers=*,-csr-signer")
	policy := harness.RepositoryFile(t, "deploy/approval-policy.yaml")
	s.RunKubectl(t, "apply", "-f", policy)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	token := s.CreateToken(t, tokens.Limits{MaxNodes: 1})
	joining := s.As(t, "system:bootstrap:"+token.ID(), "system:bootstrappers", tokens.DefaultGroup)
	must.OK(t, harness.CreateRequest(ctx, joining, "probe", certificates.KubeletServingSignerName, "worker-1"))
	harness.Wait(t, "the policy", func() error { return refusedApproval(ctx, s, "probe", metav1.DryRunAll) })
	must.Value(s.StartKCM(ctx, "--controllers=certificatesigningrequest-approving-controller,certificatesigningrequest-signing-controller"))(t)
	must.OK(t, harness.CreateRequest(ctx, joining, "first", certificates.KubeAPIServerClientKubeletSignerName, "worker-1"))
	s.WaitIssued(t, "first")
	const others = 10
	for i := range others {
		name := fmt.Sprintf("other-%d", i)
		must.OK(t, harness.CreateRequest(ctx, joining, name, certificates.KubeAPIServerClientKubeletSignerName, name))
	}
	for i := range others {
		name := fmt.Sprintf("other-%d", i)
		harness.Wait(t, "refusal of "+name, func() error {
			r, err := s.Client().CertificatesV1().CertificateSigningRequests().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if len(r.Status.Certificate) > 0 {
				t.Fatalf("%s has a certificate, want none", name)
			}
			if c := r.Status.Conditions; len(c) != 1 || c[0].Type != certificates.CertificateDenied || c[0].Reason != "TokenSpent" {
				return fmt.Errorf("got conditions %v, want Denied with TokenSpent", c)
			}
			return nil
		})
	}
}
