package configmaps_test

import (
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/configmaps"
	"github.com/kubejoin/kubejoin/signer/revocation/revocationtest"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

func open(t *testing.T, log *slog.Logger) (*configmaps.List, typedcorev1.ConfigMapInterface) {
	t.Helper()
	client := cluster.Shared(t).Client()
	namespace := must.Value(client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "revocations-"}}, metav1.CreateOptions{}))(t)
	l := must.Value(configmaps.Open(t.Context(), client, namespace.Name, log))(t)
	return l, client.CoreV1().ConfigMaps(namespace.Name)
}

func TestStore(t *testing.T) {
	revocationtest.Run(t, func(t *testing.T) revocation.Store {
		l, _ := open(t, nil)
		return l
	})
}

// Catches a malformed entry that bars nobody, or that an issued certificate overwrites.
func TestMalformedEntryBars(t *testing.T) {
	var log bytes.Buffer
	l, maps := open(t, slog.New(slog.NewTextHandler(&log, nil)))
	g := revocation.Guard{Store: l}
	must.Value(g.Revoke(t.Context(), revocation.Entry{Node: "worker-1"}))(t)
	all, err := maps.List(t.Context(), metav1.ListOptions{LabelSelector: configmaps.Label + "=true"})
	if err != nil || len(all.Items) != 1 {
		t.Fatalf("got %d ConfigMaps, %v, want one", len(all.Items), err)
	}
	m := &all.Items[0]
	m.Data["worker-1"], m.Data["Neither_a_node"] = "{", "{}"
	must.Value(maps.Update(t.Context(), m, metav1.UpdateOptions{}))(t)
	s := revocation.Subject{Node: "worker-1", Fingerprints: []revocation.Fingerprint{revocationtest.Fingerprint(1)}}
	e, err := g.Revoked(t.Context(), s)
	if err != nil || e == nil || e.Malformed == nil {
		t.Errorf("got %+v, %v, want the malformed entry", e, err)
	}
	if _, err := l.Update(t.Context(), "worker-1", func(e *revocation.Entry) (*revocation.Entry, error) {
		next := *e
		return &next, nil
	}); err == nil {
		t.Error("a malformed entry was written back")
	}
	if listed, err := l.List(t.Context(), tokens.Live); err != nil || len(listed) != 1 {
		t.Errorf("List = %+v, %v, want the malformed entry", listed, err)
	}
	if _, err := g.Undo(t.Context(), "worker-1"); err != nil {
		t.Errorf("a malformed entry cannot be removed: %v", err)
	}
}

// Catches ConfigMaps that grow beyond what the API server stores, and a list without a bound.
func TestRefusesEntriesOfFullConfigMap(t *testing.T) {
	l, maps := open(t, nil)
	g := revocation.Guard{Store: l}
	must.Value(g.Revoke(t.Context(), revocation.Entry{Node: "worker-1"}))(t)
	all := must.Value(maps.List(t.Context(), metav1.ListOptions{}))(t)
	for i := range all.Items {
		m := &all.Items[i]
		if _, found := m.Data["worker-1"]; !found { // kube-root-ca.crt
			continue
		}
		ended := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
		m.Data["ended"] = fmt.Sprintf(`{"since":%q,"until":%q}`, ended, ended)
		m.Data["large"] = strings.Repeat("x", configmaps.MaxNew)
		must.Value(maps.Update(t.Context(), m, metav1.UpdateOptions{}))(t)
		wait.Until(t, "the cache is full", func() bool { return l.Fill() >= 1 })
		full := 0
		for n := range 4 * configmaps.Shards {
			_, err := g.Revoke(t.Context(), revocation.Entry{Node: fmt.Sprintf("node-%d", n)})
			if errors.Is(err, revocation.ErrFull) {
				full++
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if full == 0 || full > 2*configmaps.Shards {
			t.Errorf("%d of %d entries refused, want those of one ConfigMap", full, 4*configmaps.Shards)
		}
		// An existing entry can be changed and removed.
		if _, err := g.Revoke(t.Context(), revocation.Entry{Node: "worker-1", Reason: "again"}); err != nil {
			t.Error(err)
		}
		if _, err := g.Undo(t.Context(), "worker-1"); err != nil {
			t.Error(err)
		}
	}
}

func TestMain(m *testing.M) { cluster.Main(m) }

// Catches client CAs of kube-apiserver that are ignored, and damaged CAs that are treated as no CAs.
func TestClientCAs(t *testing.T) {
	c := cluster.Shared(t)
	want := must.Value(os.ReadFile(c.CAFile()))(t)
	cas, err := configmaps.ClientCAs(t.Context(), c.Client())
	if err != nil || len(cas) != 1 || !bytes.Contains(want, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cas[0].Raw})) {
		t.Errorf("got %d CAs, %v, want that of --client-ca-file", len(cas), err)
	}
	published := func(text string) *fake.Clientset {
		return fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "extension-apiserver-authentication"}, Data: map[string]string{"client-ca-file": text}})
	}
	for name, client := range map[string]*fake.Clientset{"no ConfigMap": fake.NewClientset(), "no CA": published("")} {
		if cas, err := configmaps.ClientCAs(t.Context(), client); err != nil || len(cas) != 0 {
			t.Errorf("%s: got %d CAs, %v, want none", name, len(cas), err)
		}
	}
	if _, err := configmaps.ClientCAs(t.Context(), published("damaged")); err == nil || !strings.Contains(err.Error(), "client-ca-file") {
		t.Errorf("damaged: got %v, want an error that names the key", err)
	}
}

// Catches a list that fills up without a warning, and a warning about a list whose entries have ended.
func TestFill(t *testing.T) {
	now := time.Now()
	value := func(until time.Time) string {
		v := must.Value(revocation.Encode(revocation.Entry{Node: "worker-1", Since: now, Until: until}))(t)
		return string(v) + strings.Repeat(" ", configmaps.MaxNew/2-len(v)-len("worker-1"))
	}
	for name, test := range map[string]struct {
		data map[string]string
		want float64
	}{
		"empty":       {nil, 0},
		"half":        {map[string]string{"worker-1": value(now.Add(time.Hour))}, 0.5},
		"full":        {map[string]string{"worker-1": value(now.Add(time.Hour)), "worker-2": value(time.Time{})}, 1},
		"half, ended": {map[string]string{"worker-1": value(now.Add(-time.Hour)), "worker-2": value(time.Time{})}, 0.5},
		"malformed":   {map[string]string{"worker-1": strings.Repeat("x", configmaps.MaxNew-len("worker-1"))}, 1},
	} {
		if got := configmaps.Fill(&corev1.ConfigMap{Data: test.data}, now); got != test.want {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Many reads share one list of versions, including reads of missing entries and ConfigMaps. Catches a view that is
// older than [tokens.MaxAge] although the watch hangs.
func TestRecentSharesAProof(t *testing.T) {
	for name, hangs := range map[string]bool{"the watch works": false, "the watch hangs": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			other, maps := open(t, nil)
			const first, second, third = "worker-1", "worker-2", "worker-16" // second is in another ConfigMap, third in the same as first
			g := revocation.Guard{Store: other}
			must.Value(g.Revoke(t.Context(), revocation.Entry{Node: first}))(t)
			namespace := must.Value(maps.List(t.Context(), metav1.ListOptions{}))(t).Items[0].Namespace
			var gets, lists atomic.Int64
			var hanging atomic.Bool
			config := cluster.Shared(t).AdminConfig()
			config.QPS = -1
			config.Wrap(func(next http.RoundTripper) http.RoundTripper {
				return roundTripper(func(r *http.Request) (*http.Response, error) {
					watch := r.URL.Query().Has("watch")
					switch {
					case watch:
						response, err := next.RoundTrip(r)
						if err == nil {
							response.Body = hangingBody{response.Body, &hanging, r.Context().Done()}
						}
						return response, err
					case strings.HasSuffix(r.URL.Path, "/configmaps"):
						lists.Add(1)
					default:
						gets.Add(1)
					}
					return next.RoundTrip(r)
				})
			})
			l := must.Value(configmaps.Open(t.Context(), must.Value(kubernetes.NewForConfig(config))(t), namespace, nil))(t)
			must.Value(l.List(t.Context(), tokens.Cached))(t)
			hanging.Store(hangs)
			asked := int64(0)
			revoked := func(node string) bool {
				asked++
				_, err := l.Get(t.Context(), revocation.Key(node), tokens.Recent)
				if err != nil && !errors.Is(err, revocation.ErrNotFound) {
					t.Fatal(err)
				}
				return err == nil
			}
			wait.Until(t, "a proof", func() bool {
				before := gets.Load()
				return revoked(first) && !revoked(second) && gets.Load() == before
			})
			for _, node := range []string{second, third} {
				must.Value(g.Revoke(t.Context(), revocation.Entry{Node: node}))(t)
				for wrote := time.Now(); ; {
					began := time.Now()
					if seen := revoked(node); !seen && began.Sub(wrote) >= tokens.MaxAge {
						t.Errorf("%s is not revoked %s after the write", node, began.Sub(wrote))
					}
					if began.Sub(wrote) > 2*tokens.MaxAge {
						break
					}
				}
			}
			if n := gets.Load(); !hangs && n > asked/20 || lists.Load() > 30 {
				t.Errorf("%d reads and %d lists within 4 s for %d questions, want a few", n, lists.Load(), asked)
			}
		})
	}
}

// Catches a ConfigMap that is treated as missing because somebody removed its label.
func TestRecentFindsEntryWithoutLabel(t *testing.T) {
	l, maps := open(t, nil)
	g := revocation.Guard{Store: l}
	must.Value(g.Revoke(t.Context(), revocation.Entry{Node: "worker-1"}))(t)
	m := must.Value(maps.List(t.Context(), metav1.ListOptions{LabelSelector: configmaps.Label + "=true"}))(t).Items[0]
	delete(m.Labels, configmaps.Label)
	must.Value(maps.Update(t.Context(), &m, metav1.UpdateOptions{}))(t)
	wait.Until(t, "the cache lacks the entry", func() bool {
		_, err := l.Get(t.Context(), "worker-1", tokens.Cached)
		return errors.Is(err, revocation.ErrNotFound)
	})
	for began := time.Now(); time.Since(began) < 2*tokens.MaxAge; { // for several proofs
		if _, err := l.Get(t.Context(), "worker-1", tokens.Recent); err != nil {
			t.Fatalf("got %v, want the entry", err)
		}
	}
}

// A hangingBody receives nothing while it hangs.
type hangingBody struct {
	io.ReadCloser
	hanging *atomic.Bool
	gone    <-chan struct{}
}

func (b hangingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.hanging.Load() {
		<-b.gone
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}
