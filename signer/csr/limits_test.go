package csr_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/csr"
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
	nodes  *kubefacts.NodeCache
}

func newLimitedWorld(t *testing.T) *limitedWorld {
	t.Helper()
	w := &limitedWorld{world: newWorld(t)}

	w.store = must.Value(secretstore.Open(t.Context(), w.admin, nil))(t)
	w.claims = must.Value(secretstore.OpenClaims(t.Context(), w.admin, w.store, "kubejoin-system", nil))(t)
	w.nodes = kubefacts.OpenNodes(t.Context(), w.admin)
	authority := w.authority(signer.Fixed(w.ca))
	authority.Nodes = &admission.Nodes{Tokens: w.store, Claims: w.claims, Node: w.nodes.Node, Ready: w.nodes.Ready, Reserved: []string{"cp-*"}}
	w.run(csr.Controller{Client: w.restrict, Authority: authority, Approve: true, Sign: true, Registerer: w.metrics}.Run)
	w.run(cleaner.Claims{Store: w.claims, Tokens: w.store, Node: w.nodes.Node, Nodes: w.nodes.Nodes, Ready: w.nodes.Ready, NodesChanged: w.nodes.Watch}.Run)
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
	// Do not use the test's context, which has ended at cleanup.
	if err := w.admin.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		w.Error(err)
	}
}

// mustBeDenied waits until a request is denied, with the reason in condition, Event and metric.
func (w *limitedWorld) mustBeDenied(client kubernetes.Interface, node, reason string) {
	w.Helper()
	before := w.count("kubejoin_csr_decisions_total", "verdict=deny", "reason="+reason)
	asked := w.ask(client, kubelet, node, nil, nil)
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
	wait.Until(w, "count of "+reason, func() bool {
		return w.count("kubejoin_csr_decisions_total", "verdict=deny", "reason="+reason) > before
	})
}

func (w *limitedWorld) mustJoin(client kubernetes.Interface, node string) *certificates.CertificateSigningRequest {
	w.Helper()
	asked := w.ask(client, kubelet, node, nil, nil)
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
	suffix := "-" + tokens.Generate().ID() // all tests share one cluster
	as := func(limits tokens.Limits) kubernetes.Interface { _, client := w.createToken(limits); return client }
	changed := func(change func(*tokens.Record)) kubernetes.Interface {
		token, client := w.createToken(tokens.Limits{MaxNodes: 5})
		must.Value(w.store.Update(t.Context(), token.ID(), func(r *tokens.Record) error { change(r); return nil }))(t)
		return client
	}
	secrets := w.admin.CoreV1().Secrets("kube-system")
	deleted, gone := w.createToken(tokens.Limits{MaxNodes: 5})
	malformed, odd := w.createToken(tokens.Limits{MaxNodes: 5})
	_, err := secrets.Patch(t.Context(), "bootstrap-token-"+malformed.ID(), "application/merge-patch+json", []byte(`{"metadata":{"annotations":{"kubejoin.io/max-nodes":"many"}}}`), metav1.PatchOptions{})
	must.OK(t, errors.Join(err, secrets.Delete(t.Context(), "bootstrap-token-"+deleted.ID(), metav1.DeleteOptions{})))
	one, free := as(tokens.Limits{MaxNodes: 1, CertificateDuration: 2 * time.Hour}), as(tokens.Limits{})
	if d := time.Until(w.certificate(w.mustJoin(one, "first"+suffix)).NotAfter); d < 110*time.Minute || d > 2*time.Hour {
		t.Errorf("got lifetime %s, want 2h", d)
	}
	w.awaitEvent(w.mustJoin(one, "first"+suffix), "AnotherKey")
	w.node("there" + suffix)
	for _, test := range []struct {
		client       kubernetes.Interface
		node, reason string
	}{
		{one, "second", "TokenSpent"},
		{free, "first", "NodeNameClaimed"},
		{as(tokens.Limits{NodeNames: []string{"db-*"}}), "app", "NodeNameNotAllowed"},
		{free, "cp", "NodeNameReserved"},
		{w.bootstrap(), "there", "NodeExists"}, // also for requesters without a token
		{as(tokens.Limits{Replaces: tokens.NodeRef{Name: "there" + suffix, UID: "another"}}), "there", "NodeReplaced"},
		{changed(func(r *tokens.Record) { r.Expires = time.Now().Add(-time.Minute) }), "late", "TokenExpired"},
		{gone, "late", "TokenRevoked"}, // kube-apiserver may still have it in its cache
		{odd, "odd", "TokenLimitsMalformed"},
	} {
		w.mustBeDenied(test.client, test.node+suffix, test.reason)
	}
	w.mustJoin(as(tokens.Limits{Role: tokens.RoleControlPlane}), "cp"+suffix)
}
