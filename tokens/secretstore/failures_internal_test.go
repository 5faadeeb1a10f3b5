package secretstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/kube/kubecache"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
)

var errDown = errors.New("down")

// failsOnce makes the next call of a fake client fail.
func failsOnce(c *fake.Clientset, verb, resource string, err error) {
	failed := false
	c.PrependReactor(verb, resource, func(a kubetesting.Action) (bool, runtime.Object, error) {
		if failed {
			return false, nil, nil
		}
		failed = true
		if write, ok := a.(kubetesting.UpdateAction); ok {
			return true, write.GetObject(), err
		}
		return true, nil, err
	})
}

// calls counts the calls of a fake client.
func calls(c *fake.Clientset, verb string) (n int) {
	for _, a := range c.Actions() {
		if a.GetVerb() == verb {
			n++
		}
	}
	return n
}

func claimsOn(c *fake.Clientset) *Claims {
	return &Claims{leases: c.CoordinationV1().Leases("ns"), namespace: "ns"}
}

func conflict() error {
	return apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, "worker-1", errDown)
}

var worker = tokens.Claim{Node: "worker-1", TokenID: "abc123", TokenUID: "u", Keys: []string{"sha256:1"}}

// fixedSecrets is a resource that never changes. Its list waits for the channel.
type fixedSecrets struct {
	items []corev1.Secret
	open  <-chan struct{}
}

func (f fixedSecrets) List(ctx context.Context, _ metav1.ListOptions) (*corev1.SecretList, error) {
	select {
	case <-f.open:
		return &corev1.SecretList{Items: f.items}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (fixedSecrets) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return watch.NewFake(), nil
}

// tokenCache is a cache of Secrets. It is filled when the channel is closed.
func tokenCache(t testing.TB, open <-chan struct{}, secrets ...*corev1.Secret) *kubecache.Cache[*corev1.Secret, *cachedToken] {
	source := fixedSecrets{open: open}
	for _, s := range secrets {
		source.items = append(source.items, *s)
	}
	return kubecache.Open(t.Context(), fake.NewClientset(), source, "", kubecache.Config[*corev1.Secret, *cachedToken]{What: "tokens", Decode: (&Store{}).decodeCached})
}

// filledTokenCache is a cache that is filled.
func filledTokenCache(t testing.TB, secrets ...*corev1.Secret) *kubecache.Cache[*corev1.Secret, *cachedToken] {
	t.Helper()
	open := make(chan struct{})
	close(open)
	c := tokenCache(t, open, secrets...)
	must.Value(c.List(t.Context()))(t)
	return c
}

// A cached Get must return ErrNotFound only for a token that does not exist: the signer refuses its nodes permanently.
func TestFindReturnsNotFoundOnlyForMissingToken(t *testing.T) {
	other := encode(tokens.Record{Token: tokens.Generate()})
	other.Type = corev1.SecretTypeOpaque
	id := other.Name[len(other.Name)-6:]
	open := make(chan struct{})
	s := &Store{cache: tokenCache(t, open, other)}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := s.Get(ctx, id, tokens.Cached); !errors.Is(err, context.Canceled) || errors.Is(err, tokens.ErrNotFound) {
		t.Errorf("before the first list: %v", err)
	}
	close(open)
	if r, err := s.Get(t.Context(), id, tokens.Cached); !errors.Is(err, tokens.ErrNotFound) {
		t.Errorf("Secret of another type: got %+v, %v", r, err)
	}
	whole := tokens.Generate().Reveal()
	if _, err := s.Get(t.Context(), whole, tokens.Cached); !errors.Is(err, tokens.ErrMalformed) {
		t.Errorf("whole token as ID: got %v", err)
	}
}

// HeldBy must not treat a failed list as empty: the token could claim more names than its limit.
func TestHeldByFailsIfListFails(t *testing.T) {
	c := fake.NewClientset(encodeLease("ns", worker))
	s := claimsOn(c)
	failsOnce(c, "list", "leases", errDown)
	if all, err := s.HeldBy(t.Context(), "abc123", tokens.Live); !errors.Is(err, errDown) {
		t.Errorf("HeldBy = %+v, %v", all, err)
	}
	if all, err := s.HeldBy(t.Context(), "abc123", tokens.Live); err != nil || len(all) != 1 {
		t.Errorf("HeldBy = %+v, %v, want one", all, err)
	}
}

// Update of a token must retry after a conflict, and return every other error. The patch of a claim returns both.
func TestUpdateRetriesOnlyConflicts(t *testing.T) {
	for err, want := range map[error]struct{ claim, token error }{errDown: {errDown, errDown}, conflict(): {claim: tokens.ErrConflict}} {
		secret := encode(tokens.Record{Token: tokens.Generate()})
		c := fake.NewClientset(encodeLease("ns", worker), secret)
		failsOnce(c, "patch", "leases", err)
		failsOnce(c, "update", "secrets", err)
		s := &Store{secrets: c.CoreV1().Secrets("kube-system")}
		_, claimErr := claimsOn(c).patch(t.Context(), worker, worker)
		_, tokenErr := s.Update(t.Context(), secret.Name[len(secret.Name)-6:], func(r *tokens.Record) error { r.Description = "d"; return nil })
		if !errors.Is(claimErr, want.claim) || !errors.Is(tokenErr, want.token) {
			t.Errorf("after %v: claim %v, token %v; want %v", err, claimErr, tokenErr, want)
		}
	}
}

// Update fails if change clears a Problem but not its cause. Names over the limit are not dropped: that would let a
// token with names join under any name.
func TestUpdateFailsIfCauseOfProblemStays(t *testing.T) {
	var names []string
	for i := range 10_000 {
		names = append(names, fmt.Sprint("worker-", i))
	}
	for name, spoil := range map[string]func(*corev1.Secret){
		"expiration": func(s *corev1.Secret) { s.Data["expiration"] = []byte("soon") },
		"node-names": func(s *corev1.Secret) { annotate(s, "node-names", strings.Join(names, ",")) },
	} {
		secret := encode(tokens.Record{Token: tokens.Generate()})
		spoil(secret)
		c := fake.NewClientset(secret)
		s := &Store{secrets: c.CoreV1().Secrets(metav1.NamespaceSystem)}
		_, err := s.Update(t.Context(), secret.Name[len(secret.Name)-6:], func(r *tokens.Record) error {
			r.Problem, r.Limits.Problem = nil, nil
			return nil
		})
		if err == nil || calls(c, "update") > 0 {
			t.Errorf("%s: %v, and %d writes", name, err, calls(c, "update"))
		}
	}
}

// A Secret of another type has the name of a token, and no retry changes that. Catches an error that asks the caller to retry.
func TestCreateRefusesNameOfOtherSecret(t *testing.T) {
	r := tokens.Record{Token: tokens.Generate()}
	other := encode(r)
	other.Type = corev1.SecretTypeOpaque
	s := &Store{secrets: fake.NewClientset(other).CoreV1().Secrets(metav1.NamespaceSystem)}
	_, err := s.Create(t.Context(), r)
	no, found := errors.AsType[*tokens.Refusal](err)
	if !found || no.Retry || !errors.Is(err, tokens.ErrRefused) || errors.Is(err, tokens.ErrExists) || !strings.Contains(no.Message, `the type "Opaque", so it is no bootstrap token`) {
		t.Errorf("got %v, want a refusal that names the type", err)
	}
}
