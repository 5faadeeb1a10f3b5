package configmap_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/tokens"
	"go.uber.org/goleak"
)

// The signer must sign a malformed kubeconfig like kube-controller-manager does, and log it. JSON must not serve it,
// especially if it contains a credential.
func TestSignsButDoesNotServeMalformedKubeconfig(t *testing.T) {
	f := setUp(t)
	token := f.store.mint()
	run(t, f.signer())
	f.waitSigned(t, token)
	const credential = "kkkkkkkkkkkkkkkk"
	for name, broken := range map[string]string{
		"no YAML":          "{",
		"another server":   strings.Replace(f.kubeconfig, "https://", "http://", 1),
		"a credential":     strings.Replace(f.kubeconfig, "users: null", "users: [{name: a, user: {token: "+credential+"}}]", 1),
		"CA cut off":       strings.Replace(f.kubeconfig, "certificate-authority-data: LS0t", "certificate-authority-data: ", 1),
		"TLS not verified": strings.Replace(f.kubeconfig, "    server:", "    insecure-skip-tls-verify: true\n    server:", 1),
	} {
		if broken == f.kubeconfig {
			t.Fatalf("%s: the edit changes nothing:\n%s", name, f.kubeconfig)
		}
		before := strings.Count(f.log.String(), "kubeconfig in cluster-info is malformed")
		f.edit(t, func(data map[string]string) { data["kubeconfig"] = broken })
		f.eventually(t, name+" signed unchanged", func(data map[string]string) bool {
			return data["kubeconfig"] == broken && clusterinfo.Verify([]byte(broken), data[clusterinfo.SignatureKey(token.ID())], token) == nil
		})
		_, err := f.live.JSON(t.Context())
		if !errors.Is(err, clusterinfo.ErrKubeconfig) || strings.Contains(err.Error(), credential) {
			t.Errorf("%s: got JSON error %v, want ErrKubeconfig without the content", name, err)
		}
		if got := strings.Count(f.log.String(), "kubeconfig in cluster-info is malformed"); got != before+1 {
			t.Errorf("%s: got %d warnings in the log, want one more than %d", name, got, before)
		}
	}
	f.edit(t, func(data map[string]string) { data["kubeconfig"] = f.kubeconfig })
	f.waitSigned(t, token)
	f.eventually(t, "the valid kubeconfig", func(data map[string]string) bool { return data["kubeconfig"] == f.kubeconfig })
	if _, err := f.live.JSON(t.Context()); err != nil {
		t.Error(err)
	}
	if strings.Contains(f.log.String(), credential) || strings.Contains(f.log.String(), token.RevealSecret()) {
		t.Error("got log with a secret")
	}
}

// If the clock jumps forward, the signer must remove the signatures of expired tokens. If it jumps back, it must sign
// them again.
func TestSignerFollowsItsClock(t *testing.T) {
	f := setUp(t)
	s := f.signer()
	var step atomic.Int64
	s.Now = func() time.Time { return time.Now().Add(time.Duration(step.Load())) }
	stays := f.store.mint()
	ends := tokens.Record{Token: tokens.Generate(), Signing: true, Expires: time.Now().Add(time.Hour)}
	f.store.put(ends)
	run(t, s)
	f.waitSigned(t, ends.Token)
	f.waitSigned(t, stays)
	for _, forward := range []bool{true, false} {
		if step.Store(0); forward {
			step.Store(int64(2 * time.Hour))
		}
		f.store.Send() // the loop does this itself within a minute
		f.eventually(t, "signatures of the tokens that are live by this clock", func(data map[string]string) bool {
			return data[clusterinfo.SignatureKey(stays.ID())] != "" && (data[clusterinfo.SignatureKey(ends.Token.ID())] == "") == forward
		})
	}
}

// After their context has ended, a ConfigMap and a Signer must leave no goroutine behind.
func TestLeavesNoGoroutine(t *testing.T) {
	f := setUp(t)
	token := f.store.mint()
	run(t, f.signer())
	f.waitSigned(t, token) // opens connections, which stay open
	const starts = 1000
	before := goleak.IgnoreCurrent()
	for range starts {
		ctx, cancel := context.WithCancel(t.Context())
		live := configmap.Open(ctx, f.client)
		done := make(chan error)
		go func() {
			done <- configmap.Signer{ConfigMap: live, Tokens: f.store, Logger: slog.New(slog.DiscardHandler)}.Run(ctx)
		}()
		must.Value(live.Data(ctx))(t)
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	wait.OK(t, "all goroutines end", func() error { return goleak.Find(before) }) // Find alone waits for less than a second
}
