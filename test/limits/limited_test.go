package limits

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
)

// TestTokenForOneNodeAdmitsOne catches a second node on a token for one node, and a refusal whose suggested command
// does not help. It also catches a renewal that ignores the certificate duration of a deleted token.
func TestTokenForOneNodeAdmitsOne(t *testing.T) {
	harness.Parallel(t)
	cluster.NeedRoot(t)
	s := harness.NewSite(t, cluster.Options{})
	l := harness.NewLedger(t, s.Cluster)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	args, token := s.JoinArgsByCLI(t, "--max-nodes=1", "--certificate-duration=36h")
	first := must.Value(s.Join(ctx, "worker-1", args))(t)
	second := must.Value(s.StartNode("worker-2", args))(t)
	why := fmt.Sprintf("token %s is spent: it allows 1 node, and worker-1 has joined with it; create another one: kubejoin token create --max-nodes 1 --node-name worker-2", token.ID())
	must.OK(t, errors.Join(second.WaitKubelet(ctx, "TokenSpent"), second.WaitKubelet(ctx, why)))
	second.Stop()
	s.WaitExplain(t, "worker-2", 3, "worker-2: refused ", why)
	s.WaitExplain(t, "worker-1", 0, "worker-1: joined ")
	s.WaitOutput(t, []string{"token", "list", "-o", "wide"}, token.ID(), "spent", "1/1", "worker-1")
	s.WaitOutput(t, []string{"claim", "list"}, "worker-1", token.ID(), "yes")
	checkClaims(t, l, s)

	_, command, _ := strings.Cut(why, ": kubejoin ")
	another := s.ParseToken(t, s.CLI(t, strings.Fields(command)...))
	args[slices.Index(args, "--token")+1] = another.Reveal()
	must.Value(s.Join(ctx, "worker-2", args))(t)
	s.WaitExplain(t, "worker-2", 0, "worker-2: joined ")

	s.CLI(t, "token", "delete", token.ID(), another.ID())
	must.OK(t, harness.CreateRequest(ctx, asNode(t, s, first), "renewal", certificates.KubeAPIServerClientKubeletSignerName, first.Name))
	harness.CheckKubeletCertificate(t, s, leafOf(t, first), first.Name, 36*time.Hour)
	harness.CheckKubeletCertificate(t, s, s.WaitIssued(t, "renewal"), first.Name, 36*time.Hour)

	// The node creates its deleted Node again. Its renewals keep the duration that the token set.
	s.RunKubectl(t, "delete", "node", first.Name)
	s.WaitUnclaimed(t, first.Name)
	must.Value(asNode(t, s, first).CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: first.Name}}, metav1.CreateOptions{}))(t)
	must.OK(t, harness.CreateRequest(ctx, asNode(t, s, first), "renewal-2", certificates.KubeAPIServerClientKubeletSignerName, first.Name))
	harness.CheckKubeletCertificate(t, s, s.WaitIssued(t, "renewal-2"), first.Name, 36*time.Hour)
}

// TestReplaceNodeTokenReplacesOneMachine catches a token with --replace-node that cannot replace a NotReady Node, or
// that admits another node name or a second machine.
func TestReplaceNodeTokenReplacesOneMachine(t *testing.T) {
	harness.Parallel(t)
	cluster.NeedRoot(t)
	s := harness.NewSite(t, cluster.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	args, spent := s.JoinArgsByCLI(t, "--max-nodes=1")
	old := must.Value(s.Join(ctx, "worker-1", args))(t)
	lost, before := leafOf(t, old), getNode(t, s, "worker-1")
	s.WaitOutput(t, []string{"claim", "list"}, "worker-1", spent.ID(), "yes")
	old.Stop()
	markUnknown(t, s, "worker-1")

	args, _ = s.JoinArgsByCLI(t)
	refused := must.Value(s.StartNode("worker-1", args))(t)
	must.OK(t, refused.WaitKubelet(ctx, "NodeExists"))
	refused.Stop()
	s.WaitExplain(t, "worker-1", 3, "Node worker-1 already exists", "kubejoin token create --replace-node worker-1", "the Node of that name is NotReady")

	args, token := s.JoinArgsByCLI(t, "--replace-node=worker-1")
	checkDenied(t, s, token, "worker-2", "NodeNameNotAllowed", "only worker-1")
	machine := must.Value(s.Join(ctx, "worker-1", args))(t)
	waitNodeReady(t, s, "worker-1")
	if after := getNode(t, s, "worker-1"); after.UID != before.UID {
		t.Errorf("got Node UID %s, want the UID of the replaced machine's Node, %s", after.UID, before.UID)
	}
	if leafOf(t, machine).Equal(lost) {
		t.Error("the new machine has the certificate of the old one, want a new certificate")
	}
	s.WaitExplain(t, "worker-1", 0, "worker-1: joined ")
	s.WaitOutput(t, []string{"claim", "list"}, "worker-1", token.ID(), "yes")
	s.WaitOutput(t, []string{"token", "list", "-o", "wide"}, token.ID(), "spent", "1/1", "worker-1")

	// The token admits no second machine, even after the Node is deleted.
	checkDenied(t, s, token, "worker-1", "NodeExists", "another machine has already replaced Node worker-1")
	machine.Stop()
	s.RunKubectl(t, "delete", "node", "worker-1")
	checkDenied(t, s, token, "worker-1", "TokenSpent", "has already joined with token "+token.ID())
}

// TestDeletedNodeJoinsAgainWithNewToken catches a deleted node that cannot join with a new token, or that can still join
// with its spent token.
func TestDeletedNodeJoinsAgainWithNewToken(t *testing.T) {
	harness.Parallel(t)
	cluster.NeedRoot(t)
	s := harness.NewSite(t, cluster.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	var args []string
	for range 2 {
		var token tokens.Token
		args, token = s.JoinArgsByCLI(t, "--max-nodes=1", "--node-name=worker-1")
		node := must.Value(s.Join(ctx, "worker-1", args))(t)
		s.WaitOutput(t, []string{"claim", "list"}, "worker-1", token.ID(), "yes")
		node.Stop()
		s.RunKubectl(t, "delete", "node", "worker-1")
	}
	node := must.Value(s.StartNode("worker-1", args))(t)
	if err := errors.Join(node.WaitKubelet(ctx, "TokenSpent"), node.WaitKubelet(ctx, "its Node or claim was deleted since")); err != nil {
		t.Error(err)
	}
	if list, err := s.Client().CoreV1().Nodes().List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
		t.Errorf("got %d Nodes, want none: %v", len(list.Items), err)
	}
}

// TestReleasedSlotAdmitsAnotherMachine catches a spent token that no longer signs cluster-info after its slot was freed, so
// that no machine can discover the cluster with it.
func TestReleasedSlotAdmitsAnotherMachine(t *testing.T) {
	harness.Parallel(t)
	cluster.NeedRoot(t)
	s := harness.NewSite(t, cluster.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	args, token := s.JoinArgsByCLI(t, "--max-nodes=1")
	signs := func(want bool) func() error {
		return func() error {
			if got := s.ClusterInfo(t)[clusterinfo.SignatureKey(token.ID())] != ""; got != want {
				return fmt.Errorf("cluster-info has a signature of the token: %t", got)
			}
			return nil
		}
	}
	lost := must.Value(s.Join(ctx, "worker-1", args))(t)
	s.WaitOutput(t, []string{"claim", "list"}, "worker-1", token.ID(), "yes")
	lost.Stop()
	s.RunKubectl(t, "delete", "node", "worker-1")
	s.WaitUnclaimed(t, "worker-1")
	s.WaitOutput(t, []string{"token", "list", "-o", "wide"}, token.ID(), "spent", "1/1")
	s.Stop(20 * time.Second)
	s.Start(t) // kubejoin looks for spent tokens at its start, and then once a minute
	harness.Wait(t, "no signature of a spent token", signs(false))

	if _, stderr, code := s.RunKubejoin(t, "claim", "release", "worker-1"); code != 0 || !strings.Contains(stderr, "has a free slot again") {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	harness.WaitFor(t, 20*time.Second, "the signature before the next look", signs(true))
	must.Value(s.Join(ctx, "worker-2", args))(t)
	s.WaitOutput(t, []string{"claim", "list"}, "worker-2", token.ID(), "yes")
}

// TestJoinsAfterKubeadmReset runs 'kubeadm reset' and 'kubeadm join' on the same machine. It catches a documented procedure
// to rejoin that fails, and a rejoin that takes over an existing Node.
func TestJoinsAfterKubeadmReset(t *testing.T) {
	harness.Parallel(t)
	cluster.NeedRoot(t)
	s := harness.NewSite(t, cluster.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	args, _ := s.JoinArgsByCLI(t, "--max-nodes=1")
	node := must.Value(s.Join(ctx, "worker-1", args))(t)
	waitNodeReady(t, s, "worker-1")
	first := getNode(t, s, "worker-1")
	reset := func() {
		t.Helper()
		if output, err := node.Reset(ctx); err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
		if _, err := node.ReadFile("/etc/kubernetes/kubelet.conf"); err == nil {
			t.Fatal("kubelet.conf still exists after kubeadm reset, want it deleted")
		}
	}
	rejoin := func(args []string) {
		t.Helper()
		output, err := node.Rejoin(ctx, args)
		if err != nil || !strings.Contains(output, "This node has joined the cluster") {
			t.Fatalf("%v\n%s", err, output)
		}
		waitNodeReady(t, s, "worker-1")
	}

	// kubeadm refuses to join while the old Node is Ready.
	reset()
	ordinary, _ := s.JoinArgsByCLI(t)
	if output, err := node.Rejoin(ctx, ordinary); err == nil || !strings.Contains(output, `a Node with name "worker-1" and status "Ready" already exists`) {
		t.Fatalf("%v\n%s", err, output)
	}
	// After the Node is deleted, any token with a free slot works.
	reset()
	s.RunKubectl(t, "delete", "node", "worker-1")
	rejoin(ordinary)
	second := getNode(t, s, "worker-1")
	if second.UID == first.UID {
		t.Error("got the UID of the deleted Node, want a new Node")
	}
	// With --replace-node, the Node keeps its labels and its UID.
	s.RunKubectl(t, "label", "node", "worker-1", "rack=7")
	reset()
	markUnknown(t, s, "worker-1")
	replacing, _ := s.JoinArgsByCLI(t, "--replace-node=worker-1")
	rejoin(replacing)
	if third := getNode(t, s, "worker-1"); third.UID != second.UID || third.Labels["rack"] != "7" {
		t.Errorf("got Node UID %s with labels %v, want UID %s with rack=7", third.UID, third.Labels, second.UID)
	}
	s.WaitExplain(t, "worker-1", 0, "worker-1: joined ")
}

// checkDenied requests a node's certificate with a token, and waits until kubejoin denies it.
func checkDenied(t *testing.T, s *harness.Site, token tokens.Token, node, reason, says string) {
	t.Helper()
	name := "refused-" + strings.ToLower(rand.Text()[:8])
	must.OK(t, harness.CreateRequest(t.Context(), harness.AsToken(t, s.Cluster, token.ID()), name, certificates.KubeAPIServerClientKubeletSignerName, node))
	if c := decision(t, s, name); c.Type != certificates.CertificateDenied || c.Reason != reason || !strings.Contains(c.Message, says) {
		t.Errorf("%s with token %s: got %s %s %q, want Denied %s %q", node, token.ID(), c.Type, c.Reason, c.Message, reason, says)
	}
}

// decision waits for the approval or denial of a request.
func decision(t *testing.T, s *harness.Site, name string) (condition certificates.CertificateSigningRequestCondition) {
	t.Helper()
	harness.Wait(t, "decision about "+name, func() error {
		r, err := s.Client().CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && len(r.Status.Conditions) == 0 {
			err = errors.New("not yet")
		}
		if err == nil {
			condition = r.Status.Conditions[0]
		}
		return err
	})
	return condition
}

// markUnknown marks a Node as the node lifecycle controller does when its kubelet stops reporting.
func markUnknown(t *testing.T, s *harness.Site, name string) {
	t.Helper()
	must.OK(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		node := getNode(t, s, name)
		node.Status.Conditions = []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown",
			Message: "Kubelet stopped posting node status.", LastTransitionTime: metav1.Now(),
		}}
		_, err := s.Client().CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
		return err
	}))
}

// waitNodeReady waits until a Node exists and is Ready.
func waitNodeReady(t *testing.T, s *harness.Site, name string) {
	t.Helper()
	s.RunKubectl(t, "wait", "--for=create", "node/"+name, "--timeout=2m")
	s.RunKubectl(t, "wait", "--for=condition=Ready", "node/"+name, "--timeout=2m")
}

func getNode(t *testing.T, s *harness.Site, name string) *corev1.Node {
	t.Helper()
	return must.Value(s.Client().CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{}))(t)
}

func leafOf(t *testing.T, node *cluster.Node) *x509.Certificate {
	t.Helper()
	chain := must.Value(node.ClientCertificate())(t)
	return chain[0]
}

// asNode returns a client with the certificate of a node.
func asNode(t *testing.T, s *harness.Site, node *cluster.Node) kubernetes.Interface {
	t.Helper()
	pair := must.Value(node.ReadFile("/var/lib/kubelet/pki/kubelet-client-current.pem"))(t)
	config := rest.AnonymousClientConfig(s.AdminConfig())
	config.CertData, config.KeyData = pair, pair
	return must.Value(kubernetes.NewForConfig(config))(t)
}

// TestFlagsAllowExistingAndReserveNodeNames catches --existing-nodes=allow that denies the name of an existing Node, and
// --reserved-node-names that does not deny a reserved name.
func TestFlagsAllowExistingAndReserveNodeNames(t *testing.T) {
	harness.Parallel(t)
	s := harness.NewSite(t, cluster.Options{}, "--existing-nodes=allow", "--reserved-node-names=cp-*")
	must.Value(s.Client().CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1"}}, metav1.CreateOptions{}))(t)
	asking := harness.AsMachine(t, s.Cluster)
	for node, want := range map[string]string{"worker-1": "AutoApproved", "cp-1": "NodeNameReserved"} {
		must.OK(t, harness.CreateRequest(t.Context(), asking, "of-"+node, certificates.KubeAPIServerClientKubeletSignerName, node))
		if got := decision(t, s, "of-"+node); got.Reason != want {
			t.Errorf("%s: got %s: %s, want %s", node, got.Reason, got.Message, want)
		}
	}
}
