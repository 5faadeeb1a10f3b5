package csr_test

import (
	"context"
	"crypto"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/logs"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/kubefacts"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/cleaner"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// limitedWorld is a world whose controller enforces the limits of tokens.
type limitedWorld struct {
	*world
	store  *secretstore.Store
	claims *secretstore.Claims
	nodes  *kubefacts.Nodes
}

func newLimitedWorld(t *testing.T) *limitedWorld {
	t.Helper()
	w := &limitedWorld{world: newWorld(t)}
	var err error
	if w.store, err = secretstore.Open(t.Context(), w.admin, nil); err != nil {
		t.Fatal(err)
	}
	if w.claims, err = secretstore.OpenClaims(t.Context(), w.admin, w.store, "kubejoin-system", nil); err != nil {
		t.Fatal(err)
	}
	if w.nodes, err = kubefacts.OpenNodes(t.Context(), w.admin); err != nil {
		t.Fatal(err)
	}
	authority := w.authority(signer.Fixed(w.ca))
	authority.Nodes = &admission.Nodes{Tokens: w.store, Claims: w.claims, Node: w.nodes.Node, Ready: w.nodes.Ready, Reserved: []string{"cp-*"}}
	w.run(csr.Controller{Client: w.restrict, Authority: authority, Approve: true, Sign: true, Registerer: w.metrics}.Run)
	w.run(cleaner.Claims{Store: w.claims, Tokens: w.store, Node: w.nodes.Node, Nodes: w.nodes.Nodes, Ready: w.nodes.Ready, NodesChanged: w.nodes.Watch(t.Context())}.Run)
	return w
}

// createToken creates a token and returns it with a client that uses it.
func (w *limitedWorld) createToken(limits tokens.Limits) (tokens.Token, kubernetes.Interface) {
	w.Helper()
	r := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
	r.Limits = limits
	if _, err := w.store.Create(w.Context(), r); err != nil {
		w.Fatal(err)
	}
	return r.Token, w.with(r.Token)
}

func (w *limitedWorld) with(t tokens.Token) kubernetes.Interface {
	w.Helper()
	return w.as("system:bootstrap:"+t.ID(), "system:bootstrappers", bootstrapGroup)
}

// node creates a Node, which is deleted after the test.
func (w *limitedWorld) node(name string) *corev1.Node {
	w.Helper()
	node, err := w.admin.CoreV1().Nodes().Create(w.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { w.deleteNode(name) })
	return node
}

func (w *limitedWorld) deleteNode(name string) {
	w.Helper()
	// Not the test's context, which has ended at cleanup.
	if err := w.admin.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		w.Error(err)
	}
}

// mustBeDenied waits until a request is denied, with the reason in condition, Event and metric.
func (w *limitedWorld) mustBeDenied(client kubernetes.Interface, node string, key crypto.Signer, reason string) {
	w.Helper()
	before := w.count("kubejoin_csr_decisions_total", "verdict=deny", "reason="+reason)
	asked := w.ask(client, kubelet, node, nil, key)
	object := w.await(asked.Name, "denial", func(o *certificates.CertificateSigningRequest) bool {
		if len(o.Status.Certificate) > 0 {
			w.Fatalf("%s: got a certificate, want reason %s", node, reason)
		}
		return condition(o, certificates.CertificateDenied) != nil
	})
	denied := condition(object, certificates.CertificateDenied)
	if denied.Reason != reason || denied.Message == "" {
		w.Errorf("%s: got reason %s, message %q; want %s", node, denied.Reason, denied.Message, reason)
	}
	if e := w.awaitEvent(object, reason); e.Message != denied.Message {
		w.Errorf("got Event message %q, want that of the condition: %q", e.Message, denied.Message)
	}
	w.poll("count of "+reason, func() bool {
		return w.count("kubejoin_csr_decisions_total", "verdict=deny", "reason="+reason) > before
	})
}

func (w *limitedWorld) mustJoin(client kubernetes.Interface, node string, key crypto.Signer) *certificates.CertificateSigningRequest {
	w.Helper()
	asked := w.ask(client, kubelet, node, nil, key)
	return w.await(asked.Name, "certificate", func(o *certificates.CertificateSigningRequest) bool {
		if d := condition(o, certificates.CertificateDenied); d != nil {
			w.Fatalf("%s: got denied with reason %s: %s", node, d.Reason, d.Message)
		}
		return len(o.Status.Certificate) > 0
	})
}

// Each limit of a token denies with its own reason in condition, Event and metric.
func TestDeniesWithReasonOfEachLimit(t *testing.T) {
	w := newLimitedWorld(t)
	name := func(s string) string { return s + "-" + tokens.Generate().ID() } // all tests share one cluster

	one, client := w.createToken(tokens.Limits{MaxNodes: 1, CertificateDuration: 2 * time.Hour})
	first := name("first")
	object := w.mustJoin(client, first, nil)
	cert := w.certificate(object)
	if d := time.Until(cert.NotAfter); d < 110*time.Minute || d > 2*time.Hour {
		t.Errorf("got lifetime %s, want 2h", d)
	}
	w.mustBeDenied(client, name("second"), nil, "TokenSpent")
	claim, err := w.claims.Get(t.Context(), first)
	if err != nil || claim.TokenID != one.ID() || len(claim.Keys) != 1 || len(claim.Requests) != 1 || claim.Requests[0] != string(object.UID) {
		t.Errorf("got claim %+v, %v, want one key and the request", claim, err)
	}
	if r, err := w.store.Get(t.Context(), one.ID()); err != nil || !r.Spent() || time.Until(r.Expires) > time.Hour {
		t.Errorf("got token %+v, %v, want it spent and expiring within an hour", r, err)
	}

	// Before the Node registers the claim admits more keys, afterwards none.
	w.awaitEvent(w.mustJoin(client, first, nil), "AnotherKey")
	w.mustJoin(client, first, nil)
	w.mustBeDenied(client, first, nil, "TooManyKeys")
	w.node(first)
	w.mustBeDenied(client, first, nil, "NodeExists")
	w.poll("note of the registration", func() bool {
		c, err := w.claims.Get(t.Context(), first)
		return err == nil && c.NodeUID != ""
	})
	_, another := w.createToken(tokens.Limits{MaxNodes: 1})
	w.mustBeDenied(another, first, nil, "NodeExists")
	unlimited, anyNode := w.createToken(tokens.Limits{})
	w.mustBeDenied(anyNode, first, nil, "NodeExists")
	w.mustBeDenied(w.bootstrap(), first, nil, "NodeExists") // also for other requesters

	// The name of a deleted Node is free, but not for the spent token.
	w.deleteNode(first)
	w.poll("release of the claim", func() bool {
		c, err := w.claims.Find(t.Context(), first)
		return err == nil && c.Released()
	})
	// Its machine still has its certificate. It registers again and renews with the same duration.
	w.node(first)
	back := w.as("system:node:"+first, "system:nodes")
	if d := time.Until(w.certificate(w.mustJoin(back, first, nil)).NotAfter); d < 110*time.Minute || d > 2*time.Hour {
		t.Errorf("renewal after the claim was released: got lifetime %s, want 2h", d)
	}
	w.deleteNode(first)
	w.mustBeDenied(client, first, nil, "TokenSpent")
	w.mustJoin(another, first, nil)
	w.mustBeDenied(anyNode, first, nil, "NodeNameClaimed")

	_, named := w.createToken(tokens.Limits{NodeNames: []string{"db-*", name("web")}})
	w.mustBeDenied(named, name("app"), nil, "NodeNameNotAllowed")
	db := name("db")
	w.mustJoin(named, db, nil)
	_, third := w.createToken(tokens.Limits{MaxNodes: 3})
	w.mustBeDenied(third, db, nil, "NodeNameClaimed")
	w.mustBeDenied(anyNode, "cp-1", nil, "NodeNameReserved")
	_, controlPlane := w.createToken(tokens.Limits{Role: tokens.RoleControlPlane})
	w.mustJoin(controlPlane, name("cp"), nil)

	// A machine that replaces another one.
	old := w.node(name("old"))
	_, replacing := w.createToken(tokens.Limits{Replaces: tokens.NodeRef{Name: old.Name, UID: string(old.UID)}})
	w.mustBeDenied(replacing, name("new"), nil, "NodeNameNotAllowed")
	w.mustJoin(replacing, old.Name, nil)
	w.mustJoin(replacing, old.Name, nil) // it may start over until its Node is Ready
	old.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if _, err := w.admin.CoreV1().Nodes().UpdateStatus(t.Context(), old, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.mustBeDenied(replacing, old.Name, nil, "NodeExists")
	_, outdated := w.createToken(tokens.Limits{Replaces: tokens.NodeRef{Name: old.Name, UID: "another"}})
	w.mustBeDenied(outdated, old.Name, nil, "NodeReplaced")

	// Tokens that are expired or deleted, while kube-apiserver still has them in its cache.
	if err := w.admin.CoreV1().Secrets("kube-system").Delete(t.Context(), "bootstrap-token-"+unlimited.ID(), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.poll("the memory of the token to end", func() bool {
		asked := w.ask(anyNode, kubelet, name("late"), nil, nil)
		o := w.await(asked.Name, "decision", func(o *certificates.CertificateSigningRequest) bool { return len(o.Status.Conditions) > 0 })
		return condition(o, certificates.CertificateDenied) != nil
	})
	w.mustBeDenied(anyNode, name("late"), nil, "TokenRevoked")
	expired, late := w.createToken(tokens.Limits{})
	if _, err := w.store.Update(t.Context(), expired.ID(), func(r *tokens.Record) error {
		r.Expires = time.Now().Add(-time.Minute)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	w.mustBeDenied(late, name("late"), nil, "TokenExpired")
	malformed, odd := w.createToken(tokens.Limits{MaxNodes: 5})
	if _, err := w.admin.CoreV1().Secrets("kube-system").Patch(t.Context(), "bootstrap-token-"+malformed.ID(), "application/merge-patch+json",
		[]byte(`{"metadata":{"annotations":{"kubejoin.io/max-nodes":"many"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	w.mustBeDenied(odd, name("odd"), nil, "TokenLimitsMalformed")
}

// A request that breaks a limit fails with the reason, also if a person approved it.
func TestLimitsApplyToManuallyApprovedRequests(t *testing.T) {
	w := newLimitedWorld(t)
	_, client := w.createToken(tokens.Limits{MaxNodes: 1})
	suffix := tokens.Generate().ID()
	w.mustJoin(client, "first-"+suffix, nil)
	// Requests of this user are not approved automatically.
	token, _ := w.createToken(tokens.Limits{NodeNames: []string{"only-" + suffix}})
	if err := w.allowAsking("system:bootstrappers:" + suffix); err != nil {
		t.Fatal(err)
	}
	manual := w.as("system:bootstrap:"+token.ID(), "system:bootstrappers", "system:bootstrappers:"+suffix)
	for node, allowed := range map[string]bool{"only-" + suffix: true, "other-" + suffix: false} {
		asked := w.ask(manual, kubelet, node, nil, nil)
		w.approve(asked.Name)
		object := w.await(asked.Name, "certificate or failure", func(o *certificates.CertificateSigningRequest) bool {
			return len(o.Status.Certificate) > 0 || condition(o, certificates.CertificateFailed) != nil
		})
		if issued := len(object.Status.Certificate) > 0; issued != allowed {
			t.Errorf("%s: issued %t, want %t", node, issued, allowed)
		}
		if allowed {
			continue
		}
		failed := condition(object, certificates.CertificateFailed)
		if failed.Reason != "NodeNameNotAllowed" || !strings.Contains(failed.Message, "kubejoin token create --max-nodes 1 --node-name "+node) {
			t.Errorf("got condition %+v", failed)
		}
		w.awaitEvent(object, "NodeNameNotAllowed")
		if n := w.count("kubejoin_csr_sign_failures_total", "reason=NodeNameNotAllowed"); n != 1 {
			t.Errorf("got %v counted failures, want 1", n)
		}
	}
}

// A node whose Node object was deleted must not come back by a renewal.
func TestRenewalWaitsForNode(t *testing.T) {
	w := newLimitedWorld(t)
	name := "gone-" + tokens.Generate().ID()
	kubeletClient := w.as("system:node:"+name, "system:nodes")
	asked := w.ask(kubeletClient, kubelet, name, nil, nil)
	w.poll("the wait", func() bool {
		return w.count("kubejoin_csr_decisions_total", "verdict=wait", "reason=NodeNotFound") > 0
	})
	object := w.await(asked.Name, "itself", func(*certificates.CertificateSigningRequest) bool { return true })
	if len(object.Status.Conditions) > 0 {
		t.Errorf("got conditions %+v, want none", object.Status.Conditions)
	}
	w.node(name)
	w.await(asked.Name, "certificate", func(o *certificates.CertificateSigningRequest) bool { return len(o.Status.Certificate) > 0 })
}

// A renewal without a Node waits also if somebody else approved it. It is not a failure, and the Event gives its
// deadline.
func TestApprovedRenewalWaitsForNode(t *testing.T) {
	w := newWorld(t)
	nodes, err := kubefacts.OpenNodes(t.Context(), w.admin)
	if err != nil {
		t.Fatal(err)
	}
	var log, record logs.Buffer
	authority := w.authority(signer.Fixed(w.ca))
	authority.Nodes = &admission.Nodes{Node: nodes.Node}
	authority.Record = issuance.NewWriter(&record)
	w.run(csr.Controller{Client: w.restrict, Authority: authority, Sign: true, Registerer: w.metrics, Logger: slog.New(slog.NewTextHandler(&log, nil))}.Run)
	name := "gone-" + tokens.Generate().ID()
	asked := w.ask(w.as("system:node:"+name, "system:nodes"), kubelet, name, nil, nil)
	w.approve(asked.Name)
	var waits []corev1.Event
	w.poll("an Event", func() bool {
		events, err := w.admin.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + asked.Name})
		if err != nil {
			t.Fatal(err)
		}
		waits = events.Items
		return len(waits) > 0
	})
	until := asked.CreationTimestamp.Add(approval.MaxWait).UTC().Format(time.RFC3339)
	if e := waits[0]; e.Type != corev1.EventTypeNormal || e.Reason != admission.ReasonNodeNotFound || !strings.HasSuffix(e.Message, "kubejoin retries until "+until) {
		t.Errorf("got Event %s %s %q", e.Type, e.Reason, e.Message)
	}
	l := limitedWorld{world: w}
	l.node(name)
	w.awaitIssued(asked.Name)
	if n := w.count("kubejoin_csr_sign_failures_total"); n > 0 || strings.Contains(log.String(), "level=ERROR") || !strings.Contains(log.String(), "level=INFO msg=\"certificate request waits\"") {
		t.Errorf("got %v counted failures, want 0; log:\n%s", n, log.String())
	}
	if text := record.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, `"outcome":"issued"`) {
		t.Errorf("got record\n%s", text)
	}
}

// conditionReady sets the condition Ready of a Node, as its kubelet or the node lifecycle controller does.
func (w *limitedWorld) conditionReady(name string, status corev1.ConditionStatus, since time.Time) {
	w.Helper()
	node, err := w.admin.CoreV1().Nodes().Get(w.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, LastTransitionTime: metav1.NewTime(since)}}
	if _, err := w.admin.CoreV1().Nodes().UpdateStatus(w.Context(), node, metav1.UpdateOptions{}); err != nil {
		w.Fatal(err)
	}
}

// A replaced Node that was Ready again for a moment closes its token, even without a request at that time. A Node
// that is still Ready because its machine has only just died does not.
func TestTokenIsSpentAfterReplacedNodeWasReadyBriefly(t *testing.T) {
	w := newLimitedWorld(t)
	node := w.node("replaced-" + tokens.Generate().ID())
	died := time.Now().Add(-time.Hour)
	w.conditionReady(node.Name, corev1.ConditionTrue, died)
	_, client := w.createToken(tokens.Limits{Replaces: tokens.NodeRef{Name: node.Name, UID: string(node.UID)}})
	w.mustJoin(client, node.Name, nil)
	w.mustJoin(client, node.Name, nil)
	w.conditionReady(node.Name, corev1.ConditionUnknown, died.Add(time.Minute))
	if c, err := w.claims.Get(t.Context(), node.Name); err != nil || c.ReadyAgain || c.ReadyBefore == "" {
		t.Errorf("got claim %+v, %v, want ReadyBefore and not ReadyAgain", c, err)
	}
	w.conditionReady(node.Name, corev1.ConditionTrue, died.Add(2*time.Minute))
	w.poll("note that the Node is Ready again", func() bool {
		c, err := w.claims.Get(t.Context(), node.Name)
		return err == nil && c.ReadyAgain
	})
	w.conditionReady(node.Name, corev1.ConditionFalse, died.Add(3*time.Minute))
	w.mustBeDenied(client, node.Name, nil, "NodeExists")
}
