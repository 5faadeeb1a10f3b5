package secretstore_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/logs"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// openClaims opens claims in a new namespace.
func openClaims(t testing.TB, log *slog.Logger) (*secretstore.Claims, typedcoordinationv1.LeaseInterface) {
	t.Helper()
	return openClaimsOf(t, open(t, nil), log)
}

// openClaimsOf is openClaims for the tokens of a store.
func openClaimsOf(t testing.TB, store tokens.Store, log *slog.Logger) (*secretstore.Claims, typedcoordinationv1.LeaseInterface) {
	t.Helper()
	client := cluster.Shared(t).Client()
	namespace := must.Value(client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "claims-"}}, metav1.CreateOptions{}))(t)
	s := must.Value(secretstore.OpenClaims(t.Context(), client, store, namespace.Name, log))(t)
	return s, client.CoordinationV1().Leases(namespace.Name)
}

func TestCommit(t *testing.T) {
	storetest.RunCommit(t, func(t *testing.T) (tokens.Store, tokens.Claims) {
		store := open(t, nil)
		claims, _ := openClaimsOf(t, store, nil)
		return store, claims
	})
}

// The steps must do the same over stores whose writes are as fast as their reads.
func TestCommitInSteps(t *testing.T) {
	storetest.RunCommit(t, func(*testing.T) (tokens.Store, tokens.Claims) {
		db := memdb.Open()
		return db, secretstore.Steps{Claims: db.Claims(), Tokens: db}
	})
}

func TestClaims(t *testing.T) {
	storetest.RunClaims(t, func(t *testing.T) tokens.Claims {
		s, _ := openClaims(t, nil)
		return s
	})
}

// waitClaims calls List at every hint until the condition holds.
func waitClaims(t *testing.T, s *secretstore.Claims, what string, done func([]tokens.Claim) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lag)
	defer cancel()
	hints := s.Watch(ctx)
	var all []tokens.Claim
	for {
		select {
		case <-hints:
		case <-ctx.Done():
			t.Fatalf("after %v List gives %+v, want %s", lag, all, what)
		}

		all = must.Value(s.List(ctx))(t)
		if done(all) {
			return
		}
	}
}

func claim(node string) tokens.Claim {
	return tokens.Claim{
		Node: node, TokenID: "abc123", TokenUID: "u",
		Limits: tokens.Limits{MaxNodes: 2, NodeNames: []string{"a", "w*"}, CertificateDuration: 8 * time.Hour},
		Keys:   []string{"sha256:1", "sha256:2"}, Requests: []string{"r1", "r2"},
	}
}

// A Lease that is not a claim, even one with the name of a node, must stay unchanged and unlisted.
func TestIgnoresOtherLease(t *testing.T) {
	s, leases := openClaims(t, nil)
	holder := "pod-1"
	lease, err := leases.Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "worker-2"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	must.Value(storetest.CreateClaim(t.Context(), s, claim("worker-1")))(t)
	waitClaims(t, s, "worker-1", func(all []tokens.Claim) bool { return len(all) == 1 && all[0].Node == "worker-1" })
	_, getErr := s.Get(t.Context(), "worker-2", tokens.Live)
	_, findErr := s.Get(t.Context(), "worker-2", tokens.Cached)
	for what, err := range map[string]error{"Get": getErr, "cached Get": findErr} {
		if !errors.Is(err, tokens.ErrNotFound) {
			t.Errorf("%s = %v, want ErrNotFound", what, err)
		}
	}
	_, err = storetest.CreateClaim(t.Context(), s, claim("worker-2"))
	if !errors.Is(err, tokens.ErrExists) || !strings.Contains(err.Error(), "Lease "+lease.Namespace+"/worker-2") {
		t.Errorf("Create = %v, want ErrExists that names the Lease", err)
	}
	after, err := leases.Get(t.Context(), "worker-2", metav1.GetOptions{})
	if err != nil || after.ResourceVersion != lease.ResourceVersion {
		t.Errorf("got other Lease %+v, %v, want it unchanged", after, err)
	}
}

// A claim that someone edited to a malformed one must keep its name taken. Errors must say what is wrong.
func TestMalformedClaimKeepsName(t *testing.T) {
	var log logs.Buffer
	s, leases := openClaims(t, slog.New(slog.NewTextHandler(&log, nil)))
	for node, change := range map[string]func(*coordinationv1.Lease){
		"holder":   func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = nil },
		"max":      func(l *coordinationv1.Lease) { l.Annotations["kubejoin.io/max-nodes"] = "many" },
		"unknown":  func(l *coordinationv1.Lease) { l.Annotations["kubejoin.io/zone"] = "eu" },
		"keys":     func(l *coordinationv1.Lease) { l.Annotations["kubejoin.io/keys"] = "a,,b" },
		"requests": func(l *coordinationv1.Lease) { l.Annotations["kubejoin.io/requests"] = "a b" },
	} {
		must.Value(storetest.CreateClaim(t.Context(), s, claim(node)))(t)
		lease, err := leases.Get(t.Context(), node, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		change(lease)
		must.Value(leases.Update(t.Context(), lease, metav1.UpdateOptions{}))(t)
		waitClaims(t, s, "no malformed claim", func(all []tokens.Claim) bool {
			_, err := s.Get(t.Context(), node, tokens.Cached)
			return len(all) == 0 && !errors.Is(err, tokens.ErrNotFound)
		})
		_, getErr := s.Get(t.Context(), node, tokens.Live)
		_, findErr := s.Get(t.Context(), node, tokens.Cached)
		_, createErr := storetest.CreateClaim(t.Context(), s, claim(node))
		for what, err := range map[string]error{"Get": getErr, "cached Get": findErr, "Create": createErr} {
			if err == nil || errors.Is(err, tokens.ErrNotFound) || errors.Is(err, tokens.ErrConflict) || !strings.Contains(err.Error(), "Lease "+lease.Namespace+"/"+node+" is ") {
				t.Errorf("%s of %s = %v, want an error other than ErrNotFound that names the Lease", what, node, err)
			}
		}
	}
	if of, err := s.HeldBy(t.Context(), "abc123", tokens.Cached); err != nil || len(of) > 0 {
		t.Errorf("cached HeldBy = %+v, %v, want no malformed claim", of, err)
	}
	// HeldBy must fail, because without these claims the token could claim more names than its limit.
	if held, err := s.HeldBy(t.Context(), "abc123", tokens.Live); err == nil || errors.Is(err, tokens.ErrNotFound) || !strings.Contains(err.Error(), "/unknown is ") {
		t.Errorf("HeldBy = %+v, %v, want an error that names the malformed claim", held, err)
	}
	if held, err := s.HeldBy(t.Context(), "def456", tokens.Live); err != nil || len(held) > 0 {
		t.Errorf("HeldBy of another token = %+v, %v, want none", held, err)
	}
	// Make another change: the warning about the first one is logged shortly after List shows it.
	must.Value(storetest.CreateClaim(t.Context(), s, claim("worker-1")))(t)
	waitClaims(t, s, "worker-1", func(all []tokens.Claim) bool { return len(all) == 1 })
	for _, part := range []string{"/holder ", "/max ", "/unknown ", "/keys ", "/requests ", `max-nodes: \"many\" given, want 1 to 1000`} {
		if strings.Count(log.String(), part) != 1 {
			t.Errorf("got log without exactly one line with %q:\n%s", part, log.String())
		}
	}

	// A Lease that lost its label is not a claim, but still occupies the name.
	lease := must.Value(leases.Get(t.Context(), "worker-1", metav1.GetOptions{}))(t)
	delete(lease.Labels, "kubejoin.io/claim")
	must.Value(leases.Update(t.Context(), lease, metav1.UpdateOptions{}))(t)
	waitClaims(t, s, "none", func(all []tokens.Claim) bool { return len(all) == 0 })
	if _, err := s.Get(t.Context(), "worker-1", tokens.Cached); !errors.Is(err, tokens.ErrNotFound) {
		t.Errorf("cached Get of a Lease without the label = %v, want ErrNotFound", err)
	}
	if _, err := storetest.CreateClaim(t.Context(), s, claim("worker-1")); !errors.Is(err, tokens.ErrExists) {
		t.Errorf("Create of a Lease without the label = %v, want ErrExists", err)
	}
}

// The API server must compare the version and the UID in a patch and in a deletion: otherwise a claim could overwrite that of another token.
// An API server that was restored from a backup may assign a version twice.
func TestWritesOnlyVersionBefore(t *testing.T) {
	s, leases := openClaims(t, nil)
	first := claim("worker-1")
	first.NodeUID = "n"
	before := must.Value(storetest.CreateClaim(t.Context(), s, first))(t)
	after := before.Clone()
	after.NodeUID, after.Limits, after.Keys = "", tokens.Limits{}, []string{"sha256:3"}
	stale, uid, gone := before.Clone(), before.Clone(), after.Clone()
	stale.Version, uid.UID, gone.Node = "1", "8c1d3c0e-6a55-4bb5-b0a4-1d6d6e3e7f0a", "worker-2"
	for name, change := range map[string]tokens.ClaimChange{
		"another version": {Before: stale, After: after}, "another UID": {Before: uid, After: after}, "no claim": {Before: before, After: gone},
	} {
		if got, err := s.Patch(t.Context(), change.Before, change.After); !errors.Is(err, tokens.ErrConflict) {
			t.Errorf("%s: Patch = %+v, %v, want ErrConflict", name, got, err)
		}
	}
	for name, other := range map[string]tokens.Claim{"another version": stale, "another UID": uid} {
		if err := storetest.DeleteClaim(t.Context(), s, other); !errors.Is(err, tokens.ErrConflict) {
			t.Errorf("%s: deletion = %v, want ErrConflict", name, err)
		}
	}
	if got := must.Value(s.Get(t.Context(), "worker-1", tokens.Live))(t); !got.Equal(before) {
		t.Errorf("after refused writes: got %+v, want %+v", got, before)
	}
	got := must.Value(s.Patch(t.Context(), before, after))(t)
	if after.Version = got.Version; !got.Equal(after) {
		t.Errorf("Patch gives\n%+v\nwant\n%+v", got, after)
	}
	released := must.Value(s.Patch(t.Context(), got, got.AfterRelease(tokens.ReleasedClaim{Until: time.Now().Add(time.Hour).UTC().Truncate(time.Second)})))(t)
	lease := must.Value(leases.Get(t.Context(), "worker-1", metav1.GetOptions{}))(t)
	if !released.Released() || lease.Spec.HolderIdentity != nil || len(lease.Labels) != 1 || len(lease.Annotations) != 1 {
		t.Errorf("got Lease %+v, want no holder, one label and one annotation after the release", lease)
	}
}

// awaitForbidden calls read until its error has the reason why the cache is empty. The cache knows it after its first
// list.
func awaitForbidden(t *testing.T, read func(context.Context) error) {
	t.Helper()
	for deadline := time.Now().Add(lag); ; {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		err := read(ctx)
		cancel()
		if apierrors.IsForbidden(err) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s the error is %v, want the reason", lag, err)
		}
	}
}

// If the namespace does not exist, Create must return the command that creates it. The error must not wrap
// ErrNotFound, which means that the name is free.
func TestReportsMissingNamespace(t *testing.T) {
	s := must.Value(secretstore.OpenClaims(t.Context(), cluster.Shared(t).Client(), open(t, nil), "no-such-namespace", nil))(t)
	_, createErr := storetest.CreateClaim(t.Context(), s, claim("worker-7"))
	for what, err := range map[string]error{"Ready": s.Ready(t.Context()), "Create": createErr} {
		if !errors.Is(err, secretstore.ErrNoNamespace) || errors.Is(err, tokens.ErrNotFound) || !strings.Contains(err.Error(), "kubectl create namespace no-such-namespace") {
			t.Errorf("%s = %v, want ErrNoNamespace with the command", what, err)
		}
	}
	if createErr == nil || !strings.Contains(createErr.Error(), "worker-7") {
		t.Errorf("Create = %v, want the node name in it", createErr)
	}
	if _, err := secretstore.OpenClaims(t.Context(), cluster.Shared(t).Client(), nil, "", nil); err == nil {
		t.Error("OpenClaims without a namespace succeeds")
	}
	there, leases := openClaims(t, nil)
	if err := there.Ready(t.Context()); err != nil {
		t.Errorf("Ready = %v", err)
	}
	if list, err := leases.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
		t.Errorf("Ready left %d Leases, %v", len(list.Items), err)
	}
}
