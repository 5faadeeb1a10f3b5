package configmap_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/tokens"
)

// lagging is a store whose list does not have one token while it lags.
type lagging struct {
	*memory
	hidden string
	lags   atomic.Bool
	gets   atomic.Int32
}

func (l *lagging) List(ctx context.Context) ([]tokens.Record, error) {
	lags := l.lags.Load()
	all, err := l.memory.List(ctx)
	return slices.DeleteFunc(all, func(r tokens.Record) bool { return lags && r.Token.ID() == l.hidden }), err
}

func (l *lagging) Get(ctx context.Context, id string) (tokens.Record, error) {
	l.gets.Add(1)
	return l.memory.Get(ctx, id)
}

// Another signer has seen a token before this one: its signature is not taken away. That of a
// token that nobody has is.
func TestKeepsSignatureOfOtherSigner(t *testing.T) {
	f := setUp(t)
	theirs := f.store.mint()
	nobodys := tokens.Generate()
	f.edit(t, func(data map[string]string) {
		for _, token := range []tokens.Token{theirs, nobodys} {
			jws, err := clusterinfo.Sign([]byte(f.kubeconfig), token)
			if err != nil {
				t.Fatal(err)
			}
			data[clusterinfo.SignatureKey(token.ID())] = jws
		}
	})
	f.waitSigned(t, theirs) // the watch has seen it
	store := &lagging{memory: f.store, hidden: theirs.ID()}
	s := f.signer()
	store.lags.Store(true)
	s.Tokens = store
	run(t, s)
	for range 3 { // however many steps the list lags behind
		f.waitSigned(t, f.store.mint())
	}
	data := f.eventually(t, "no signature of nobody's", func(data map[string]string) bool {
		return data[clusterinfo.SignatureKey(nobodys.ID())] == ""
	})
	if err := clusterinfo.Verify([]byte(data["kubeconfig"]), data[clusterinfo.SignatureKey(theirs.ID())], theirs); err != nil {
		t.Errorf("the signature that another signer made is gone: %v", err)
	}

	// What was listed costs nothing when it goes.
	store.lags.Store(false)
	ours := f.store.mint()
	f.waitSigned(t, ours)
	asked := store.gets.Load()
	f.store.remove(ours.ID())
	f.eventually(t, "no signature of ours", func(data map[string]string) bool {
		return data[clusterinfo.SignatureKey(ours.ID())] == ""
	})
	if n := store.gets.Load() - asked; n != 0 {
		t.Errorf("%d tokens were asked for, want none: all were listed", n)
	}
}
