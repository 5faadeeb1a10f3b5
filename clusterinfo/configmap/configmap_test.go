package configmap_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Catches a client that disconnects and is reported as a failure of the server.
func TestCachedReadsOutliveTheirContext(t *testing.T) {
	info := configmap.Open(t.Context(), fake.NewClientset(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: clusterinfo.Namespace, Name: clusterinfo.Name}, Data: map[string]string{"kubeconfig": "x"},
	}))
	if _, err := info.Data(t.Context()); err != nil { // waits for the cache
		t.Fatal(err)
	}
	ended, stop := context.WithCancel(t.Context())
	stop()
	if config, err := info.Config(ended); err != nil || string(config) != "x" {
		t.Errorf("got %q, %v, want the cached kubeconfig", config, err)
	}
}

func TestWaitSignedReturnsWhatItFound(t *testing.T) {
	f := setUp(t)
	token := tokens.Generate()
	good := must.Value(clusterinfo.Sign([]byte(f.kubeconfig), token))(t)
	key := clusterinfo.SignatureKey(token.ID())
	wait := func(t *testing.T, want string, is error) {
		t.Helper()
		untilDeadline(t, "a deadline error and "+want, func(ctx context.Context) (error, bool) {
			_, err := f.live.WaitSigned(ctx, token)
			if err != nil && strings.Contains(err.Error(), token.RevealSecret()) {
				t.Errorf("the error contains the secret: %v", err)
			}
			return err, errors.Is(err, context.DeadlineExceeded) && strings.Contains(err.Error(), want) && (is == nil || errors.Is(err, is))
		})
	}
	must.Value(f.live.Data(t.Context()))(t)
	wait(t, "holds no signature by the token", nil)
	f.edit(t, func(data map[string]string) { data[key] = "e30..AA" })
	f.eventually(t, "a wrong signature", func(data map[string]string) bool { return data[key] != "" })
	wait(t, "does not verify", clusterinfo.ErrSignature)
	f.edit(t, func(data map[string]string) { delete(data, "kubeconfig") })
	f.eventually(t, "no kubeconfig", func(data map[string]string) bool { return data["kubeconfig"] == "" })
	wait(t, "holds no kubeconfig", nil)

	f.clear(t)
	for changed := f.live.Watch(t.Context()); ; <-changed {
		if _, err := f.live.Data(t.Context()); errors.Is(err, clusterinfo.ErrNotFound) {
			break
		}
	}
	wait(t, "no cluster-info", clusterinfo.ErrNotFound)

	done := make(chan error, 1)
	go func() { _, err := f.live.WaitSigned(t.Context(), token); done <- err }()
	f.kubeadmClusterInfo(t)
	f.edit(t, func(data map[string]string) { data[key] = good })
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := f.live.WaitSigned(t.Context(), tokens.Token{}); err == nil {
		t.Error("got nil for the zero Token, want an error")
	}
}

func TestDataReturnsReadFailure(t *testing.T) {
	f := setUp(t)
	config := rest.AnonymousClientConfig(f.AdminConfig()) // anonymous users cannot watch
	client := must.Value(kubernetes.NewForConfig(config))(t)
	live := configmap.Open(t.Context(), client)
	for name, call := range map[string]func(context.Context) error{
		"Data":       func(ctx context.Context) error { _, err := live.Data(ctx); return err },
		"WaitSigned": func(ctx context.Context) error { _, err := live.WaitSigned(ctx, tokens.Generate()); return err },
	} {
		untilDeadline(t, "a deadline error of "+name+" and the refusal of the API server", func(ctx context.Context) (error, bool) {
			err := call(ctx)
			return err, errors.Is(err, context.DeadlineExceeded) && strings.Contains(err.Error(), "forbidden")
		})
	}
}

// This project must write the same kubeconfig as kubeadm, and clientcmd must read and write the same.
func TestKubeconfigEqualsThatOfKubeadm(t *testing.T) {
	f := setUp(t)
	server, cas, err := clusterinfo.ParseKubeconfig([]byte(f.kubeconfig))
	if err != nil {
		t.Fatal(err)
	}
	ours := must.Value(clusterinfo.Kubeconfig(server, cas))(t)
	if string(ours) != f.kubeconfig {
		t.Errorf("kubeadm's:\n%s\nours:\n%s", f.kubeconfig, ours)
	}
	config := must.Value(clientcmd.Load(ours))(t)
	if c := config.Clusters[""]; len(config.Clusters) != 1 || c == nil || c.Server != server || len(c.CertificateAuthorityData) == 0 {
		t.Errorf("clientcmd reads %v", config.Clusters)
	}
	written, err := clientcmd.Write(*config)
	if err != nil || string(written) != string(ours) {
		t.Errorf("clientcmd writes, %v:\n%s\nours:\n%s", err, written, ours)
	}
}
