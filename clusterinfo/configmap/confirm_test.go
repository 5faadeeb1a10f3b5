package configmap_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
)

// lagging is a store whose List misses one token while it lags.
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

func (l *lagging) Get(ctx context.Context, id string, read tokens.Read) (tokens.Record, error) {
	l.gets.Add(1)
	return l.memory.Get(ctx, id, read)
}

// If List lags, the signer must keep the signature of a token that another signer already has. It must remove the
// signature of a token that does not exist.
func TestKeepsSignatureOfOtherSigner(t *testing.T) {
	f := setUp(t)
	theirs := f.store.mint()
	nobodys := tokens.Generate()
	f.edit(t, func(data map[string]string) {
		for _, token := range []tokens.Token{theirs, nobodys} {
			jws := must.Value(clusterinfo.Sign([]byte(f.kubeconfig), token))(t)
			data[clusterinfo.SignatureKey(token.ID())] = jws
		}
	})
	f.waitSigned(t, theirs) // until the watch shows the signature
	store := &lagging{memory: f.store, hidden: theirs.ID()}
	s := f.signer()
	store.lags.Store(true)
	s.Tokens = store
	run(t, s)
	for range 3 { // several steps while List lags
		f.waitSigned(t, f.store.mint())
	}
	data := f.eventually(t, "no signature of the unknown token", func(data map[string]string) bool {
		return data[clusterinfo.SignatureKey(nobodys.ID())] == ""
	})
	if err := clusterinfo.Verify([]byte(data["kubeconfig"]), data[clusterinfo.SignatureKey(theirs.ID())], theirs); err != nil {
		t.Errorf("the signature of the other signer is missing: %v", err)
	}

	// Removing a token that List has shown must not call Get.
	store.lags.Store(false)
	ours := f.store.mint()
	f.waitSigned(t, ours)
	asked := store.gets.Load()
	f.store.remove(ours.ID())
	f.eventually(t, "no signature of the deleted token", func(data map[string]string) bool {
		return data[clusterinfo.SignatureKey(ours.ID())] == ""
	})
	if n := store.gets.Load() - asked; n != 0 {
		t.Errorf("got %d calls of Get, want 0: List showed all tokens", n)
	}
}
