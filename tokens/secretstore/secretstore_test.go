package secretstore_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/cluster-bootstrap/token/api"
)

func TestMain(m *testing.M) { cluster.Main(m) }

// lag is how long caches may lag behind writes on a busy machine.
const lag = wait.Most

// open opens a store in the shared cluster. It deletes all tokens before and after the test.
func open(t testing.TB, log *slog.Logger) *secretstore.Store {
	t.Helper()
	client := cluster.Shared(t).Client()
	clear := func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		return client.CoreV1().Secrets(metav1.NamespaceSystem).DeleteCollection(ctx, metav1.DeleteOptions{},
			metav1.ListOptions{FieldSelector: "type=" + string(api.SecretTypeBootstrapToken)})
	}
	must.OK(t, clear(t.Context()))
	ctx, cancel := context.WithCancel(context.Background())
	s := must.Value(secretstore.Open(ctx, client, log))(t)
	t.Cleanup(func() {
		cancel()
		if err := clear(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) tokens.Store { return open(t, nil) })
}

// waitTokens calls List at every hint until the condition holds.
func waitTokens(t testing.TB, s tokens.Store, what string, done func([]tokens.Record) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lag)
	defer cancel()
	hints := s.Watch(ctx)
	var all []tokens.Record
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

func put(t *testing.T, secret *corev1.Secret) *corev1.Secret {
	t.Helper()
	return must.Value(cluster.Shared(t).Client().CoreV1().Secrets(secret.Namespace).Create(t.Context(), secret, metav1.CreateOptions{}))(t)
}

func TestSecretHasFormatOfKubeadm(t *testing.T) {
	s := open(t, nil)
	token := tokens.Generate()
	r := must.Value(s.Create(t.Context(), tokens.Record{
		Token: token, Signing: true, Authentication: true, Description: "d",
		Groups:  []string{"system:bootstrappers:b", "system:bootstrappers:a"},
		Expires: time.Date(2040, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600)),
	}))(t)
	secret := must.Value(cluster.Shared(t).Client().CoreV1().Secrets("kube-system").Get(t.Context(), "bootstrap-token-"+token.ID(), metav1.GetOptions{}))(t)
	got := map[string]string{}
	for k, v := range secret.Data {
		got[k] = string(v)
	}
	want := map[string]string{
		"token-id":                       token.ID(),
		"token-secret":                   token.RevealSecret(),
		"expiration":                     "2040-01-02T02:04:05Z",
		"usage-bootstrap-signing":        "true",
		"usage-bootstrap-authentication": "true",
		"auth-extra-groups":              "system:bootstrappers:b,system:bootstrappers:a",
		"description":                    "d",
	}
	if secret.Type != "bootstrap.kubernetes.io/token" || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("Secret of type %s with %v, want %v", secret.Type, got, want)
	}
	// Update removes the keys of zero fields from the Secret.
	must.Value(s.Update(t.Context(), token.ID(), func(c *tokens.Record) error {
		*c = tokens.Record{Token: c.Token, UID: c.UID, Created: c.Created}
		return nil
	}))(t)
	secret = must.Value(cluster.Shared(t).Client().CoreV1().Secrets("kube-system").Get(t.Context(), secret.Name, metav1.GetOptions{}))(t)
	if len(secret.Data) != 2 || secret.ResourceVersion == r.Version {
		t.Errorf("got %d keys for a record with zero fields, want the two of the token", len(secret.Data))
	}
}

// Update must not change keys, labels, annotations and values that other programs wrote.
func TestUpdateKeepsValuesOfOthers(t *testing.T) {
	s := open(t, nil)
	token := tokens.Generate()
	secret := put(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "kube-system", Name: "bootstrap-token-" + token.ID(),
			Labels: map[string]string{"l": "1"}, Annotations: map[string]string{"example.com/a": "2"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "y"}},
		},
		Type: api.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": token.ID(), "token-secret": token.RevealSecret(), "foreign": "\x00\xff",
			"usage-bootstrap-signing": "false", "usage-bootstrap-authentication": "true",
			"expiration":        "2040-01-02T03:04:05.5+01:00",
			"auth-extra-groups": "system:bootstrappers:z,system:bootstrappers:a,system:bootstrappers:z",
		},
	})
	r := must.Value(s.Update(t.Context(), token.ID(), func(c *tokens.Record) error {
		if want := []string{"system:bootstrappers:z", "system:bootstrappers:a"}; !slices.Equal(c.Groups, want) {
			t.Errorf("groups %q, want %q", c.Groups, want)
		}
		c.Description = "changed"
		return nil
	}))(t)
	if r.Problem != nil || r.Signing || !r.Authentication || r.Expires.Nanosecond() == 0 {
		t.Errorf("Update gives %+v", r)
	}
	after := must.Value(cluster.Shared(t).Client().CoreV1().Secrets("kube-system").Get(t.Context(), secret.Name, metav1.GetOptions{}))(t)
	want := secret.DeepCopy()
	want.Data["description"] = []byte("changed")
	want.ResourceVersion, want.ManagedFields = after.ResourceVersion, after.ManagedFields
	if got := after.String(); got != want.String() {
		t.Errorf("the Secret is\n%s\nwant\n%s", got, want)
	}
}

// TestTokensThatKubeAPIServerAccepts checks which tokens a real kube-apiserver accepts, and as which user.
func TestTokensThatKubeAPIServerAccepts(t *testing.T) {
	s := open(t, nil)
	group := "system:bootstrappers:kubejoin:test"
	tests := []struct {
		name string
		r    tokens.Record
		ok   bool
	}{
		{"for signing only", tokens.Record{Signing: true}, false},
		{"that has expired", tokens.Record{Authentication: true, Expires: time.Now().Add(-time.Minute)}, false},
		{"that never expires", tokens.Record{Authentication: true}, true},
		{"for authentication", tokens.Record{Authentication: true, Groups: []string{group}, Expires: time.Now().Add(time.Hour)}, true},
	}
	for i := range tests {
		tests[i].r.Token = tokens.Generate()
		r := must.Value(s.Create(t.Context(), tests[i].r))(t)
		tests[i].r = r
	}
	// Begin with the last token: when it is in the cache of kube-apiserver, all are.
	for _, test := range slices.Backward(tests) {
		review, err := whoami(t, test.r.Token, test.ok)
		if !test.ok {
			if !apierrors.IsUnauthorized(err) {
				t.Errorf("token %s: got %v, want unauthorized", test.name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("token %s: %v", test.name, err)
			continue
		}
		user := review.Status.UserInfo
		want := append([]string{"system:authenticated", "system:bootstrappers"}, test.r.Groups...)
		slices.Sort(user.Groups)
		slices.Sort(want)
		if user.Username != "system:bootstrap:"+test.r.Token.ID() || !slices.Equal(user.Groups, want) {
			t.Errorf("token %s: got user %s of groups %q, want %q", test.name, user.Username, user.Groups, want)
		}
	}
}

// whoami does what 'kubectl auth whoami' does with the token. If patient, it retries, because the token cache
// of kube-apiserver may lag.
func whoami(t *testing.T, token tokens.Token, patient bool) (*authenticationv1.SelfSubjectReview, error) {
	t.Helper()
	config := rest.AnonymousClientConfig(cluster.Shared(t).AdminConfig())
	config.BearerToken = token.Reveal()
	client := must.Value(kubernetes.NewForConfig(config))(t)
	deadline := time.Now().Add(lag)
	for {
		review, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if !patient || !apierrors.IsUnauthorized(err) || time.Now().After(deadline) {
			return review, err
		}
	}
}
