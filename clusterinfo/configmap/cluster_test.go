package configmap_test

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/internal/testing/logs"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

func TestMain(m *testing.M) { cluster.Main(m) }

// patience is how long tests wait for a condition, which a slow machine reaches late. After an outage of the API server,
// client-go may wait for a minute before it connects again.
const patience = 3 * time.Minute

// memory is a token store in memory.
type memory struct {
	tokens.Store
	tokens.Hints
	mu      sync.Mutex
	records map[string]tokens.Record
}

func (m *memory) Watch(ctx context.Context) <-chan struct{} { return m.Hints.Watch(ctx) }

func (m *memory) List(context.Context) ([]tokens.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.SortedFunc(maps.Values(m.records), func(a, b tokens.Record) int { return strings.Compare(a.Token.ID(), b.Token.ID()) }), nil
}

func (m *memory) Get(_ context.Context, id string, _ tokens.Read) (tokens.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r, found := m.records[id]; found {
		return r, nil
	}
	return tokens.Record{}, tokens.ErrNotFound
}

func (m *memory) put(records ...tokens.Record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.records == nil {
		m.records = map[string]tokens.Record{}
	}
	for _, r := range records {
		m.records[r.Token.ID()] = r
	}
	m.Send()
}

func (m *memory) remove(ids ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		delete(m.records, id)
	}
	m.Send()
}

// mint adds a new token with usage signing to the store.
func (m *memory) mint() tokens.Token {
	r := tokens.Record{Token: tokens.Generate(), Signing: true, Created: time.Now()}
	m.put(r)
	return r.Token
}

// fixture is the shared control plane, with cluster-info in a known state, and the ConfigMap that watches it.
type fixture struct {
	*cluster.Cluster
	client kubernetes.Interface
	store  *memory
	live   *configmap.ConfigMap
	cas    []*x509.Certificate
	log    *logs.Buffer
	// kubeconfig is the kubeconfig that kubeadm wrote to cluster-info.
	kubeconfig string
}

// setUp restores the cluster-info of kubeadm without signatures, and removes the RBAC that makes it public.
func setUp(t *testing.T) *fixture {
	t.Helper()
	c := cluster.Shared(t)
	f := &fixture{Cluster: c, client: c.Client(), store: &memory{}, log: &logs.Buffer{}}
	kubeadmKubeconfig.Do(func() { kubeadmKubeconfig.text, kubeadmKubeconfig.err = readKubeadms(t.Context(), f.client) })
	if kubeadmKubeconfig.err != nil {
		t.Fatal(kubeadmKubeconfig.err)
	}
	f.kubeconfig = kubeadmKubeconfig.text
	f.clear(t)
	f.kubeadmClusterInfo(t)
	f.live = configmap.Open(t.Context(), f.client)
	f.cas = readCAs(t, c.CAFile())
	return f
}

func (f *fixture) clear(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	for _, err := range []error{
		f.client.CoreV1().ConfigMaps("kube-public").Delete(ctx, "cluster-info", metav1.DeleteOptions{}),
		f.client.RbacV1().Roles("kube-public").Delete(ctx, configmap.PublicRole, metav1.DeleteOptions{}),
		f.client.RbacV1().RoleBindings("kube-public").Delete(ctx, configmap.PublicRole, metav1.DeleteOptions{}),
	} {
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
}

// kubeadmKubeconfig is the kubeconfig that kubeadm wrote to cluster-info when it created the control plane.
var kubeadmKubeconfig struct {
	sync.Once
	text string
	err  error
}

func readKubeadms(ctx context.Context, client kubernetes.Interface) (string, error) {
	object, err := client.CoreV1().ConfigMaps("kube-public").Get(ctx, "cluster-info", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return object.Data["kubeconfig"], nil
}

func (f *fixture) kubeadmClusterInfo(t *testing.T) {
	t.Helper()
	must.Value(f.client.CoreV1().ConfigMaps("kube-public").Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "cluster-info"}, Data: map[string]string{"kubeconfig": f.kubeconfig},
	}, metav1.CreateOptions{}))(t)
}

func (f *fixture) signer() configmap.Signer {
	return configmap.Signer{ConfigMap: f.live, Tokens: f.store, Logger: slog.New(slog.NewTextHandler(f.log, nil))}
}

// run runs the signer until the test ends or stop is called.
func run(t *testing.T, s configmap.Signer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// eventually waits until the watched cluster-info satisfies the condition.
func (f *fixture) eventually(t *testing.T, what string, satisfied func(data map[string]string) bool) map[string]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	changed := f.live.Watch(ctx)
	var data map[string]string
	for {
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("got keys %[2]q, want %[1]s", what, slices.Sorted(maps.Keys(data)))
		}
		var err error
		data, err = f.live.Data(ctx)
		if err != nil && !errors.Is(err, clusterinfo.ErrNotFound) {
			t.Fatal(err)
		}
		if err == nil && satisfied(data) {
			return data
		}
	}
}

func (f *fixture) waitSigned(t *testing.T, token tokens.Token) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must.Value(f.live.WaitSigned(ctx, token))(t)
}

func (f *fixture) waitLogged(t *testing.T, text string) {
	t.Helper()
	wait.OK(t, "log "+text, func() error {
		if log := f.log.String(); !strings.Contains(log, text) {
			return fmt.Errorf("got log\n%s", log)
		}
		return nil
	})
}

// untilDeadline calls call with longer and longer timeouts until its error is wanted: a slow machine may read nothing
// within a short timeout.
func untilDeadline(t *testing.T, want string, call func(ctx context.Context) (err error, wanted bool)) {
	t.Helper()
	for timeout := 100 * time.Millisecond; ; timeout *= 4 {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		err, wanted := call(ctx)
		cancel()
		if wanted {
			return
		}
		if err == nil || timeout > patience/4 {
			t.Errorf("got %v, want %s", err, want)
			return
		}
	}
}

func (f *fixture) get(t *testing.T) *corev1.ConfigMap {
	t.Helper()
	return must.Value(f.client.CoreV1().ConfigMaps("kube-public").Get(t.Context(), "cluster-info", metav1.GetOptions{}))(t)
}

// edit changes cluster-info like a user with kubectl.
func (f *fixture) edit(t *testing.T, change func(data map[string]string)) {
	t.Helper()
	for {
		object := f.get(t)
		change(object.Data)
		_, err := f.client.CoreV1().ConfigMaps("kube-public").Update(t.Context(), object, metav1.UpdateOptions{})
		if err == nil {
			return
		}
		if !apierrors.IsConflict(err) {
			t.Fatal(err)
		}
	}
}

// settled returns the object after it has not changed for a while.
func (f *fixture) settled(t *testing.T, quiet time.Duration) *corev1.ConfigMap {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	changed := f.live.Watch(ctx)
	for {
		select {
		case <-changed:
		case <-time.After(quiet):
			return f.get(t)
		case <-ctx.Done():
			t.Fatal("cluster-info does not stop changing")
		}
	}
}

func readCAs(t *testing.T, file string) []*x509.Certificate {
	t.Helper()
	b := must.Value(os.ReadFile(file))(t)
	block, _ := pem.Decode(b)
	ca := must.Value(x509.ParseCertificate(block.Bytes))(t)
	return []*x509.Certificate{ca}
}

// invariant fails the test if any version of cluster-info written during the test contains an empty signature, or
// an invalid signature of a token in the store.
func (f *fixture) invariant(t *testing.T) {
	t.Helper()
	w := must.Value(f.client.CoreV1().ConfigMaps("kube-public").Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=cluster-info"}))(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range w.ResultChan() {
			object, ok := event.Object.(*corev1.ConfigMap)
			if !ok {
				continue
			}
			if err := f.check(object.Data); err != nil {
				t.Errorf("version %s: %v", object.ResourceVersion, err)
			}
		}
	}()
	t.Cleanup(func() { w.Stop(); <-done })
}

func (f *fixture) check(data map[string]string) error {
	for key, jws := range data {
		id, found := strings.CutPrefix(key, clusterinfo.SignaturePrefix)
		if !found {
			continue
		}
		f.store.mu.Lock()
		r, known := f.store.records[id]
		f.store.mu.Unlock()
		switch {
		case jws == "":
			return fmt.Errorf("%s is empty", key)
		case known && r.Token.HasSecret() && data["kubeconfig"] != "": // not emptied by a test
			if err := clusterinfo.Verify([]byte(data["kubeconfig"]), jws, r.Token); err != nil {
				return err
			}
		}
	}
	return nil
}
