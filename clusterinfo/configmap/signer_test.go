package configmap_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/loop"
	"github.com/kubejoin/kubejoin/tokens"
)

func TestSignerUnsignsAtExpiry(t *testing.T) {
	f := setUp(t)
	keep := f.store.mint()
	gone := tokens.Record{Token: tokens.Generate(), Signing: true, Expires: time.Now().Add(time.Hour)}
	f.store.put(gone)
	run(t, f.signer())
	f.waitSigned(t, gone.Token)
	f.waitSigned(t, keep)
	gone.Expires = time.Now().Add(2 * time.Second)
	f.store.put(gone)
	f.eventually(t, "the expired signature removed", func(data map[string]string) bool {
		return data[clusterinfo.SignatureKey(gone.Token.ID())] == ""
	})
	if late := time.Since(gone.Expires); late < 0 || late > loop.DefaultSweep/2 { // the sweep comes after a minute
		t.Errorf("removed the signature %s after expiration", late)
	}
	f.waitSigned(t, keep)
}

// The signer must write a new kubeconfig and its signatures at once: a node that reads in between would give up.
func TestSignerRenamesServer(t *testing.T) {
	f := setUp(t)
	f.invariant(t)
	f.store.mint()
	token := f.store.mint()
	stop := run(t, f.signer())
	f.waitSigned(t, token)
	stop()
	s := f.signer()
	s.Server = "https://api.example:443"
	run(t, s)
	data := f.eventually(t, "the new server", func(data map[string]string) bool { return strings.Contains(data["kubeconfig"], s.Server) })
	server, cas, err := clusterinfo.ParseKubeconfig([]byte(data["kubeconfig"]))
	if err != nil || server != s.Server || len(cas) != 1 || !cas[0].Equal(f.cas[0]) {
		t.Errorf("%s, %d CAs, %v", server, len(cas), err)
	}
	if len(data) != 3 {
		t.Errorf("keys %q, want the kubeconfig and two signatures", slices.Sorted(maps.Keys(data)))
	}
	f.waitSigned(t, token)
}

// If the signer cannot set Server, it must log an error and still sign.
func TestSignerLogsUnusableServer(t *testing.T) {
	f := setUp(t)
	s := f.signer()
	s.Server = "https://api.example:443"
	f.edit(t, func(data map[string]string) { data["kubeconfig"] = "not what anybody expects" })
	token := f.store.mint()
	stop := run(t, s)
	f.waitSigned(t, token)
	f.waitLogged(t, "is signed unchanged")
	stop()

	f.clear(t)
	s.Server = ""
	stop = run(t, s)
	f.waitLogged(t, "kubeadm init phase bootstrap-token")
	f.kubeadmClusterInfo(t)
	f.waitSigned(t, token)
	stop()
	if strings.Contains(f.log.String(), token.RevealSecret()) {
		t.Error("got log with a secret")
	}
}

func TestTwoSignersDoNotFight(t *testing.T) {
	f := setUp(t)
	f.invariant(t)
	run(t, f.signer())
	run(t, f.signer())
	for range 20 {
		f.waitSigned(t, f.store.mint())
	}
	version := f.settled(t, 500*time.Millisecond).ResourceVersion
	if now := f.settled(t, time.Second).ResourceVersion; now != version {
		t.Errorf("got version %s, then %s: two signers overwrite each other", version, now)
	}
}
