package test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// With deploy/approval-policy.yaml neither kube-controller-manager's approver nor a person
// approves what is asked for with a bootstrap token. kubejoin does, and nothing else changes.
func TestApprovalPolicy(t *testing.T) {
	t.Parallel()
	s := prepare(t, cluster.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	kcm, err := s.StartKCM(ctx, "--controllers=certificatesigningrequest-approving-controller")
	if err != nil {
		t.Fatal(err)
	}
	const kubelet, serving, client = certificates.KubeAPIServerClientKubeletSignerName, certificates.KubeletServingSignerName, certificates.KubeAPIServerClientSignerName
	joining := machine(t, s.Cluster)
	ask := func(by kubernetes.Interface, name, signerName, node string) {
		t.Helper()
		if err := request(ctx, by, name, signerName, node); err != nil {
			t.Fatal(err)
		}
	}
	policy, err := filepath.Abs("../deploy/approval-policy.yaml")
	if err != nil {
		t.Fatal(err)
	}

	ask(joining, "before", kubelet, "worker-0")
	s.approved(t, "before")
	s.kubectl(t, "apply", "-f", policy)
	// Nobody but a person would approve this one.
	ask(joining, "probe", serving, "worker-0")
	wait(t, "the policy", func() error { return s.refusedApproval(ctx, "probe", metav1.DryRunAll) })

	static := s.as(t, "kubelet-bootstrap", "system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token")
	ask(joining, "token", kubelet, "worker-1")
	ask(static, "static", kubelet, "worker-2")
	ask(joining, "token-client", client, "worker-1")
	for _, name := range []string{"token", "static"} {
		if err := kcm.WaitFor(ctx, func(context.Context) error {
			for line := range strings.Lines(kcm.Log()) {
				if strings.Contains(line, "Sync "+name+" failed") && strings.Contains(line, "kubejoin-approval") {
					return nil
				}
			}
			return fmt.Errorf("it has not been refused the approval of %s", name)
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"token", "static", "token-client", "probe"} {
		if _, err := s.Kubectl(ctx, "certificate", "approve", name); err == nil || !strings.Contains(err.Error(), "approved by kubejoin alone") {
			t.Errorf("kubectl certificate approve %s: %v, want the policy's refusal", name, err)
		}
		if err := s.refusedApproval(ctx, name); err != nil {
			t.Error(err)
		}
	}
	// The policy is about one way to approve, which is the only one.
	object, err := s.Client().CertificatesV1().CertificateSigningRequests().Get(ctx, "token", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	object.Status.Conditions = append(object.Status.Conditions, byHand)
	if _, err := s.Client().CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, object, metav1.UpdateOptions{}); err == nil {
		t.Error("the status subresource takes an approval")
	}

	// What others ask for, and what bootstrap identities ask of others, is as it was.
	ask(s.as(t, "system:node:worker-0", "system:nodes"), "renewal", kubelet, "worker-0")
	s.approved(t, "renewal")
	ask(s.Client(), "person", client, "worker-0")
	ask(joining, "elsewhere", "example.com/other", "worker-0")
	s.kubectl(t, "certificate", "approve", "person", "elsewhere")
	s.kubectl(t, "certificate", "deny", "token-client")

	s.start(t)
	for _, name := range []string{"token", "static"} {
		s.issued(t, name)
	}
}

var byHand = certificates.CertificateSigningRequestCondition{
	Type: certificates.CertificateApproved, Status: corev1.ConditionTrue, Reason: "ByHand", Message: "by hand",
}

// refusedApproval tries to approve a request as cluster-admin, and is nil if the policy refuses.
func (s *site) refusedApproval(ctx context.Context, name string, dryRun ...string) error {
	requests := s.Client().CertificatesV1().CertificateSigningRequests()
	object, err := requests.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	object.Status.Conditions = append(object.Status.Conditions, byHand)
	_, err = requests.UpdateApproval(ctx, name, object, metav1.UpdateOptions{DryRun: dryRun})
	switch {
	case err == nil:
		return fmt.Errorf("%s: %w", name, errAllowed)
	case !strings.Contains(err.Error(), "approved by kubejoin alone"):
		return err
	}
	return nil
}

// as is a client with that identity.
func (s *site) as(t *testing.T, user string, groups ...string) kubernetes.Interface {
	t.Helper()
	config := s.AdminConfig()
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: append(groups, "system:authenticated")}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// approved waits for the approval of a request.
func (s *site) approved(t *testing.T, name string) {
	t.Helper()
	wait(t, "approval of "+name, func() error {
		r, err := s.Client().CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && !slices.ContainsFunc(r.Status.Conditions, func(c certificates.CertificateSigningRequestCondition) bool {
			return c.Type == certificates.CertificateApproved
		}) {
			err = fmt.Errorf("not approved; conditions %v", r.Status.Conditions)
		}
		return err
	})
}

// Limits hold where kube-controller-manager signs, as long as nobody but kubejoin approves.
func TestPolicyHoldsLimits(t *testing.T) {
	t.Parallel()
	s := newSite(t, cluster.Options{}, "--controllers=*,-csr-signer")
	policy, err := filepath.Abs("../deploy/approval-policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s.kubectl(t, "apply", "-f", policy)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	token := s.mint(t, tokens.Limits{MaxNodes: 1})
	joining := s.as(t, "system:bootstrap:"+token.ID(), "system:bootstrappers", tokens.DefaultGroup)
	if err := request(ctx, joining, "probe", certificates.KubeletServingSignerName, "worker-1"); err != nil {
		t.Fatal(err)
	}
	wait(t, "the policy", func() error { return s.refusedApproval(ctx, "probe", metav1.DryRunAll) })
	if _, err := s.StartKCM(ctx, "--controllers=certificatesigningrequest-approving-controller,certificatesigningrequest-signing-controller"); err != nil {
		t.Fatal(err)
	}
	if err := request(ctx, joining, "first", certificates.KubeAPIServerClientKubeletSignerName, "worker-1"); err != nil {
		t.Fatal(err)
	}
	s.issued(t, "first")
	const others = 10
	for i := range others {
		name := fmt.Sprintf("other-%d", i)
		if err := request(ctx, joining, name, certificates.KubeAPIServerClientKubeletSignerName, name); err != nil {
			t.Fatal(err)
		}
	}
	for i := range others {
		name := fmt.Sprintf("other-%d", i)
		wait(t, "refusal of "+name, func() error {
			r, err := s.Client().CertificatesV1().CertificateSigningRequests().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if len(r.Status.Certificate) > 0 {
				t.Fatalf("%s has a certificate", name)
			}
			if c := r.Status.Conditions; len(c) != 1 || c[0].Type != certificates.CertificateDenied || c[0].Reason != "TokenSpent" {
				return fmt.Errorf("conditions %v", c)
			}
			return nil
		})
	}
}
