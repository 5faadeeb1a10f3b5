package secretstore_test

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/logs"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cluster-bootstrap/token/api"
)

func wantMap(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Errorf("%s are\n%v\nwant\n%v", what, got, want)
	}
}

func secretOf(t *testing.T, token tokens.Token) *corev1.Secret {
	t.Helper()
	return must.Value(cluster.Shared(t).Client().CoreV1().Secrets("kube-system").Get(t.Context(), "bootstrap-token-"+token.ID(), metav1.GetOptions{}))(t)
}

func update(t *testing.T, secret *corev1.Secret) {
	t.Helper()
	must.Value(cluster.Shared(t).Client().CoreV1().Secrets("kube-system").Update(t.Context(), secret, metav1.UpdateOptions{}))(t)
}

// TestAnnotations checks the documented format of the annotations.
func TestAnnotations(t *testing.T) {
	s := open(t, nil)
	r := must.Value(s.Create(t.Context(), tokens.Record{
		Token: tokens.Generate(), Nodes: []string{"worker-2", "worker-1", "worker-3"}, Marks: map[string]string{"worker-1": "-", "worker-3": "!"},
		Limits: tokens.Limits{MaxNodes: 3, NodeNames: []string{"worker-*", "db.example"}, CertificateDuration: 90 * time.Minute, Role: "control-plane"},
	}))(t)
	secret := secretOf(t, r.Token)
	wantMap(t, "annotations", secret.Annotations, map[string]string{
		"kubejoin.io/max-nodes": "3", "kubejoin.io/node-names": "worker-*,db.example", "kubejoin.io/role": "control-plane",
		"kubejoin.io/certificate-duration": "1h30m0s", "kubejoin.io/nodes": "+worker-2,-worker-1,!worker-3",
	})

	// Annotations of others stay, and so do values in another format.
	secret.Annotations["kubejoin.io/certificate-duration"] = "90m"
	secret.Annotations["example.com/a"] = "b"
	secret.Annotations["notkubejoin.io/max-nodes"] = "many"
	update(t, secret)
	change := func(change func(*tokens.Record)) {
		t.Helper()
		must.Value(s.Update(t.Context(), r.Token.ID(), func(c *tokens.Record) error { change(c); return nil }))(t)
	}
	change(func(c *tokens.Record) { c.Nodes = []string{"worker-2", "worker-1", "db.example"} })
	wantMap(t, "annotations", secretOf(t, r.Token).Annotations, map[string]string{
		"kubejoin.io/max-nodes": "3", "kubejoin.io/node-names": "worker-*,db.example", "kubejoin.io/role": "control-plane",
		"kubejoin.io/certificate-duration": "90m", "kubejoin.io/nodes": "+worker-2,-worker-1,+db.example",
		"example.com/a": "b", "notkubejoin.io/max-nodes": "many",
	})
	change(func(c *tokens.Record) {
		c.Limits, c.Nodes = tokens.Limits{Replaces: tokens.NodeRef{Name: "worker-1", UID: "u-1"}}, nil
	})
	wantMap(t, "annotations", secretOf(t, r.Token).Annotations, map[string]string{
		"kubejoin.io/replaces-node": "worker-1/u-1", "example.com/a": "b", "notkubejoin.io/max-nodes": "many",
	})
}

// If another program removes the annotations, the record has no limits. That is why claims store the limits too.
func TestRemovedAnnotationsRemoveLimits(t *testing.T) {
	s := open(t, nil)
	r := must.Value(s.Create(t.Context(), tokens.Record{
		Token: tokens.Generate(), Nodes: []string{"worker-1"}, Limits: tokens.Limits{MaxNodes: 1, CertificateDuration: time.Hour},
	}))(t)
	secret := secretOf(t, r.Token)
	secret.Annotations = nil
	update(t, secret)
	got, err := s.Get(t.Context(), r.Token.ID(), tokens.Live)
	if err != nil || !got.Limits.IsZero() || len(got.Nodes) > 0 || got.Spent() || got.UID != r.UID {
		t.Errorf("Get = %+v, %v, want the token without limits", got, err)
	}
	waitTokens(t, s, "no limits", func(all []tokens.Record) bool { return len(all) == 1 && all[0].Limits.IsZero() })
}

// A token with malformed limits must sign and authenticate as usual. Its Problem must name each error, and
// Update must be able to repair the limits.
func TestMalformedLimits(t *testing.T) {
	var log logs.Buffer
	s := open(t, slog.New(slog.NewTextHandler(&log, nil)))
	token := tokens.Generate()
	put(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "kube-system", Name: "bootstrap-token-" + token.ID(),
			Annotations: map[string]string{
				"kubejoin.io/max-nodes": "0", "kubejoin.io/max-node": "1", "kubejoin.io/role": "control-plane", "kubejoin.io/nodes": "+a,+b,+a", "example.com/a": "b",
			},
		},
		Type: api.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": token.ID(), "token-secret": token.RevealSecret(), "expiration": time.Now().Add(time.Hour).UTC().Format(time.RFC3339),
			"usage-bootstrap-signing": "true", "usage-bootstrap-authentication": "true",
		},
	})
	waitTokens(t, s, "the token", func(all []tokens.Record) bool {
		return len(all) == 1 && all[0].Token.Equal(token) && all[0].Problem == nil && all[0].Limits.Problem != nil
	})
	if _, err := whoami(t, token, true); err != nil {
		t.Errorf("kube-apiserver refused the token: %v", err)
	}
	r, err := s.Get(t.Context(), token.ID(), tokens.Live)
	if err != nil || !r.Signs(time.Now()) || !r.Authentication || r.Problem != nil {
		t.Errorf("Get = %+v, %v, want a token that signs and authenticates", r, err)
	}
	wants := []string{
		`kubejoin.io/max-nodes: "0" given, want 1 to 1000`, "kubejoin.io/max-node: unknown annotation", `kubejoin.io/nodes: "a" is given twice`,
	}
	_, err = s.Update(t.Context(), token.ID(), func(r *tokens.Record) error { r.Description = "x"; return nil })
	for _, want := range wants {
		if r.Limits.Problem == nil || !strings.Contains(r.Limits.Problem.Error(), want) {
			t.Errorf("problem %q, want %q in it", r.Limits.Problem, want)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Update = %v, want %q in it", err, want)
		}
	}
	repaired, err := s.Update(t.Context(), token.ID(), func(r *tokens.Record) error { r.Limits.Problem = nil; return nil })
	if err != nil || repaired.Limits.Problem != nil || repaired.Limits.Role != "control-plane" || !slices.Equal(repaired.Nodes, []string{"a", "b"}) {
		t.Errorf("Update that repairs the limits = %+v, %v", repaired, err)
	}
	wantMap(t, "annotations", secretOf(t, token).Annotations, map[string]string{
		"kubejoin.io/role": "control-plane", "kubejoin.io/nodes": "+a,+b", "example.com/a": "b",
	})
	waitTokens(t, s, "no problem", func(all []tokens.Record) bool { return len(all) == 1 && all[0].Limits.Problem == nil })
	if n := strings.Count(log.String(), "bootstrap token has malformed limits"); n != 1 {
		t.Errorf("got %d log lines about malformed limits, want one:\n%s", n, log.String())
	}
}

// TestTokenForManyLongNames counts as many names as a token can have, and releases some, each as long as a name can be. It
// catches a Secret that outgrows its annotations: then its claims cannot be released.
func TestTokenForManyLongNames(t *testing.T) {
	s := open(t, nil)
	claims, _ := openClaims(t, nil)
	ctx := t.Context()
	pattern := func(i, n int) string { return fmt.Sprintf("%0*d*", n-1, i) }
	r := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
	r.Creator = tokens.CreatorOf("ada")
	r.Limits = tokens.Limits{MaxNodes: tokens.MaxNodes, NodeNames: []string{"*", pattern(0, 252)}, CertificateDuration: 8*time.Hour + time.Second, Role: tokens.RoleControlPlane, Rejoin: tokens.RejoinAllow}
	for i := range 11 {
		r.Limits.NodeNames = append(r.Limits.NodeNames, pattern(i, 253))
	}
	must.OK(t, r.CheckNew())
	r, err := s.Create(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	id := r.Token.ID()
	var names []string
	for i := range tokens.MaxNodes {
		names = append(names, fmt.Sprintf("%0253d", i))
	}
	change := func(change func(*tokens.Record)) {
		t.Helper()
		r = must.Value(s.Update(ctx, id, func(c *tokens.Record) error { change(c); return nil }))(t)
	}
	change(func(c *tokens.Record) { c.Nodes = slices.Clone(names) })
	left := 256 << 10
	for key, value := range secretOf(t, r.Token).Annotations {
		left -= len(key) + len(value)
	}
	if left < 3<<10 {
		t.Errorf("the annotations leave %d bytes to other programs, want 3 KiB", left)
	}
	held := make([]tokens.Claim, 20)
	for i, node := range names[:len(held)] {
		c := claim(node)
		c.TokenID, c.TokenUID, c.Limits = id, r.UID, r.Limits
		if held[i], err = storetest.CreateClaim(ctx, claims, c); err != nil {
			t.Fatalf("claim %d: %v", i, err)
		}
	}
	free := func(node string, change ...tokens.ClaimChange) error {
		if r, err = s.Get(ctx, id, tokens.Live); err != nil {
			return err
		}
		after := r.Clone()
		after.Nodes = slices.DeleteFunc(after.Nodes, func(name string) bool { return name == node })
		outcomes, err := claims.Commit(ctx, r, after, change)
		if len(outcomes) > 0 && outcomes[0].Err != nil {
			err = outcomes[0].Err
		}
		return err
	}
	for i, c := range held {
		if i == 0 {
			if err := free(c.Node); !errors.Is(err, tokens.ErrConflict) {
				t.Errorf("claim %d: got error %v before it is released, want ErrConflict", i, err)
			}
		}
		if err := free(c.Node, tokens.ClaimChange{Before: c, After: c.AfterRelease(c.PastAfterRelease(time.Now(), 0))}); err != nil {
			t.Fatalf("release claim %d: %v", i, err)
		}
	}
	for _, node := range names[len(held) : len(held)+10] { // kubejoin stopped before it wrote these claims
		if err := free(node); err != nil {
			t.Fatalf("free the slot of %s: %v", node, err)
		}
	}
	if r, err = s.Get(ctx, id, tokens.Live); err != nil || len(r.Nodes) != len(names)-30 || len(r.Marks) > 0 {
		t.Errorf("the token counts %d names with %d marks, %v, want 30 fewer and none", len(r.Nodes), len(r.Marks), err)
	}
	marks := map[string]string{}
	for _, name := range names {
		marks[name] = "-"
	}
	change(func(c *tokens.Record) { c.Nodes, c.Marks = slices.Clone(names), marks }) // they join again, and leave
	if got, err := s.Get(ctx, id, tokens.Live); err != nil || len(got.Marks) != len(names) || !got.Spent() {
		t.Errorf("got %d names that have left, %v, want all and a spent token", len(got.Marks), err)
	}
	change(func(c *tokens.Record) { c.Nodes = nil })
	if err := s.Delete(ctx, r); err != nil {
		t.Error(err)
	}
}
