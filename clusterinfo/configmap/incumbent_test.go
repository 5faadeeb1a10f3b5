package configmap_test

import (
	"context"
	"fmt"
	"strings"
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

// The signers of kube-controller-manager and kubejoin must agree: each writes missing signatures, and neither writes
// if nothing is missing.
func TestSignerBesideKubeControllerManager(t *testing.T) {
	f := setUp(t)
	store := must.Value(secretstore.Open(t.Context(), f.client, nil))(t)
	kcm := must.Value(f.StartKCM(t.Context(), "--controllers=bootstrap-signer-controller"))(t)
	t.Cleanup(func() { kcm.Stop(0) })
	s := f.signer()
	s.Tokens = store
	stop := run(t, s)

	mint := func(expires time.Time) tokens.Record {
		t.Helper()
		r := must.Value(store.Create(t.Context(), tokens.Record{Token: tokens.Generate(), Signing: true, Expires: expires}))(t)
		t.Cleanup(func() { removeSecret(t, f, r.Token.ID()) })
		return r
	}
	var records []tokens.Record
	for range 10 {
		records = append(records, mint(time.Time{}))
	}
	expires := mint(time.Now().Add(3 * time.Second).Truncate(time.Second))
	create := func(id, secret string) {
		t.Helper()
		must.Value(f.client.CoreV1().Secrets("kube-system").Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id},
			Type:       "bootstrap.kubernetes.io/token",
			StringData: map[string]string{"token-id": id, "token-secret": secret, "usage-bootstrap-signing": "true"},
		}, metav1.CreateOptions{}))(t)
		t.Cleanup(func() { removeSecret(t, f, id) })
	}
	// kube-controller-manager signs with a published secret. kubejoin does not.
	create("abcdef", "0123456789abcdef")
	// No kubeadm accepts these secrets, but both sign with them.
	var malformed []tokens.Token
	for i, secret := range []string{"x", "0123456789ABCDEF", strings.Repeat("y", 40), strings.Repeat("zé", 50)} {
		token := must.Value(tokens.ForSigning(fmt.Sprintf("odd%03d", i), secret))(t)
		create(token.ID(), secret)
		malformed = append(malformed, token)
	}

	for _, r := range records {
		f.waitSigned(t, r.Token)
	}
	for _, token := range malformed {
		f.waitSigned(t, token)
	}
	publishedKey := clusterinfo.SignatureKey("abcdef")
	f.eventually(t, "kube-controller-manager's signature", func(data map[string]string) bool { return data[publishedKey] != "" })
	f.eventually(t, "no signature of the expired token", func(data map[string]string) bool {
		return data[clusterinfo.SignatureKey(expires.Token.ID())] == ""
	})
	removeSecret(t, f, records[0].Token.ID())
	f.eventually(t, "no signature of the deleted token", func(data map[string]string) bool {
		return data[clusterinfo.SignatureKey(records[0].Token.ID())] == ""
	})
	f.edit(t, func(data map[string]string) { data[clusterinfo.SignatureKey(records[1].Token.ID())] = "e30..AA" })
	f.waitSigned(t, records[1].Token)
	f.quiet(t, "after edits")

	// Alternate the signers: each signer takes over without a write, and signs with malformed secrets.
	unsign := func() {
		f.edit(t, func(data map[string]string) {
			for _, token := range malformed {
				delete(data, clusterinfo.SignatureKey(token.ID()))
			}
		})
		wait.OK(t, "tokens with malformed secrets are signed", func() error {
			data := f.get(t).Data // not from a cache, which may be older than the edit
			for _, token := range malformed {
				if err := clusterinfo.Verify([]byte(data[clusterinfo.KubeconfigKey]), data[clusterinfo.SignatureKey(token.ID())], token); err != nil {
					return fmt.Errorf("token %s: %w", token.ID(), err)
				}
			}
			return nil
		})
	}
	stop()
	f.quiet(t, "kube-controller-manager alone")
	unsign()
	kcm.Stop(0)
	run(t, s)
	f.quiet(t, "ours alone")
	unsign()
	f.waitSigned(t, records[2].Token)
	if data := f.get(t).Data; data[publishedKey] == "" {
		t.Error("the signature with a published secret is missing")
	}
}

// quiet fails the test if cluster-info is written although nothing changes.
func (f *fixture) quiet(t *testing.T, when string) {
	t.Helper()
	version := f.settled(t, 3*time.Second).ResourceVersion // caches may lag for 3 s
	if now := f.settled(t, 1500*time.Millisecond).ResourceVersion; now != version {
		t.Errorf("%s: got version %s, then %s, want no write", when, version, now)
	}
}

func removeSecret(t *testing.T, f *fixture, id string) {
	t.Helper()
	// Not t.Context(): cleanup runs after it has ended.
	err := f.client.CoreV1().Secrets("kube-system").Delete(context.WithoutCancel(t.Context()), "bootstrap-token-"+id, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}
