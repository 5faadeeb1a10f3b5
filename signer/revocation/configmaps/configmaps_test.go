package configmaps_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/configmaps"
	"github.com/kubejoin/kubejoin/signer/revocation/revocationtest"
	"github.com/kubejoin/kubejoin/test/cluster"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

func open(t *testing.T, log *slog.Logger) (*configmaps.List, typedcorev1.ConfigMapInterface) {
	t.Helper()
	client := cluster.Shared(t).Client()
	namespace, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "revocations-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := configmaps.Open(t.Context(), client, namespace.Name, log)
	if err != nil {
		t.Fatal(err)
	}
	return l, client.CoreV1().ConfigMaps(namespace.Name)
}

func TestStore(t *testing.T) {
	revocationtest.Run(t, func(t *testing.T) revocation.Store {
		l, _ := open(t, nil)
		return l
	})
}

// Catches an entry that cannot be read and therefore bars nobody, or is overwritten by an issued certificate.
func TestMalformedEntryBars(t *testing.T) {
	var log bytes.Buffer
	l, maps := open(t, slog.New(slog.NewTextHandler(&log, nil)))
	g := revocation.Guard{Store: l}
	if _, err := g.Revoke(t.Context(), revocation.Entry{Node: "worker-1"}); err != nil {
		t.Fatal(err)
	}
	all, err := maps.List(t.Context(), metav1.ListOptions{LabelSelector: configmaps.Label + "=true"})
	if err != nil || len(all.Items) != 1 {
		t.Fatalf("got %d ConfigMaps, %v, want one", len(all.Items), err)
	}
	m := &all.Items[0]
	m.Data["worker-1"], m.Data["Neither_a_node"] = "{", "{}"
	if _, err := maps.Update(t.Context(), m, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
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
	if listed, err := l.List(t.Context()); err != nil || len(listed) != 1 {
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
	if _, err := g.Revoke(t.Context(), revocation.Entry{Node: "worker-1"}); err != nil {
		t.Fatal(err)
	}
	all, err := maps.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range all.Items {
		m := &all.Items[i]
		if _, found := m.Data["worker-1"]; !found { // kube-root-ca.crt
			continue
		}
		ended := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
		m.Data["ended"] = fmt.Sprintf(`{"since":%q,"until":%q}`, ended, ended)
		m.Data["large"] = strings.Repeat("x", configmaps.MaxNew)
		if _, err := maps.Update(t.Context(), m, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
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
		// An entry that exists can be changed and removed.
		if _, err := g.Revoke(t.Context(), revocation.Entry{Node: "worker-1", Reason: "again"}); err != nil {
			t.Error(err)
		}
		if _, err := g.Undo(t.Context(), "worker-1"); err != nil {
			t.Error(err)
		}
	}
}

func TestMain(m *testing.M) { cluster.Main(m) }
