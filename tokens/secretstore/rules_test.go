package secretstore_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cluster-bootstrap/token/api"
)

// TestRules reads a token of another program, before and after its rules change, and after its writer left them. It catches a
// read without rules, a limit of a rule on the Secret, and a cache that keeps old rules.
func TestRules(t *testing.T) {
	open(t, nil) // deletes all tokens
	scaler := tokens.LimitRule{
		Rule:   tokens.Rule{Name: "scaler", Limits: tokens.Limits{MaxNodes: 2, NodeNames: []string{"auto-*"}, CertificateDuration: time.Hour}},
		Labels: map[string]string{"app": "scaler"},
	}
	var rules atomic.Pointer[[]tokens.LimitRule]
	rules.Store(&[]tokens.LimitRule{scaler})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	client := cluster.Shared(t).Client()
	s := must.Value(secretstore.OpenWithRules(ctx, client, func() []tokens.LimitRule { return *rules.Load() }, nil))(t)
	token := tokens.Generate()
	put(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-" + token.ID(), Labels: map[string]string{"app": "scaler"}},
		Type:       api.SecretTypeBootstrapToken,
		StringData: map[string]string{"token-id": token.ID(), "token-secret": token.RevealSecret(), "usage-bootstrap-authentication": "true"},
	})
	limit := func(want int) {
		t.Helper()
		waitTokens(t, s, "the rules", func(all []tokens.Record) bool { return len(all) == 1 && all[0].Limits.NodeLimit() == want })
		for _, read := range []tokens.Read{tokens.Live, tokens.Recent, tokens.Cached} {
			if r := must.Value(s.Get(t.Context(), token.ID(), read))(t); r.Limits.NodeLimit() != want || r.Limits.MaxNodes != 0 {
				t.Errorf("read %s: got %+v, want %d nodes, and no limit of the token", read, r.Limits, want)
			}
		}
		if shared := must.Value(s.Shared(t.Context()))(t); shared[0].Limits.NodeLimit() != want {
			t.Errorf("got %+v, want %d nodes", shared[0].Limits, want)
		}
	}
	limit(2)
	r := must.Value(s.Update(t.Context(), token.ID(), func(r *tokens.Record) error { r.Nodes = []string{"auto-1", "auto-2"}; return nil }))(t)
	if !r.Spent() || r.Limits.AllowsName("worker-1") {
		t.Errorf("got %+v, want a spent token for auto-*", r.Limits)
	}
	// Cluster API extends the expiration of a token until its Node has joined. The count stays.
	extended := secretOf(t, token)
	extended.StringData = map[string]string{"expiration": time.Now().Add(time.Hour).UTC().Format(time.RFC3339)}
	update(t, extended)
	if again := must.Value(s.Get(t.Context(), token.ID(), tokens.Live))(t); again.Expires.IsZero() || again.UID != r.UID || !again.Spent() {
		t.Errorf("extended by its writer: got %+v, want the spent token with an expiration", again)
	}
	if made := must.Value(s.Create(t.Context(), tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())))(t); made.Limits.NodeLimit() != 0 {
		t.Errorf("got %+v for a token without the label, want no limit", made.Limits)
	} else if err := s.Delete(t.Context(), made); err != nil {
		t.Error(err)
	}
	wantMap(t, "annotations", secretOf(t, token).Annotations, map[string]string{"kubejoin.io/nodes": "+auto-1,+auto-2"})

	// The claim has what renewals need, and nothing that would come back on the Secret.
	claims := must.Value(secretstore.OpenClaims(ctx, client, s, "default", nil))(t)
	claim := must.Value(storetest.CreateClaim(t.Context(), claims, tokens.Claim{Node: "auto-1", TokenID: token.ID(), TokenUID: r.UID, Limits: r.Limits.Kept()}))(t)
	t.Cleanup(func() {
		if err := client.CoordinationV1().Leases("default").Delete(context.Background(), "auto-1", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	if claim.Limits.MaxNodes != 0 || claim.Remaining().CertificateDuration != time.Hour || claim.Limits.LimitedBy()["certificate-duration"] != "scaler" {
		t.Errorf("got claim %+v", claim.Limits)
	}
	lease := must.Value(client.CoordinationV1().Leases("default").Get(t.Context(), "auto-1", metav1.GetOptions{}))(t)
	if got, want := lease.Annotations["rules.kubejoin.io/limits"], `[{"name":"scaler","certificateSeconds":3600}]`; got != want {
		t.Errorf("got annotation %s, want %s", got, want)
	}
	if keys := slices.Sorted(maps.Keys(lease.Annotations)); strings.Join(keys, " ") != "kubejoin.io/token-uid rules.kubejoin.io/limits" {
		t.Errorf("got annotations %q", keys)
	}

	// A commit on a token with earlier rules starts over: these rules may allow other names, and longer certificates.
	before := must.Value(s.Update(t.Context(), token.ID(), func(r *tokens.Record) error { r.Nodes = []string{"auto-1"}; return nil }))(t)
	named := scaler
	named.Limits.NodeNames = []string{"auto-1"}
	rules.Store(&[]tokens.LimitRule{named})
	s.RulesChanged()
	after := before.Clone()
	after.Nodes = append(after.Nodes, "auto-2")
	change := tokens.ClaimChange{After: tokens.Claim{Node: "auto-2", TokenID: token.ID(), TokenUID: r.UID, Limits: before.Limits.Kept()}}
	if outcomes, err := claims.Commit(t.Context(), before, after, []tokens.ClaimChange{change}); !errors.Is(err, tokens.ErrConflict) {
		t.Errorf("got %+v, %v, want %v", outcomes, err, tokens.ErrConflict)
	}

	tighter := scaler
	tighter.Limits.MaxNodes = 1
	rules.Store(&[]tokens.LimitRule{scaler, tighter})
	s.RulesChanged()
	limit(1)
	rules.Store(&[]tokens.LimitRule{})
	s.RulesChanged()
	limit(0)
	rules.Store(&[]tokens.LimitRule{scaler})
	s.RulesChanged()
	limit(2)
	secret := secretOf(t, token)
	delete(secret.Labels, "app")
	update(t, secret)
	limit(0)
	if again := must.Value(claims.Get(t.Context(), "auto-1", tokens.Live))(t); again.Remaining().CertificateDuration != time.Hour {
		t.Errorf("without the label, renewals last %s, want 1h", again.Remaining().CertificateDuration)
	}
}

// A Lease that somebody edited must not lose a limit silently.
func TestMalformedRulesOfClaim(t *testing.T) {
	client := cluster.Shared(t).Client()
	claims := must.Value(secretstore.OpenClaims(t.Context(), client, nil, "default", nil))(t)
	for name, value := range map[string]string{"no-json": "scaler", "unknown": `[{"name":"a","maxNodes":1}]`, "short": `[{"name":"a","certificateSeconds":1}]`, "overflow": `[{"name":"a","certificateSeconds":9223372036854775807}]`} {
		holder := "abcdef"
		must.Value(client.CoordinationV1().Leases("default").Create(t.Context(), leaseOf("rules-"+name, holder, value), metav1.CreateOptions{}))(t)
		if c, err := claims.Get(t.Context(), "rules-"+name, tokens.Live); err == nil || !strings.Contains(err.Error(), "malformed claim") {
			t.Errorf("%s: got %+v, %v, want a malformed claim", name, c.Limits, err)
		}
		must.OK(t, client.CoordinationV1().Leases("default").Delete(t.Context(), "rules-"+name, metav1.DeleteOptions{}))
	}
}

func leaseOf(node, holder, rules string) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{"kubejoin.io/claim": "true", "kubejoin.io/token-id": holder}, Annotations: map[string]string{"rules.kubejoin.io/limits": rules}},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder},
	}
}
