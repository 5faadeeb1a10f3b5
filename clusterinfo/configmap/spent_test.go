package configmap_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The signature of a spent token must stay while a machine may repeat its join, and must then be removed. If
// kube-controller-manager adds it again, it stays. If the token gets a free slot, it must sign again.
func TestSignatureOfSpentToken(t *testing.T) {
	f, ctx := setUp(t), t.Context()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: secretstore.ClaimNamespace}}
	if _, err := f.client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	store := must.Value(secretstore.Open(ctx, f.client, nil))(t)
	claims := must.Value(secretstore.OpenClaims(ctx, f.client, store, secretstore.ClaimNamespace, nil))(t)
	node := must.Value(f.client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "spent-"}}, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		if err := f.client.CoreV1().Nodes().Delete(context.WithoutCancel(ctx), node.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	var ahead atomic.Int64 // how far the signer's clock is ahead
	s := f.signer()
	s.Tokens, s.Now = store, func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	s.Spent = &clusterinfo.Spent{Claims: claims, Registered: func(ctx context.Context, name, uid string) (time.Time, error) {
		found, err := f.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil || string(found.UID) != uid {
			return time.Time{}, err
		}
		return found.CreationTimestamp.Time, nil
	}}
	run(t, s)
	complete := f.live.Complete(store, s.Spent)
	complete.Now = s.Now
	mint := func(limits tokens.Limits) tokens.Record {
		t.Helper()
		r := tokens.NewRecord(tokens.Generate(), 0, time.Now())
		r.Limits = limits
		r = must.Value(store.Create(ctx, r))(t)
		t.Cleanup(func() {
			if err := f.client.CoreV1().Secrets("kube-system").Delete(context.WithoutCancel(ctx), "bootstrap-token-"+r.Token.ID(), metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
		f.waitSigned(t, r.Token)
		return r
	}
	token := mint(tokens.Limits{MaxNodes: 1})
	key := clusterinfo.SignatureKey(token.Token.ID())
	// at makes the signer run a step at a time after the creation of the Node, and reports whether the token signs
	// after this step.
	at := func(after time.Duration) bool {
		t.Helper()
		ahead.Store(int64(after - time.Since(node.CreationTimestamp.Time)))
		mint(tokens.Limits{})
		return must.Value(f.live.Data(ctx))(t)[key] != ""
	}
	served := func() bool { return must.Value(complete.Data(ctx))(t)[key] != "" }

	counted := token.Clone()
	counted.Nodes = []string{node.Name}
	claim := tokens.Claim{Node: node.Name, TokenID: token.Token.ID(), TokenUID: token.UID, Limits: token.Limits, Keys: []string{"sha256:a"}}
	outcome := must.Value(claims.Commit(ctx, token, counted, []tokens.ClaimChange{{After: claim}}))(t)[0]
	must.OK(t, outcome.Err)
	if !at(time.Hour) {
		t.Error("spent, and its Node has not registered: got no signature")
	}
	claim = outcome.Claim.Clone()
	claim.NodeUID = string(node.UID)
	claim = must.Value(tokens.CommitClaim(ctx, claims, outcome.Claim, claim))(t)
	wait.OK(t, "the cached claim", func() error {
		c, err := claims.Get(ctx, node.Name, tokens.Cached)
		if err == nil && c.NodeUID == "" {
			err = tokens.ErrNotFound
		}
		return err
	})
	if !at(9*time.Minute) || !served() {
		t.Error("registered for 9 minutes: got no signature")
	}
	if at(12*time.Minute) || served() {
		t.Error("registered for 12 minutes: got a signature")
	}

	kcm := must.Value(f.StartKCM(ctx, "--controllers=bootstrap-signer-controller"))(t)
	t.Cleanup(func() { kcm.Stop(0) })
	f.waitSigned(t, token.Token)
	if !at(14*time.Minute) || !at(16*time.Minute) {
		t.Error("kube-controller-manager has added the signature: got none")
	}
	f.quiet(t, "beside kube-controller-manager")
	kcm.Stop(0)
	f.edit(t, func(data map[string]string) { delete(data, key) })
	f.eventually(t, "no signature", func(data map[string]string) bool { return data[key] == "" })
	if at(18 * time.Minute) {
		t.Error("another signer has removed the signature: got one")
	}

	// A free slot: a higher limit, and a released claim.
	must.Value(store.Update(ctx, token.Token.ID(), func(r *tokens.Record) error { r.Limits.MaxNodes = 2; return nil }))(t)
	f.waitSigned(t, token.Token)
	if !served() {
		t.Error("a slot is free: got no signature from kubejoin")
	}
	must.Value(store.Update(ctx, token.Token.ID(), func(r *tokens.Record) error { r.Limits.MaxNodes = 1; return nil }))(t)
	if at(20*time.Minute) || served() {
		t.Error("spent again: got a signature")
	}
	counted = must.Value(store.Get(ctx, token.Token.ID(), tokens.Live))(t)
	free := counted.Clone()
	free.Nodes = nil
	must.OK(t, must.Value(claims.Commit(ctx, counted, free, []tokens.ClaimChange{{Before: claim, After: claim.AfterRelease(tokens.ReleasedClaim{})}}))(t)[0].Err)
	f.waitSigned(t, token.Token)
}
