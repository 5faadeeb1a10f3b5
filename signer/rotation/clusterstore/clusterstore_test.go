package clusterstore_test

import (
	"context"
	"crypto"
	"crypto/x509"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/rotationtest"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/signer/rotation/clusterstore"
	"github.com/kubejoin/kubejoin/test/cluster"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
)

func TestMain(m *testing.M) { cluster.Main(m) }

// open returns a client of an API server that stores neither object.
func open(t *testing.T) kubernetes.Interface {
	t.Helper()
	client := cluster.Shared(t).Client()
	gone := func(err error) {
		t.Helper()
		if !apierrors.IsNotFound(err) {
			must.OK(t, err)
		}
	}
	gone(client.CoreV1().ConfigMaps(clusterstore.Namespace).Delete(t.Context(), clusterstore.Name, metav1.DeleteOptions{}))
	gone(client.CoreV1().Secrets(clusterstore.KeyNamespace).Delete(t.Context(), clusterstore.KeyName, metav1.DeleteOptions{}))
	return client
}

func TestStore(t *testing.T) {
	rotationtest.Run(t, rotation.CAs, func(t *testing.T) rotationtest.Backend { return clusterstore.New(open(t)) })
}

// Catches a key that stays in the Secret, which also has the states.
func TestDeletesKeys(t *testing.T) {
	client := fake.NewClientset()
	s := clusterstore.New(client)
	for _, ca := range []rotation.CA{rotation.Cluster, rotation.Etcd} {
		r := rotationtest.New(t, ca)
		must.Value(s.PutKey(t.Context(), r, csrtest.NewKey()))(t)
		must.OK(t, s.Put(t.Context(), r, ""))
		if found, err := s.KeepKey(t.Context(), ca, ""); found || err != nil {
			t.Errorf("%s: got %t, %v", ca, found, err)
		}
	}
	secret := must.Value(client.CoreV1().Secrets(clusterstore.KeyNamespace).Get(t.Context(), clusterstore.KeyName, metav1.GetOptions{}))(t)
	if got := slices.Sorted(maps.Keys(secret.Data)); !slices.Equal(got, []string{"cluster", "etcd"}) {
		t.Errorf("the Secret has %q, want the states alone", got)
	}
}

// A user who may write ConfigMaps in kube-public must not begin, change or end a rotation, and hosts must get the right
// state again. Publish also completes a command that was interrupted between its two writes.
func TestOnlySecretHasTheState(t *testing.T) {
	client := fake.NewClientset()
	copies := client.CoreV1().ConfigMaps(clusterstore.Namespace)
	s := clusterstore.New(client)
	r := rotationtest.New(t, rotation.Cluster)
	forged := r
	forged.Stage = rotation.Finish
	state, forgery := string(must.Value(rotation.Encode(r))(t)), string(must.Value(rotation.Encode(forged))(t))
	is := func(when string, want rotation.Rotation) {
		t.Helper()
		if got, _, err := s.Get(t.Context(), rotation.Cluster); err != nil || got.ID != want.ID || got.Stage != want.Stage {
			t.Errorf("%s: got %s %q, %v, want %s %q", when, got.ID, got.Stage, err, want.ID, want.Stage)
		}
	}
	differs := func(when string, want rotation.Rotation) {
		t.Helper()
		is(when, want)
		if err := s.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "ConfigMap kube-public/kubejoin-ca has another state of the cluster CA than Secret kube-system/kubejoin-ca-key") {
			t.Errorf("%s: got %v, want an error that names both", when, err)
		}
		wrong, err := s.Publish(t.Context())
		if wrong == nil || err != nil {
			t.Errorf("%s: got %v, %v, want the copy corrected", when, wrong, err)
		}
		must.OK(t, s.Check(t.Context()))
		if wrong, err := s.Publish(t.Context()); wrong != nil || err != nil {
			t.Errorf("%s, again: got %v, %v, want nothing to do", when, wrong, err)
		}
	}
	must.OK(t, s.Check(t.Context()))
	if wrong, err := s.Publish(t.Context()); wrong != nil || err != nil {
		t.Errorf("no rotation: got %v, %v, want nothing to do", wrong, err)
	}
	must.Value(copies.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: clusterstore.Name}, Data: map[string]string{"cluster": forgery}}, metav1.CreateOptions{}))(t)
	lacks := func(when string) { // the Secret may have been lost, which only a person can decide
		t.Helper()
		before := must.Value(copies.Get(t.Context(), clusterstore.Name, metav1.GetOptions{}))(t).Data
		if wrong, err := s.Publish(t.Context()); wrong != nil || err != nil {
			t.Errorf("%s: got %v, %v, want nothing changed", when, wrong, err)
		}
		if after := must.Value(copies.Get(t.Context(), clusterstore.Name, metav1.GetOptions{}))(t).Data; !maps.Equal(after, before) {
			t.Errorf("%s: got %q, want %q", when, after, before)
		}
		if err := s.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "if you began no rotation, run: kubectl -n kube-public delete configmap kubejoin-ca; otherwise restore the Secret") {
			t.Errorf("%s: got %v, want an error with both commands", when, err)
		}
	}
	is("no rotation", rotation.Rotation{})
	lacks("no rotation")
	must.OK(t, copies.Delete(t.Context(), clusterstore.Name, metav1.DeleteOptions{}))
	must.OK(t, s.Check(t.Context()))
	must.OK(t, s.Put(t.Context(), r, ""))
	edit := func(data map[string]string) {
		m := must.Value(copies.Get(t.Context(), clusterstore.Name, metav1.GetOptions{}))(t)
		m.Data = data
		must.Value(copies.Update(t.Context(), m, metav1.UpdateOptions{}))(t)
	}
	edit(map[string]string{"cluster": forgery})
	differs("another stage", r)
	edit(nil)
	differs("nothing left", r)
	edit(map[string]string{"cluster": state, "etcd": state})
	lacks("a rotation of another CA")
	edit(map[string]string{"cluster": forgery, "etcd": state})
	must.Value(s.Publish(t.Context()))(t)
	lacks("a rotation of another CA, another stage of this one")
	must.OK(t, client.CoreV1().Secrets(clusterstore.KeyNamespace).Delete(t.Context(), clusterstore.KeyName, metav1.DeleteOptions{}))
	lacks("the Secret is lost")
	must.OK(t, s.Put(t.Context(), r, ""))
	must.OK(t, copies.Delete(t.Context(), clusterstore.Name, metav1.DeleteOptions{}))
	_, version, err := s.Get(t.Context(), rotation.Cluster)
	must.OK(t, err)
	must.OK(t, s.Put(t.Context(), r, version)) // the same step again
	must.OK(t, s.Check(t.Context()))
}

// Other writers must not be able to fill the ConfigMap or make it immutable permanently. Its labels stay.
func TestPublishRemovesOtherData(t *testing.T) {
	client := open(t)
	copies := client.CoreV1().ConfigMaps(clusterstore.Namespace)
	frozen := true
	create := func(immutable *bool, data map[string]string) {
		must.Value(copies.Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: clusterstore.Name, Labels: map[string]string{"team": "x"}}, Immutable: immutable, Data: data,
		}, metav1.CreateOptions{}))(t)
	}
	filled := map[string]string{"note": strings.Repeat("y", 1<<20-1000)}
	create(&frozen, filled)
	s := clusterstore.New(client)
	r := rotationtest.New(t, rotation.Etcd)
	if err := s.Put(t.Context(), r, ""); err == nil || !strings.Contains(err.Error(), "has all rotations of this ConfigMap, so let kubejoin create it again: kubectl -n kube-public delete configmap kubejoin-ca") {
		t.Errorf("immutable: got %v, want an error with the command that helps", err)
	}
	must.OK(t, copies.Delete(t.Context(), clusterstore.Name, metav1.DeleteOptions{}))
	create(&frozen, map[string]string{"cluster": string(must.Value(rotation.Encode(rotationtest.New(t, rotation.Cluster)))(t))})
	_, version, err := s.Get(t.Context(), rotation.Etcd)
	must.OK(t, err)
	if err := s.Put(t.Context(), r, version); err == nil || strings.Contains(err.Error(), "has all rotations") {
		t.Errorf("immutable, with a rotation that the Secret lacks: got %v, want an error that keeps the ConfigMap", err)
	}
	must.OK(t, copies.Delete(t.Context(), clusterstore.Name, metav1.DeleteOptions{}))
	create(nil, filled)
	_, version, err = s.Get(t.Context(), rotation.Etcd)
	must.OK(t, err)
	must.OK(t, s.Put(t.Context(), r, version))
	if m, err := copies.Get(t.Context(), clusterstore.Name, metav1.GetOptions{}); err != nil || m.Labels["team"] != "x" || len(m.Data) != 1 {
		t.Errorf("got %d keys, %v, want the copy alone, and the label", len(m.Data), err)
	}
}

// Catches a store that uses a rotation which a person edited, or a rotation of another CA.
func TestRefusesEditedRotation(t *testing.T) {
	r := rotationtest.New(t, rotation.Cluster)
	good := string(must.Value(rotation.Encode(r))(t))
	for name, data := range map[string]map[string]string{
		"edited":     {"cluster": strings.Replace(good, `"prepare"`, `"Prepare"`, 1)},
		"of another": {"etcd": good},
	} {
		client := fake.NewClientset(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: clusterstore.KeyNamespace, Name: clusterstore.KeyName}, Data: map[string][]byte{"cluster": []byte(data["cluster"]), "etcd": []byte(data["etcd"])}})
		ca := rotation.Cluster
		if data["etcd"] != "" {
			ca = rotation.Etcd
		}
		if got, _, err := clusterstore.New(client).Get(t.Context(), ca); err == nil || got.ID != "" || !strings.Contains(err.Error(), "secret kube-system/kubejoin-ca-key: stored rotation of the "+string(ca)+" CA") {
			t.Errorf("%s: got %+v, %v, want an error that names the Secret", name, got, err)
		}
		if got, err := clusterstore.FromConfigMap(&corev1.ConfigMap{Data: data}, ca); err == nil || got.ID != "" || !strings.HasPrefix(err.Error(), "ConfigMap kube-public/kubejoin-ca: stored rotation of the ") {
			t.Errorf("%s: got %+v, %v, want an error that names the ConfigMap", name, got, err)
		}
	}
}

func TestKeyOpensOnlyTheRightKey(t *testing.T) {
	client := fake.NewClientset()
	s := clusterstore.New(client)
	old, fresh := certtest.CA(t, "old"), certtest.CA(t, "new")
	r := must.Value(rotation.New(rotation.Cluster, []*x509.Certificate{old.Leaf}, []*x509.Certificate{fresh.Leaf}, nil, time.Now()))(t)
	if _, err := s.Key(t.Context(), r, joinformat.GenerateCertificateKey()); !apierrors.IsNotFound(err) {
		t.Errorf("without a Secret: got %v, want not found", err)
	}
	with := must.Value(s.PutKey(t.Context(), r, fresh.PrivateKey.(crypto.Signer)))(t)
	if key, err := s.Key(t.Context(), r, with); err != nil || !rotation.Matches(key, fresh.Leaf) {
		t.Errorf("got %v, want the key of the new CA", err)
	}
	secret := must.Value(client.CoreV1().Secrets(clusterstore.KeyNamespace).Get(t.Context(), clusterstore.KeyName, metav1.GetOptions{}))(t)
	for name, value := range secret.Data {
		if strings.Contains(string(value), "PRIVATE KEY") || name != "cluster."+r.ID {
			t.Errorf("data %s is not encrypted, or of another name", name)
		}
	}
	other := r
	other.ID = "00000000000000aa"
	wrong := must.Value(s.PutKey(t.Context(), other, csrtest.NewKey()))(t)
	none := r
	none.ID = "00000000000000bb"
	for name, test := range map[string]struct {
		r    rotation.Rotation
		with joinformat.CertificateKey
		want string
	}{
		"another certificate key": {r, joinformat.GenerateCertificateKey(), "want the certificate key that 'kubejoin ca prepare' showed for rotation " + r.ID},
		"no certificate key":      {r, joinformat.CertificateKey{}, "no certificate key given"},
		"the key of another CA":   {other, wrong, "not the key of the new CA"},
		"no key":                  {none, with, "secret kube-system/kubejoin-ca-key has no key cluster.00000000000000bb"},
	} {
		if key, err := s.Key(t.Context(), test.r, test.with); err == nil || key != nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

func TestDropMerged(t *testing.T) {
	client := fake.NewClientset(
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "extension-apiserver-authentication"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "other"}},
	)
	for range 2 {
		must.OK(t, clusterstore.New(client).DropMerged(t.Context(), rotation.Cluster))
		if list, err := client.CoreV1().ConfigMaps("").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 1 || list.Items[0].Name != "other" {
			t.Errorf("got %+v, %v, want the other one alone", list, err)
		}
	}
}

// opaque is a key in a hardware module.
type opaque struct{ crypto.Signer }

func TestPutKeyRefusesKeyThatCannotBeStored(t *testing.T) {
	client := fake.NewClientset()
	s := clusterstore.New(client)
	if _, err := s.PutKey(context.Background(), rotation.Rotation{CA: rotation.Cluster, ID: "00000000000000aa"}, opaque{csrtest.NewKey()}); err == nil || !strings.Contains(err.Error(), "give the certificates alone") {
		t.Errorf("got %v, want a refusal", err)
	}
	if key, err := s.PutKey(t.Context(), rotation.Rotation{CA: rotation.Cluster, ID: "00000000000000aa"}, nil); err != nil || !key.IsZero() {
		t.Errorf("no key: got %v, want nothing stored", err)
	}
	if n := len(client.Actions()); n > 0 {
		t.Errorf("sent %d requests, want none", n)
	}
}
