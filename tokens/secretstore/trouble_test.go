package secretstore_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/logs"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/cluster-bootstrap/token/api"
)

// The store must log each problem once per change, and never a secret.
func TestLogsProblemOncePerChange(t *testing.T) {
	var log logs.Buffer
	s := open(t, slog.New(slog.NewTextHandler(&log, nil)))
	good, bad := tokens.Generate(), tokens.Generate()
	secret := func(token tokens.Token, name string) *corev1.Secret {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name},
			Type:       api.SecretTypeBootstrapToken,
			StringData: map[string]string{"token-id": token.ID(), "token-secret": token.RevealSecret()},
		}
	}
	put(t, secret(good, "bootstrap-token-"+good.ID()))
	put(t, secret(good, "my-token"))
	broken := secret(bad, "bootstrap-token-"+bad.ID())
	broken.StringData["token-id"] = bad.Reveal()
	broken = put(t, broken)
	waitTokens(t, s, "two tokens", func(all []tokens.Record) bool { return len(all) == 2 })

	broken.Labels = map[string]string{"a": "b"}
	broken = must.Value(cluster.Shared(t).Client().CoreV1().Secrets("kube-system").Update(t.Context(), broken, metav1.UpdateOptions{}))(t)
	waitTokens(t, s, "the change", func(all []tokens.Record) bool {
		return slices.ContainsFunc(all, func(r tokens.Record) bool { return r.Version == broken.ResourceVersion })
	})
	_, updateErr := s.Update(t.Context(), bad.ID(), func(*tokens.Record) error { return nil })
	_, createErr := s.Create(t.Context(), tokens.Record{Token: bad})
	for _, err := range []error{updateErr, createErr} {
		if err == nil || strings.Contains(err.Error(), bad.RevealSecret()) {
			t.Errorf("got %v, want an error without the secret", err)
		}
	}
	// Make another change: the warning about the first one is logged shortly after List shows it.
	another := tokens.Generate()
	put(t, secret(another, "bootstrap-token-"+another.ID()))
	waitTokens(t, s, "three tokens", func(all []tokens.Record) bool { return len(all) == 3 })
	text := log.String()
	if strings.Count(text, "secret=my-token") != 1 || strings.Count(text, "token="+bad.ID()) != 2 || strings.Contains(text, "token="+good.ID()) {
		t.Errorf("got log without one line for my-token, two for %s and none for %s:\n%s", bad.ID(), good.ID(), text)
	}
	for _, token := range []tokens.Token{good, bad} {
		if strings.Contains(text, token.RevealSecret()) {
			t.Errorf("got log with a secret:\n%s", text)
		}
	}
}

// A Secret with a finalizer that is being deleted must be listed, but must not be usable.
func TestDeletingTokenIsUnusable(t *testing.T) {
	s := open(t, nil)
	secrets := cluster.Shared(t).Client().CoreV1().Secrets("kube-system")
	r := must.Value(s.Create(t.Context(), tokens.Record{Token: tokens.Generate(), Signing: true, Authentication: true}))(t)
	name := "bootstrap-token-" + r.Token.ID()
	patch := func(finalizers string) {
		t.Helper()
		must.Value(secrets.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"finalizers":`+finalizers+`}}`), metav1.PatchOptions{}))(t)
	}
	patch(`["example.com/keep"]`)
	must.OK(t, secrets.Delete(t.Context(), name, metav1.DeleteOptions{}))
	waitTokens(t, s, "a problem", func(all []tokens.Record) bool { return len(all) == 1 && errors.Is(all[0].Problem, tokens.ErrDeleting) })
	got, err := s.Get(t.Context(), r.Token.ID(), tokens.Live)
	if err != nil || got.Token.HasSecret() || !errors.Is(got.Problem, tokens.ErrDeleting) || !strings.Contains(got.Problem.Error(), "example.com/keep") {
		t.Errorf("Get = %+v, %v, want no secret and ErrDeleting with the finalizer", got, err)
	}
	if _, err := s.Update(t.Context(), r.Token.ID(), func(c *tokens.Record) error { c.Description = "x"; return nil }); !errors.Is(err, tokens.ErrDeleting) {
		t.Errorf("Update = %v, want ErrDeleting", err)
	}
	patch("null")
	waitTokens(t, s, "no tokens", func(all []tokens.Record) bool { return len(all) == 0 })
}

// A Secret of another type with the name of a token must not be a token, and must keep the name taken.
func TestIgnoresSecretOfOtherType(t *testing.T) {
	s := open(t, nil)
	token := tokens.Generate()
	secret := put(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-" + token.ID()}})
	if r, err := s.Get(t.Context(), token.ID(), tokens.Live); !errors.Is(err, tokens.ErrNotFound) {
		t.Errorf("Get = %+v, %v, want ErrNotFound", r, err)
	}
	if _, err := s.Create(t.Context(), tokens.Record{Token: token}); !errors.Is(err, tokens.ErrRefused) {
		t.Errorf("Create = %v, want ErrRefused", err)
	}
	waitTokens(t, s, "no tokens", func(all []tokens.Record) bool { return len(all) == 0 })
	must.OK(t, cluster.Shared(t).Client().CoreV1().Secrets("kube-system").Delete(t.Context(), secret.Name, metav1.DeleteOptions{}))
}

// Without permission to list Secrets or Leases, reads of the cache must return that error, and the log must contain it.
func TestReportsForbiddenList(t *testing.T) {
	c := cluster.Shared(t)
	path := must.Value(c.ServiceAccountKubeconfig(t.Context(), "default", "nobody"))(t)
	config := must.Value(c.Config(path))(t)
	client := must.Value(kubernetes.NewForConfig(config))(t)
	var log logs.Buffer
	storeCtx, end := context.WithCancel(t.Context())
	s := must.Value(secretstore.Open(storeCtx, client, slog.New(slog.NewTextHandler(&log, nil))))(t)
	claims := must.Value(secretstore.OpenClaims(storeCtx, client, nil, "default", nil))(t)
	reads := map[string]func(context.Context) error{
		"List":          func(ctx context.Context) error { _, err := s.List(ctx); return err },
		"cached Get":    func(ctx context.Context) error { _, err := claims.Get(ctx, "worker-1", tokens.Cached); return err },
		"claims List":   func(ctx context.Context) error { _, err := claims.List(ctx); return err },
		"cached HeldBy": func(ctx context.Context) error { _, err := claims.HeldBy(ctx, "abc123", tokens.Cached); return err },
	}
	for what, read := range reads {
		awaitForbidden(t, read)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if err := read(ctx); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, tokens.ErrNotFound) || !apierrors.IsForbidden(err) {
			t.Errorf("%s = %v, want the error of the context and the reason", what, err)
		}
		cancel()
	}
	if log := log.String(); !strings.Contains(log, "watch failed") || !strings.Contains(log, `objects="bootstrap tokens"`) {
		t.Errorf("got log without the failed watch of bootstrap tokens:\n%s", log)
	}
	end()
	for what, read := range reads {
		if err := read(t.Context()); err == nil || !strings.Contains(err.Error(), "context of the watch has ended") {
			t.Errorf("%s after the context of the store ended = %v", what, err)
		}
	}
	if _, err := secretstore.OpenClaims(t.Context(), client, nil, "", nil); err == nil {
		t.Error("OpenClaims without a namespace succeeds")
	}
}
