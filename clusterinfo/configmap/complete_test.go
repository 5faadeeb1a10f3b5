package configmap_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
)

// A new token must be signed in the complete cluster-info as soon as the store has it, over the current kubeconfig of
// the ConfigMap. The ConfigMap itself stays unsigned.
func TestCompleteFollowsConfigMap(t *testing.T) {
	f := setUp(t)
	store := must.Value(secretstore.Open(t.Context(), f.client, nil))(t)
	info := f.live.Complete(store, nil)
	mint := func() tokens.Record {
		t.Helper()
		r := must.Value(store.Create(t.Context(), tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())))(t)
		t.Cleanup(func() {
			if err := store.Delete(context.Background(), r); err != nil && !errors.Is(err, tokens.ErrNotFound) {
				t.Error(err)
			}
		})
		return r
	}
	signed := func(r tokens.Record, kubeconfig string) {
		t.Helper()
		data := must.Value(info.Data(t.Context()))(t)
		if data["kubeconfig"] != kubeconfig {
			t.Errorf("kubeconfig %s, want %s", data["kubeconfig"], kubeconfig)
		}
		if err := clusterinfo.Verify([]byte(kubeconfig), data[clusterinfo.SignatureKey(r.Token.ID())], r.Token); err != nil {
			t.Error(err)
		}
	}
	var last tokens.Record
	for range 30 { // immediately, even if the list lags
		last = mint()
		if got, err := info.WaitSigned(t.Context(), last.Token); err != nil || string(got) != f.kubeconfig {
			t.Fatal(err, string(got))
		}
		signed(last, f.kubeconfig)
	}
	if n := len(f.get(t).Data); n != 1 {
		t.Errorf("got %d keys in the ConfigMap, want 1", n)
	}
	// A deleted token must be unsigned as soon as the list shows the deletion.
	must.OK(t, store.Delete(t.Context(), last))
	key := clusterinfo.SignatureKey(last.Token.ID())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for hint := store.Watch(ctx); ; {
		data := must.Value(info.Data(ctx))(t)
		if data[key] == "" {
			break
		}
		select {
		case <-hint:
		case <-ctx.Done():
			t.Fatal("a deleted token stays signed")
		}
	}
	if _, err := info.WaitSigned(t.Context(), last.Token); !errors.Is(err, clusterinfo.ErrUnsigned) {
		t.Errorf("got %v", err)
	}

	other := must.Value(clusterinfo.WithServer([]byte(f.kubeconfig), "https://192.0.2.7:6443"))(t)
	token := mint()
	f.edit(t, func(data map[string]string) { data["kubeconfig"] = string(other) })
	f.eventually(t, "another kubeconfig", func(data map[string]string) bool { return data["kubeconfig"] == string(other) })
	must.Value(info.WaitSigned(t.Context(), token.Token))(t)
	signed(token, string(other))
	// A kubeconfig with a credential must not be served.
	f.edit(t, func(data map[string]string) { data["kubeconfig"] = "users: [{name: x}]\n" + data["kubeconfig"] })
	f.eventually(t, "a credential", func(data map[string]string) bool { return strings.HasPrefix(data["kubeconfig"], "users") })
	if body, err := info.JSON(t.Context()); !errors.Is(err, clusterinfo.ErrKubeconfig) {
		t.Errorf("%s, %v", body, err)
	}

	f.clear(t)
	for changed := f.live.Watch(ctx); ; <-changed {
		if _, err := info.JSON(ctx); errors.Is(err, clusterinfo.ErrNotFound) {
			break
		}
	}
	untilDeadline(t, "a deadline error and what is missing", func(ctx context.Context) (error, bool) {
		_, err := info.WaitSigned(ctx, token.Token)
		return err, errors.Is(err, context.DeadlineExceeded) && errors.Is(err, clusterinfo.ErrNotFound)
	})
	done := make(chan error, 1)
	go func() { _, err := info.WaitSigned(ctx, token.Token); done <- err }()
	f.kubeadmClusterInfo(t)
	if err := <-done; err != nil {
		t.Error(err)
	}
}
