package join

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

const (
	tenant       = "node-restriction.kubernetes.io/tenant"
	joiningTaint = tokens.JoiningTaint + ":NoSchedule"
)

// bootstrapWith writes a bootstrap kubeconfig with a token that has limits.
func bootstrapWith(t *testing.T, s *harness.Site, limits tokens.Limits) (file string) {
	t.Helper()
	config := s.AdminConfig()
	file = filepath.Join(t.TempDir(), "bootstrap.conf")
	must.OK(t, clientcmd.WriteToFile(api.Config{
		CurrentContext: "join",
		Contexts:       map[string]*api.Context{"join": {Cluster: "c", AuthInfo: "token"}},
		Clusters:       map[string]*api.Cluster{"c": {Server: config.Host, CertificateAuthorityData: harness.ReadFile(t, s.CAFile())}},
		AuthInfos:      map[string]*api.AuthInfo{"token": {Token: s.CreateToken(t, limits).Reveal()}},
	}, file))
	return file
}

func getNode(t *testing.T, s *harness.Site, name string) (*corev1.Node, error) {
	t.Helper()
	return s.Client().CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
}

func hasTaint(n *corev1.Node, text string) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(has corev1.Taint) bool {
		return tokens.Taint{Key: has.Key, Value: has.Value, Effect: string(has.Effect)}.String() == text
	})
}

// waitProperties waits until a Node has labels and taints of its token, and no taint of joining.
func waitProperties(t *testing.T, s *harness.Site, name string, want tokens.NodeProperties) (found *corev1.Node) {
	t.Helper()
	harness.Wait(t, "properties of "+name, func() error {
		n, err := getNode(t, s, name)
		if err != nil {
			return err
		}
		if hasTaint(n, joiningTaint) {
			return fmt.Errorf("taints %v", n.Spec.Taints)
		}
		for key, value := range want.LabelMap() {
			if got, has := n.Labels[key]; !has || got != value {
				return fmt.Errorf("labels %v", n.Labels)
			}
		}
		for _, taint := range want.TaintList() {
			if !hasTaint(n, taint.String()) {
				return fmt.Errorf("taints %v", n.Spec.Taints)
			}
		}
		found = n
		return nil
	})
	return found
}

// keepNotReady keeps Nodes not Ready: a kubelet without a CSINode says that it is not Ready.
const keepNotReady = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-csinodes}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [storage.k8s.io], apiVersions: ["*"], operations: [CREATE], resources: [csinodes]}]}
  validations: [{expression: "false"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: no-csinodes}
spec: {policyName: no-csinodes, validationActions: [Deny]}
`

// notReady returns an error if a Node lacks a taint of kube-controller-manager.
func notReady(n *corev1.Node, effects ...string) error {
	for _, effect := range effects {
		if !hasTaint(n, "node.kubernetes.io/not-ready:"+effect) {
			return fmt.Errorf("got taints %v, want not-ready:%s among them", n.Spec.Taints, effect)
		}
	}
	return nil
}

func waitRecorded(t *testing.T, s *harness.Site, name string, want types.UID) {
	t.Helper()
	harness.Wait(t, "UID of "+name+" in its claim", func() error {
		if got := registration(t, s, name); got != string(want) {
			return fmt.Errorf("got %q, want %q and nothing that it waits for", got, want)
		}
		return nil
	})
}

// registration returns the UID of the Node in its claim, followed by " true" if the Node waits for its properties.
func registration(t *testing.T, s *harness.Site, name string) string {
	t.Helper()
	return s.RunKubectl(t, "-n", "kubejoin-system", "get", "lease", name, "-o", `jsonpath={.metadata.annotations.kubejoin\.io/node-uid} {.metadata.annotations.node\.kubejoin\.io/waits}`)
}

// TestNodeGetsWhatItsTokenAsksFor joins a kubelet with the taint of joining. The Node is never Ready, so kube-controller-manager
// writes its own taints all the time. It catches a taint that goes before the serving certificate, and properties that a dead kubejoin leaves behind. It also
// catches properties that are set again later, and a Node that registers again without them.
func TestNodeGetsWhatItsTokenAsksFor(t *testing.T) {
	harness.Parallel(t)
	cluster.NeedRoot(t)
	audit := harness.NewAuditLog(t, "- level: Metadata\n  users: [\"system:serviceaccount:kubejoin-system:kubejoin\"]\n  verbs: [get, patch]\n  resources: [{group: \"\", resources: [nodes]}]\n- level: None\n")
	s := harness.NewSite(t, cluster.Options{APIServerFlags: audit.Flags()})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	must.Value(s.StartKCM(ctx, "--controllers=node-lifecycle-controller", "--node-monitor-grace-period=10m"))(t)
	// Without a Ready Node, kube-controller-manager writes no taint with NoExecute.
	ready := must.Value(s.Client().CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "ready"}}, metav1.CreateOptions{}))(t)
	ready.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}
	must.Value(s.Client().CoreV1().Nodes().UpdateStatus(ctx, ready, metav1.UpdateOptions{}))(t)
	noReady := filepath.Join(t.TempDir(), "not-ready.yaml")
	must.OK(t, os.WriteFile(noReady, []byte(keepNotReady), 0o600))
	for _, file := range []string{noReady, harness.RepositoryFile(t, "deploy/node-properties.yaml"), harness.RepositoryFile(t, "deploy/joining-policy.yaml")} {
		s.RunKubectl(t, "apply", "-f", file)
	}
	want := tokens.NodeProperties{
		Labels: tokens.JoinProperties([]string{"node-role.kubernetes.io/worker=", tenant + "=a", "tenant=a"}), Taints: "dedicated=a:NoSchedule",
		ReadyAfter: tokens.ReadyAfterServingCertificate,
	}
	const name = "worker-1"
	kubelet := s.As(t, tokens.NodeUserPrefix+name, tokens.NodesGroup)

	// A machine that leaves out the taint cannot register, once the policy is in force.
	harness.Wait(t, "the policy in force", func() error {
		_, err := s.As(t, tokens.NodeUserPrefix+"other", tokens.NodesGroup).CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "kubejoin-joining") {
			return fmt.Errorf("a Node without the taint: %w", err)
		}
		return nil
	})

	machine := must.Value(s.StartKubelet(name, bootstrapWith(t, s, tokens.Limits{MaxNodes: 1, Node: want}), nil,
		"--rotate-server-certificates", "--register-with-taints="+joiningTaint))(t)
	var request string
	harness.Wait(t, "request for a serving certificate", func() error {
		all := servingRequests(t, s)
		if len(all) == 0 {
			return errors.New("none yet")
		}
		request = all[0].Name
		return nil
	})
	harness.Wait(t, "taints of kube-controller-manager", func() error {
		n, err := getNode(t, s, name)
		if err != nil {
			return err
		}
		return notReady(n, "NoSchedule", "NoExecute")
	})
	time.Sleep(3 * time.Second) // several steps of the controller
	n := must.Value(getNode(t, s, name))(t)
	if got := registration(t, s, name); !hasTaint(n, joiningTaint) || n.Labels["tenant"] != "" || hasTaint(n, "dedicated=a:NoSchedule") || got != string(n.UID)+" true" {
		t.Errorf("without a serving certificate: got labels %v, taints %v, %q in the claim, want none of the token, and a claim that waits", n.Labels, n.Spec.Taints, got)
	}
	if text := tool(t, "explain", name, "--kubeconfig="+s.Kubeconfig()); !strings.Contains(text, "kubejoin.io/joining") || !strings.Contains(text, "serving certificate") {
		t.Errorf("kubejoin explain does not say why the Node waits: %s", text)
	}

	// kubejoin stops. Meanwhile a person approves the request. Another kubejoin signs it, and does the rest.
	s.Kill(t)
	s.RunKubectl(t, "certificate", "approve", request)
	s.Start(t)
	n = waitProperties(t, s, name, want)
	if r := must.Value(s.Client().CertificatesV1().CertificateSigningRequests().Get(ctx, request, metav1.GetOptions{}))(t); len(r.Status.Certificate) == 0 {
		t.Error("the taint went before the serving certificate was issued")
	}
	must.OK(t, notReady(n, "NoSchedule", "NoExecute"))
	waitRecorded(t, s, name, n.UID)
	reads, patches := 0, 0
	for call, err := range audit.Calls() {
		if err != nil {
			t.Fatal(err)
		}
		if call.ObjectRef.Name != name {
			continue
		}
		switch call.Verb {
		case "patch":
			patches++
		case "get":
			reads++
		}
	}
	// A patch fails if kube-controller-manager changes the taints at that moment.
	if patches < 1 || patches > 3 {
		t.Errorf("got %d patches and %d reads of the Node, want 1 to 3 patches", patches, reads)
	}
	t.Logf("%d patches and %d reads of the Node", patches, reads)

	// The kubelet cannot set the label of NodeRestriction or change taints. Any other label it can overwrite, and kubejoin does
	// not set it again.
	patch := func(text string) error {
		_, err := kubelet.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(text), metav1.PatchOptions{})
		return err
	}
	for _, text := range []string{`{"metadata":{"labels":{"` + tenant + `":"b"}}}`, `{"metadata":{"labels":{"node-role.kubernetes.io/worker":null}}}`, `{"spec":{"taints":[]}}`} {
		if err := patch(text); !apierrors.IsForbidden(err) {
			t.Errorf("the kubelet patches %s: got %v, want a refusal", text, err)
		}
	}
	must.OK(t, patch(`{"metadata":{"labels":{"tenant":"b"}}}`))
	s.Kill(t)
	s.Start(t)
	s.WaitLeader(t)
	time.Sleep(3 * time.Second)
	if n := must.Value(getNode(t, s, name))(t); n.Labels["tenant"] != "b" || n.Labels[tenant] != "a" {
		t.Errorf("later: got labels %v, want tenant b, which the kubelet has set, and %s a", n.Labels, tenant)
	}

	// The Node is deleted, and the kubelet registers it again, with the taint. It keeps its serving certificate.
	must.OK(t, machine.StopKubelet())
	s.RunKubectl(t, "delete", "node", name)
	harness.Wait(t, "release of the claim", func() error {
		if id := s.RunKubectl(t, "-n", "kubejoin-system", "get", "lease", name, "-o", `jsonpath={.spec.holderIdentity}`); id != "" {
			return fmt.Errorf("held by %s", id)
		}
		return nil
	})
	must.OK(t, machine.StartKubelet())
	harness.Wait(t, "another Node", func() error { _, err := getNode(t, s, name); return err })
	again := waitProperties(t, s, name, want)
	if again.UID == n.UID {
		t.Error("the Node is the same, want another one")
	}
	must.OK(t, notReady(again, "NoSchedule"))
	if all := servingRequests(t, s); len(all) != 1 {
		t.Errorf("got %d requests for serving certificates, want 1", len(all))
	}

	// A Node without a claim, whose kubelet registers with the taint, waits for nothing.
	must.Value(s.As(t, tokens.NodeUserPrefix+"unclaimed", tokens.NodesGroup).CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "unclaimed"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: tokens.JoiningTaint, Effect: corev1.TaintEffectNoSchedule}}},
	}, metav1.CreateOptions{}))(t)
	waitProperties(t, s, "unclaimed", tokens.NodeProperties{})
	s.CheckSecrets(t)
}

// TestReplacedNodeGetsProperties catches a Node that does not get the labels of the token that replaces its machine. Such a Node
// has no taint of joining. It also catches a label that exists with another value and changes.
func TestReplacedNodeGetsProperties(t *testing.T) {
	harness.Parallel(t)
	s := harness.NewSite(t, cluster.Options{})
	ctx := t.Context()
	must.Value(s.StartKCM(ctx, "--controllers=node-lifecycle-controller", "--node-monitor-grace-period=10m"))(t)
	s.RunKubectl(t, "apply", "-f", harness.RepositoryFile(t, "deploy/node-properties.yaml"))
	for name, labels := range map[string]map[string]string{"worker-1": {"old": "1"}, "worker-2": {"tenant": "b"}} {
		n := must.Value(s.Client().CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{}))(t)
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, LastHeartbeatTime: metav1.Now()}}
		must.Value(s.Client().CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{}))(t)
		token := s.CreateToken(t, tokens.Limits{
			Replaces: tokens.NodeRef{Name: name, UID: string(n.UID)},
			Node:     tokens.NodeProperties{Labels: "tenant=a", Taints: "dedicated=a:NoSchedule", ReadyAfter: tokens.ReadyAfterServingCertificate},
		})
		machine := s.As(t, tokens.BootstrapUserPrefix+token.ID(), "system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token")
		must.OK(t, harness.CreateRequest(ctx, machine, "join-"+name, certificates.KubeAPIServerClientKubeletSignerName, name))
		s.WaitIssued(t, "join-"+name)
	}
	n := waitProperties(t, s, "worker-1", tokens.NodeProperties{Labels: "tenant=a,old=1", Taints: "dedicated=a:NoSchedule"})
	waitRecorded(t, s, "worker-1", n.UID)
	must.OK(t, notReady(n, "NoSchedule"))
	time.Sleep(3 * time.Second)
	n = must.Value(getNode(t, s, "worker-2"))(t)
	if got := registration(t, s, "worker-2"); n.Labels["tenant"] != "b" || !hasTaint(n, "dedicated=a:NoSchedule") || got != string(n.UID)+" true" {
		t.Errorf("label with another value: got labels %v, taints %v, %q in the claim, want the same label, the taint, and a claim that waits", n.Labels, n.Spec.Taints, got)
	}
	if text := tool(t, "explain", "worker-2", "--kubeconfig="+s.Kubeconfig()); !strings.Contains(text, `has the value "b" where its token asks for "a"`) {
		t.Errorf("kubejoin explain does not name the label: %s", text)
	}
	// A person removes the label.
	s.RunKubectl(t, "label", "node", "worker-2", "tenant-")
	waitProperties(t, s, "worker-2", tokens.NodeProperties{Labels: "tenant=a", Taints: "dedicated=a:NoSchedule"})
}

// TestPolicyLimitsPatchesOfNodes tries as kubejoin what deploy/node-properties.yaml forbids.
func TestPolicyLimitsPatchesOfNodes(t *testing.T) {
	harness.Parallel(t)
	s := harness.PrepareSite(t, cluster.Options{})
	ctx := t.Context()
	file := harness.RepositoryFile(t, "deploy/node-properties.yaml")
	s.RunKubectl(t, "apply", "-f", file)
	labels := map[string]string{"a": "1"}
	for i := range 10_000 { // a kubelet may set that many
		labels[fmt.Sprintf("l%d", i)] = "x"
	}
	must.Value(s.Client().CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "worker-1", Labels: labels, Annotations: map[string]string{"b": "1"}},
		Spec:       corev1.NodeSpec{PodCIDR: "10.0.0.0/24", PodCIDRs: []string{"10.0.0.0/24"}, Taints: []corev1.Taint{{Key: tokens.JoiningTaint, Effect: "NoSchedule"}, {Key: "t", Value: "1", Effect: "NoExecute"}}},
	}, metav1.CreateOptions{}))(t)
	own := s.As(t, "system:serviceaccount:kubejoin-system:kubejoin", "system:serviceaccounts", "system:serviceaccounts:kubejoin-system")
	patch := func(text string, subresources ...string) error {
		if !json.Valid([]byte(text)) {
			t.Fatalf("invalid patch %s", text)
		}
		_, err := own.CoreV1().Nodes().Patch(ctx, "worker-1", types.MergePatchType, []byte(text), metav1.PatchOptions{}, subresources...)
		return err
	}
	harness.Wait(t, "the policy in force", func() error {
		if err := patch(`{"metadata":{"annotations":{"c":"` + rand.Text() + `"}}}`); !apierrors.IsForbidden(err) || strings.Contains(err.Error(), "resulted in error") {
			return fmt.Errorf("an annotation: got %w, want a refusal", err)
		}
		return nil
	})
	// kube-apiserver has added the taint not-ready.
	const joining, other = `{"key":"kubejoin.io/joining","effect":"NoSchedule"}`, `{"key":"t","value":"1","effect":"NoExecute"},{"key":"node.kubernetes.io/not-ready","effect":"NoSchedule"}`
	for _, text := range []string{
		`{"metadata":{"labels":{"new":"1"}}}`,
		`{"spec":{"taints":[` + joining + `,` + other + `,{"key":"new","effect":"NoSchedule"}]}}`,
		`{"metadata":{"labels":{"new2":"1"}},"spec":{"taints":[{"key":"new","effect":"NoSchedule"},` + other + `,{"key":"new2","effect":"NoSchedule"}]}}`,
	} {
		if err := patch(text); err != nil {
			t.Errorf("%s: %v, want it allowed", text, err)
		}
	}
	for what, text := range map[string]string{
		"a label's value":     `{"metadata":{"labels":{"a":"2"}}}`,
		"a label less":        `{"metadata":{"labels":{"a":null}}}`,
		"an annotation":       `{"metadata":{"annotations":{"new":"1"}}}`,
		"an annotation less":  `{"metadata":{"annotations":{"b":null}}}`,
		"a finalizer":         `{"metadata":{"finalizers":["example.com/x"]}}`,
		"an owner":            `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p","uid":"u"}]}}`,
		"a taint less":        `{"spec":{"taints":[]}}`,
		"a taint's value":     `{"spec":{"taints":[{"key":"t","value":"2","effect":"NoExecute"}]}}`,
		"a taint's effect":    `{"spec":{"taints":[{"key":"t","value":"1","effect":"NoSchedule"}]}}`,
		"unschedulable":       `{"spec":{"unschedulable":true}}`,
		"the provider":        `{"spec":{"providerID":"x"}}`,
		"label and cordoning": `{"metadata":{"labels":{"new3":"1"}},"spec":{"unschedulable":true}}`,
	} {
		if err := patch(text); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "denied request: kubejoin may") {
			t.Errorf("%s: got %v, want a refusal", what, err)
		}
	}
	if err := patch(`{"status":{"phase":"Running"}}`, "status"); !apierrors.IsForbidden(err) {
		t.Errorf("status: got %v, want a refusal", err)
	}
	if err := own.CoreV1().Nodes().Delete(ctx, "worker-1", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("delete: got %v, want a refusal", err)
	}
	// An administrator is not limited, and follows the remedies for a Node that waits.
	s.RunKubectl(t, "label", "node", "worker-1", "a-")
	s.RunKubectl(t, "taint", "node", "worker-1", "t:NoExecute-")
	s.RunKubectl(t, "taint", "node", "worker-1", "--overwrite", tokens.JoiningTaint+":NoSchedule")
	s.RunKubectl(t, "taint", "node", "worker-1", tokens.JoiningTaint+"-")
	if n := must.Value(getNode(t, s, "worker-1"))(t); hasTaint(n, joiningTaint) || hasTaint(n, "t=1:NoExecute") || n.Labels["a"] != "" {
		t.Errorf("after the remedies: got taints %v and label a=%q, want neither", n.Spec.Taints, n.Labels["a"])
	}
	if warnings := s.RunKubectl(t, "get", "validatingadmissionpolicy", "kubejoin-node-properties", "-o", "jsonpath={.status.typeChecking.expressionWarnings}"); warnings != "" {
		t.Errorf("type checking warns: %s", warnings)
	}
}
