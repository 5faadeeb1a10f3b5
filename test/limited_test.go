package test

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strconv"
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
	"k8s.io/client-go/util/retry"
)

// A token for one node lets in one. The second machine is told why, does what it is told, and is
// in. Certificates last as the token says, and renewals of them do when it is gone.
func TestTokenForOneNode(t *testing.T) {
	t.Parallel()
	cluster.NeedRoot(t)
	s := newSite(t, cluster.Options{})
	l := keepLedger(t, s.Cluster)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	args, token := s.joinBy(t, "--max-nodes=1", "--certificate-duration=36h")
	first, err := s.Join(ctx, "worker-1", args)
	if err != nil {
		t.Fatal(err)
	}
	second, err := s.StartNode("worker-2", args)
	if err != nil {
		t.Fatal(err)
	}
	why := fmt.Sprintf("token %s was for 1 node and worker-1 took it; make another with: kubejoin token create --node-name worker-2", token.ID())
	if err := errors.Join(second.WaitKubelet(ctx, "TokenSpent"), second.WaitKubelet(ctx, why)); err != nil {
		t.Fatal(err)
	}
	second.Stop()
	s.explains(t, "worker-2", 3, "worker-2: refused ", why)
	s.explains(t, "worker-1", 0, "worker-1: joined ")
	s.tells(t, []string{"token", "list", "-o", "wide"}, token.ID(), "spent", "1/1", "worker-1")
	s.tells(t, []string{"claim", "list"}, "worker-1", token.ID(), "yes")
	l.checkClaims(t, s)

	_, command, _ := strings.Cut(why, "with: kubejoin ")
	another := s.created(t, s.cli(t, strings.Fields(command)...))
	args[slices.Index(args, "--token")+1] = another.Reveal()
	if _, err := s.Join(ctx, "worker-2", args); err != nil {
		t.Fatal(err)
	}
	s.explains(t, "worker-2", 0, "worker-2: joined ")

	s.cli(t, "token", "delete", token.ID(), another.ID())
	if err := request(ctx, s.itself(t, first), "renewal", certificates.KubeAPIServerClientKubeletSignerName, first.Name); err != nil {
		t.Fatal(err)
	}
	checkKubeletCertificate(t, s, leafOf(t, first), first.Name, 36*time.Hour)
	checkKubeletCertificate(t, s, s.issued(t, "renewal"), first.Name, 36*time.Hour)

	// Its Node is deleted, it makes another one with its certificate, and renews no longer than
	// before.
	s.kubectl(t, "delete", "node", first.Name)
	wait(t, "release of the claim", func() error {
		if claims := s.cli(t, "claim", "list", "-o", "name"); strings.Contains(claims, first.Name) {
			return fmt.Errorf("claims %q", claims)
		}
		return nil
	})
	if _, err := s.itself(t, first).CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: first.Name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := request(ctx, s.itself(t, first), "renewal-2", certificates.KubeAPIServerClientKubeletSignerName, first.Name); err != nil {
		t.Fatal(err)
	}
	checkKubeletCertificate(t, s, s.issued(t, "renewal-2"), first.Name, 36*time.Hour)
}

// A kubelet that is killed before it has its certificate begins anew with another key, and the
// token for one node is good for that.
func TestKubeletKilledInBootstrap(t *testing.T) {
	t.Parallel()
	cluster.NeedRoot(t)
	s := newSite(t, cluster.Options{})
	l := keepLedger(t, s.Cluster)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	args, token := s.joinBy(t, "--max-nodes=1")
	s.Stop(20 * time.Second) // nobody issues
	node, err := s.StartNode("worker-1", args)
	if err != nil {
		t.Fatal(err)
	}
	asked := func(times int) {
		t.Helper()
		wait(t, "request "+itoa(times), func() error {
			list, err := s.Client().CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{})
			if err == nil && len(list.Items) < times {
				err = fmt.Errorf("%d requests\n%s", len(list.Items), node.Output())
			}
			return err
		})
	}
	asked(1)
	if err := node.KillKubelet(ctx); err != nil {
		t.Fatal(err)
	}
	asked(2)
	s.start(t)
	if err := errors.Join(node.WaitJoined(ctx), node.WaitRegistered(ctx)); err != nil {
		t.Fatal(err)
	}
	keys, err := strconv.Atoi(s.cli(t, "claim", "list", "-o", "jsonpath={.items[?(@.node=='worker-1')].keys}"))
	if err != nil || keys < 2 || keys > tokens.MaxKeys {
		t.Errorf("the claim has %d keys, want 2 to %d: %v", keys, tokens.MaxKeys, err)
	}
	wait(t, "Event AnotherKey", func() error {
		if events := s.kubectl(t, "get", "events", "--field-selector=reason=AnotherKey", "-o", "name"); events == "" {
			return errNotYet
		}
		return nil
	})
	s.refuses(t, token, "worker-2", "TokenSpent", "worker-1 took it")
	l.checkClaims(t, s)
}

// A new machine in place of one that is off, and whose Node is still there.
func TestReplaceNode(t *testing.T) {
	t.Parallel()
	cluster.NeedRoot(t)
	s := newSite(t, cluster.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	args, spent := s.joinBy(t, "--max-nodes=1")
	old, err := s.Join(ctx, "worker-1", args)
	if err != nil {
		t.Fatal(err)
	}
	lost, before := leafOf(t, old), s.node(t, "worker-1")
	s.tells(t, []string{"claim", "list"}, "worker-1", spent.ID(), "yes")
	old.Stop()
	s.unheard(t, "worker-1")

	args, _ = s.joinBy(t)
	refused, err := s.StartNode("worker-1", args)
	if err != nil {
		t.Fatal(err)
	}
	if err := refused.WaitKubelet(ctx, "NodeExists"); err != nil {
		t.Fatal(err)
	}
	refused.Stop()
	s.explains(t, "worker-1", 3, "a Node worker-1 exists", "kubejoin token create --replace-node worker-1", "the Node of that name is NotReady")

	args, token := s.joinBy(t, "--replace-node=worker-1")
	s.refuses(t, token, "worker-2", "NodeNameNotAllowed", "but for worker-1")
	machine, err := s.Join(ctx, "worker-1", args)
	if err != nil {
		t.Fatal(err)
	}
	s.isReady(t, "worker-1")
	if after := s.node(t, "worker-1"); after.UID != before.UID {
		t.Errorf("the Node has UID %s, want that of the one it is in place of, %s", after.UID, before.UID)
	}
	if leafOf(t, machine).Equal(lost) {
		t.Error("the new machine has the certificate of the old one")
	}
	s.explains(t, "worker-1", 0, "worker-1: joined ")
	s.tells(t, []string{"claim", "list"}, "worker-1", token.ID(), "yes")
	s.tells(t, []string{"token", "list", "-o", "wide"}, token.ID(), "spent", "1/1", "worker-1")

	// It was good for one machine, and is for nobody once that Node is gone.
	s.refuses(t, token, "worker-1", "NodeExists", "has taken the place of Node worker-1")
	machine.Stop()
	s.kubectl(t, "delete", "node", "worker-1")
	s.refuses(t, token, "worker-1", "TokenSpent", "has joined with token "+token.ID()+" before")
}

// A node whose Node was deleted comes back with another token, at once, and not with its old one.
func TestDeletedNodeJoinsAgain(t *testing.T) {
	t.Parallel()
	cluster.NeedRoot(t)
	s := newSite(t, cluster.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var args []string
	for range 2 {
		var token tokens.Token
		args, token = s.joinBy(t, "--max-nodes=1", "--node-name=worker-1")
		node, err := s.Join(ctx, "worker-1", args)
		if err != nil {
			t.Fatal(err)
		}
		s.tells(t, []string{"claim", "list"}, "worker-1", token.ID(), "yes")
		node.Stop()
		s.kubectl(t, "delete", "node", "worker-1")
	}
	node, err := s.StartNode("worker-1", args)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(node.WaitKubelet(ctx, "TokenSpent"), node.WaitKubelet(ctx, "its Node or its claim was deleted since")); err != nil {
		t.Error(err)
	}
	if list, err := s.Client().CoreV1().Nodes().List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
		t.Errorf("%d Nodes, want none: %v", len(list.Items), err)
	}
}

// What docs/operations.md says of 'kubeadm reset' and 'kubeadm join' on the same machine.
func TestJoinAfterReset(t *testing.T) {
	t.Parallel()
	cluster.NeedRoot(t)
	s := newSite(t, cluster.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	args, _ := s.joinBy(t, "--max-nodes=1")
	node, err := s.Join(ctx, "worker-1", args)
	if err != nil {
		t.Fatal(err)
	}
	s.isReady(t, "worker-1")
	first := s.node(t, "worker-1")
	reset := func() {
		t.Helper()
		if output, err := node.Reset(ctx); err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
		if _, err := node.ReadFile("/etc/kubernetes/kubelet.conf"); err == nil {
			t.Fatal("kubeadm reset has left kubelet.conf")
		}
	}
	joins := func(args []string) {
		t.Helper()
		output, err := node.Rejoin(ctx, args)
		if err != nil || !strings.Contains(output, "This node has joined the cluster") {
			t.Fatalf("%v\n%s", err, output)
		}
		s.isReady(t, "worker-1")
	}

	// The Node stays, and kubeadm does not join while it is Ready.
	reset()
	ordinary, _ := s.joinBy(t)
	if output, err := node.Rejoin(ctx, ordinary); err == nil || !strings.Contains(output, `a Node with name "worker-1" and status "Ready" already exists`) {
		t.Fatalf("%v\n%s", err, output)
	}
	// Nor does kubejoin let it in when it is not.
	reset()
	s.unheard(t, "worker-1")
	waiting, give := context.WithCancel(ctx)
	ended := make(chan error)
	go func() {
		_, err := node.Rejoin(waiting, ordinary) // waits for the kubelet
		give()
		ended <- err
	}()
	refused := node.WaitKubelet(waiting, "NodeExists")
	give()
	if err := <-ended; refused != nil {
		t.Fatal(refused, err)
	}
	s.explains(t, "worker-1", 3, "kubectl delete node worker-1")
	// Once the Node is deleted any token does that is not spent.
	reset()
	s.kubectl(t, "delete", "node", "worker-1")
	joins(ordinary)
	second := s.node(t, "worker-1")
	if second.UID == first.UID {
		t.Error("the Node is the one that was deleted")
	}
	// Or it is replaced, and keeps its labels and its UID.
	s.kubectl(t, "label", "node", "worker-1", "rack=7")
	reset()
	s.unheard(t, "worker-1")
	replacing, _ := s.joinBy(t, "--replace-node=worker-1")
	joins(replacing)
	if third := s.node(t, "worker-1"); third.UID != second.UID || third.Labels["rack"] != "7" {
		t.Errorf("the Node is another one, of labels %v", third.Labels)
	}
	s.explains(t, "worker-1", 0, "worker-1: joined ")
}

// refuses asks for a node's certificate with a token, and waits for the refusal.
func (s *site) refuses(t *testing.T, token tokens.Token, node, reason, says string) {
	t.Helper()
	name := "refused-" + strings.ToLower(rand.Text()[:8])
	if err := request(t.Context(), asToken(t, s.Cluster, token.ID()), name, certificates.KubeAPIServerClientKubeletSignerName, node); err != nil {
		t.Fatal(err)
	}
	if c := s.decided(t, name); c.Type != certificates.CertificateDenied || c.Reason != reason || !strings.Contains(c.Message, says) {
		t.Errorf("%s asks on token %s: %s %s %q, want it Denied for %s, %q", node, token.ID(), c.Type, c.Reason, c.Message, reason, says)
	}
}

// decided waits for the approval or denial of a request.
func (s *site) decided(t *testing.T, name string) (condition certificates.CertificateSigningRequestCondition) {
	t.Helper()
	wait(t, "decision about "+name, func() error {
		r, err := s.Client().CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && len(r.Status.Conditions) == 0 {
			err = errNotYet
		}
		if err == nil {
			condition = r.Status.Conditions[0]
		}
		return err
	})
	return condition
}

// unheard marks a Node as the node lifecycle controller does when its kubelet is silent.
func (s *site) unheard(t *testing.T, name string) {
	t.Helper()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		node := s.node(t, name)
		node.Status.Conditions = []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown",
			Message: "Kubelet stopped posting node status.", LastTransitionTime: metav1.Now(),
		}}
		_, err := s.Client().CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// isReady waits until a Node is there and Ready.
func (s *site) isReady(t *testing.T, name string) {
	t.Helper()
	s.kubectl(t, "wait", "--for=create", "node/"+name, "--timeout=2m")
	s.kubectl(t, "wait", "--for=condition=Ready", "node/"+name, "--timeout=2m")
}

func (s *site) node(t *testing.T, name string) *corev1.Node {
	t.Helper()
	node, err := s.Client().CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return node
}

func leafOf(t *testing.T, node *cluster.Node) *x509.Certificate {
	t.Helper()
	chain, err := node.ClientCertificate()
	if err != nil {
		t.Fatal(err)
	}
	return chain[0]
}

// itself is a client with the certificate of a node.
func (s *site) itself(t *testing.T, node *cluster.Node) kubernetes.Interface {
	t.Helper()
	pair, err := node.ReadFile("/var/lib/kubelet/pki/kubelet-client-current.pem")
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(s.AdminConfig())
	config.CertData, config.KeyData = pair, pair
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// An operator may hand out the names of Nodes that exist, and keep others for the control plane.
func TestNodeNameFlags(t *testing.T) {
	t.Parallel()
	s := newSite(t, cluster.Options{}, "--existing-nodes=allow", "--reserved-node-names=cp-*")
	if _, err := s.Client().CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	asking := machine(t, s.Cluster)
	for node, want := range map[string]string{"worker-1": "AutoApproved", "cp-1": "NodeNameReserved"} {
		if err := request(t.Context(), asking, "of-"+node, certificates.KubeAPIServerClientKubeletSignerName, node); err != nil {
			t.Fatal(err)
		}
		if got := s.decided(t, "of-"+node); got.Reason != want {
			t.Errorf("%s: %s: %s, want %s", node, got.Reason, got.Message, want)
		}
	}
}
