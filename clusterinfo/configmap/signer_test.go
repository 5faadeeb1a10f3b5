package configmap_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/internal/loop"
	"github.com/kubejoin/kubejoin/tokens"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// After an operator makes cluster-info public, a machine with a token and a pin must be able to discover it at the API
// server.
func TestSignerCreatesMissingObjects(t *testing.T) {
	f := setUp(t)
	f.clear(t)
	s := f.signer()
	var err error
	if s.Default, err = clusterinfo.Kubeconfig(f.Server(), f.cas); err != nil {
		t.Fatal(err)
	}
	token := f.store.mint()
	run(t, s)
	f.waitSigned(t, token)
	if _, err := f.client.RbacV1().Roles("kube-public").Get(t.Context(), configmap.PublicRole, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("created the Role that makes cluster-info public: %v", err)
	}
	if _, err := f.client.RbacV1().RoleBindings("kube-public").Get(t.Context(), configmap.PublicRole, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("created the RoleBinding that makes cluster-info public: %v", err)
	}
	if _, err := f.Kubectl(t.Context(), "apply", "-f", "../../deploy/cluster-info-public.yaml"); err != nil {
		t.Fatal(err)
	}
	discovery := clusterinfo.Discovery{Endpoint: f.Address, Token: token, Pins: clusterinfo.Pins(f.cas), Retry: 10 * time.Millisecond}
	found, err := discovery.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if found.Server != f.Server() || string(found.Kubeconfig) != string(s.Default) {
		t.Errorf("found %s:\n%s", found.Server, found.Kubeconfig)
	}

	t.Run("deleted", func(t *testing.T) {
		if err := f.client.CoreV1().ConfigMaps("kube-public").Delete(t.Context(), "cluster-info", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := discovery.Run(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestSignerKeepsForeignKeys(t *testing.T) {
	f := setUp(t)
	f.invariant(t)
	const others = "e30..c29tZWJvZHkgZWxzZQ"
	var before string
	f.edit(t, func(data map[string]string) {
		data["kubeconfig"] = "# by hand\n" + data["kubeconfig"]
		before = data["kubeconfig"]
		data["note"] = "kept"
		data["jws-kubeconfig-orphan"] = "e30..b3JwaGFu"
		data["jws-kubeconfig-others"] = others
	})
	onlyID, err := tokens.OnlyID("others")
	if err != nil {
		t.Fatal(err)
	}
	f.store.put(tokens.Record{Token: onlyID, Signing: true})
	token := f.store.mint()
	stop := run(t, f.signer())
	f.waitSigned(t, token)
	done := f.get(t)
	want := []string{"jws-kubeconfig-others", "jws-kubeconfig-" + token.ID(), "kubeconfig", "note"}
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(done.Data)); !slices.Equal(got, want) {
		t.Errorf("keys %q, want %q", got, want)
	}
	if done.Data["kubeconfig"] != before || done.Data["note"] != "kept" || done.Data["jws-kubeconfig-others"] != others {
		t.Errorf("got keys %q, want the foreign ones kept", done.Data)
	}
	if _, err := f.client.RbacV1().RoleBindings("kube-public").Get(t.Context(), configmap.PublicRole, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("got public access to a cluster-info that the signer did not create: %v", err)
	}

	// The signer must repair edited signatures, and nothing else.
	for name, change := range map[string]func(map[string]string){
		"signature removed": func(data map[string]string) { delete(data, "jws-kubeconfig-"+token.ID()) },
		"orphan added":      func(data map[string]string) { data["jws-kubeconfig-orphan"] = "e30..AA" },
		"no ID":             func(data map[string]string) { data["jws-kubeconfig-"] = "e30..AA" },
	} {
		f.edit(t, change)
		f.eventually(t, name, func(data map[string]string) bool { return maps.Equal(data, done.Data) })
	}

	// Without a change, the signer must not write.
	version := f.settled(t, 500*time.Millisecond).ResourceVersion
	f.store.Send()
	stop()
	run(t, f.signer())
	if now := f.settled(t, time.Second).ResourceVersion; now != version {
		t.Errorf("got a write without a change: version %s, then %s", version, now)
	}
}

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

// The signer must retry a failed write until it succeeds.
func TestSignerRetriesFailedWrite(t *testing.T) {
	f := setUp(t)
	run(t, f.signer())
	f.waitSigned(t, f.store.mint())
	f.StopAPIServer()
	token := f.store.mint()
	f.waitLogged(t, "will be retried")
	if err := f.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.waitSigned(t, token)
	f.waitLogged(t, "works again")
}
